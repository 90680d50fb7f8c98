"""Experiments: run a user's script with planned joins, leaves, kills and pauses, and report the cost of each."""
