"""What a peer lets others see of it: one mapped page in the registry folder, which outlives its process."""
