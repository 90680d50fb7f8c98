"""Training in rounds: local steps, then an exchange of the deltas."""
