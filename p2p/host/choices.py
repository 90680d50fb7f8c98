"""The settings that are one of a few words. Apart from the others, which a launcher and a lab do without."""

from collections.abc import Mapping
from typing import Final

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "policy": ("live", "majority"),
    "receipts_full": ("warn", "stop"),
    "mixed": ("resync", "refuse"),
    "slow_peers": ("name", "leave"),
    "on_all_dead": ("stop", "restart"),
}
"""Of `p2p.join` and `shoal run` alike."""
