"""The training thread's side of a peer: its seat, its step, its samples, and the tensors of its script."""
