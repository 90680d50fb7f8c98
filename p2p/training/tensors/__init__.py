"""Memory layouts of a model's tensors, and buckets of gradients."""
