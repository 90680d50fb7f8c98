"""`shoal run`: starts identical peers, and tells other hosts of their deaths."""
