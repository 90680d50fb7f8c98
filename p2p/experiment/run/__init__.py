"""Running an experiment: draw its events, start peers, and carry the events out."""
