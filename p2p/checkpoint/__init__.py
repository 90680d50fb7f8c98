"""The state of a run on disk: written during training, and resumed by founders."""

from .keeper import Keeper
from .settings import Checkpoint

__all__ = ["Checkpoint", "Keeper"]
