"""Which samples a peer adds to a step, and how a script is given them."""
