"""Training in rounds: local steps, then an exchange of what has changed."""
