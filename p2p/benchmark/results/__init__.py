"""Results, for files and people: statistics, tables and pictures."""
