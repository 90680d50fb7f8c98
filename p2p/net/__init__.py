"""Sockets and bytes: links, listeners, frames, and the codec. All received bytes are validated here."""
