"""`shoal bench`: verifies results, then says how long they took, beside somebody else's. See docs/benchmark.md."""
