"""Data loading: which samples a peer adds to a step, and the loader that hands them to the script."""
