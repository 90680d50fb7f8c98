"""What the peers of one host share: arenas, the board, doorbells, and operations that run over them."""
