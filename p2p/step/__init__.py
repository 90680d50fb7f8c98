"""The open step: its operations, who runs them, and what becomes of it. No sockets, no clock, no thread."""
