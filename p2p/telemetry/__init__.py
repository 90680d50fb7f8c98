"""The page of a peer: one mapped file in the registry folder, readable by others, which outlives its process."""
