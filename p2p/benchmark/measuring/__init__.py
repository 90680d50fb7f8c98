"""Runs a plan: peers, what takes turns in them, what they learn first, and what comes next."""
