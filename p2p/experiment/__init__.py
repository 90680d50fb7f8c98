"""Experiments: somebody's own script, with joins, leaves, kills and pauses as planned, and a report of what each cost."""
