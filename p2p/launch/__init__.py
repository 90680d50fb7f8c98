"""`shoal run`: starts identical peers, and notifies other hosts of their deaths."""
