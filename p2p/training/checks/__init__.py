"""Checks for mistakes in scripts that would otherwise stay unnoticed: refused, or logged once."""
