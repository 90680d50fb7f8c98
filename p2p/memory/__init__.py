"""Memory shared by the peers of one host: arenas, boards, doorbells, and operations that run over them."""
