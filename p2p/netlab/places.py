"""The addresses and names of hosts. Pure."""

from collections.abc import Sequence

from .config import HostSettings

PORT = 7400
"""Of the first peer of each host."""


def address(host: int) -> str:
    """Its IPv4 address, 10.77.0.1 of the first."""
    return f"10.77.{(host + 1) >> 8}.{(host + 1) & 255}"


def network(host: int) -> str:
    """The same with the length of what all addresses have in common."""
    return f"{address(host)}/16"


def names(hosts: Sequence[HostSettings]) -> str:
    """/etc/hosts of each."""
    lines = ["127.0.0.1 localhost", *(f"{address(index)} {host.name}" for index, host in enumerate(hosts))]
    return "\n".join(lines) + "\n"
