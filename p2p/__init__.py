"""A peer of a swarm: `join`, operations and steps that commit. `import p2p` does not import torch."""

from typing import TYPE_CHECKING, Any

from .config import PeerConfig
from .errors import (
    JoinRefused,
    JoinTimeout,
    NonFiniteGradient,
    OperationInterrupted,
    OperationMismatch,
    QuorumLost,
    RegistryError,
    RemovedFromView,
    ReplicasDiverged,
    ShoalError,
    StepTimeout,
)
from .join import join
from .peer import Peer
from .step.receipts import Contribution, Receipt

if TYPE_CHECKING:
    from .training import DataParallel

__all__ = [
    "Contribution",
    "DataParallel",
    "JoinRefused",
    "JoinTimeout",
    "NonFiniteGradient",
    "OperationInterrupted",
    "OperationMismatch",
    "Peer",
    "PeerConfig",
    "QuorumLost",
    "Receipt",
    "RegistryError",
    "RemovedFromView",
    "ReplicasDiverged",
    "ShoalError",
    "StepTimeout",
    "join",
]


def __getattr__(name: str) -> Any:
    """`DataParallel` needs torch, which takes seconds to import."""
    if name == "DataParallel":
        from .training import DataParallel

        return DataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
