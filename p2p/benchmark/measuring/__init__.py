"""Runs a plan: the peers, the contenders that take turns in them, the warm-up of links, and the pacing of rounds."""
