"""Peers without a seat: what a donor sends them, and what an observer makes of it."""
