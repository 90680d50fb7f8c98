"""How tensors of a model lie in memory, and gradients in buckets of them."""
