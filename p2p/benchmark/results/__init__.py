"""What came out, for files and people: statistics, tables and pictures."""
