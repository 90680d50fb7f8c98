"""`shoal status`: what swarms there are, who is in them, and what each peer is at. It changes nothing."""
