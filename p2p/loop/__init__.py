"""The loop: sockets, clock and protocol state of one peer, driven by one thread; effects are carried out here."""
