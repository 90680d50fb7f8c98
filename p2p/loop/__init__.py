"""What one thread drives: sockets, clock and protocol state of one peer, and the one place that carries effects out."""
