"""`shoal bench`: verifies and times collectives, compared with other libraries. See docs/benchmark.md."""
