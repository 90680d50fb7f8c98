"""Training on top of a peer."""

from .data_parallel import DataParallel
from .rounds.diloco import DiLoCo
from .state.replica_state import Stateful

__all__ = ["DataParallel", "DiLoCo", "Stateful"]
