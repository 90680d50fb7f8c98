"""A process that has imported what programs need, and forks itself for each of them."""
