"""Training on top of a peer."""

from .data_parallel import DataParallel

__all__ = ["DataParallel"]
