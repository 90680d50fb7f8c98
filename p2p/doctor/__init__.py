"""`shoal doctor`: the capabilities of peers on this machine, and what limits them."""
