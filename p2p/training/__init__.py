"""Training on top of a peer."""

from .data_parallel import DataParallel
from .diloco import DiLoCo
from .replica_state import Stateful

__all__ = ["DataParallel", "DiLoCo", "Stateful"]
