"""Sockets and bytes: links, listeners, frames, and the codec. Everything that arrives is checked here."""
