"""The state of a run on disk: written while it trains, and what it goes on from."""

from .keeper import Keeper
from .settings import Checkpoint

__all__ = ["Checkpoint", "Keeper"]
