"""The network lab, `shoal lab`: hosts and links on one machine that behave like real ones. See docs/lab.md."""
