"""The state of a replica: its serialisation, its planned changes, and the comparison with joiners."""
