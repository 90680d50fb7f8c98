"""What a replica is: its state as bytes, what changes it, and what joiners are compared by."""
