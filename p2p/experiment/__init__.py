"""Experiments: somebody's own script, with joins, leaves, kills and pauses as planned, and what each has cost."""
