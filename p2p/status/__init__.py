"""`shoal status`: the swarms of this host, their members, and what each peer is doing. Read-only."""
