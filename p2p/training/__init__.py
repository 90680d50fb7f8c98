"""Training on top of a peer."""

from .data_parallel import DataParallel
from .replica_state import Stateful

__all__ = ["DataParallel", "Stateful"]
