"""What a run shows, from its folder alone: `shoal report` and `shoal postmortem`."""
