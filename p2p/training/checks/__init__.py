"""Mistakes of scripts that nobody would notice: looked for in each step, refused or said once."""
