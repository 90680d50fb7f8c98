"""Settings that take one of a few words. In a separate module, since a launcher and a lab need no other settings."""

from collections.abc import Mapping
from typing import Final

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "policy": ("live", "majority"),
    "receipts_full": ("warn", "stop"),
    "mixed": ("resync", "refuse"),
    "slow_peers": ("name", "leave"),
    "on_all_dead": ("stop", "restart"),
}
"""The allowed words by setting, of both `p2p.join` and `shoal run`."""
