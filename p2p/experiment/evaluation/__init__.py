"""The evaluation of a run, from its folder alone: `shoal report` and `shoal postmortem`."""
