"""`shoal doctor`: what peers on this machine can do, and what keeps them from more."""
