"""The state of a run on disk: written during training, and resumed by founders."""

from .checkpointer import Checkpointer
from .settings import Checkpoint

__all__ = ["Checkpoint", "Checkpointer"]
