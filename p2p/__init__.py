"""A peer of a swarm: `join`, operations and steps that commit. `import p2p` does not import torch."""

from typing import TYPE_CHECKING, Any

from gossip import Member, View

from .config import PeerConfig
from .errors import (
    JoinRefused,
    JoinTimeout,
    NetworkError,
    NonFiniteGradient,
    OperationInterrupted,
    OperationMismatch,
    QuorumLost,
    RegistryError,
    RemoteProtocolError,
    RemovedFromView,
    ReplicasDiverged,
    SecurityError,
    ShoalError,
    StepTimeout,
)
from .join import join
from .net.tcp import TcpOptions
from .peer import Peer
from .session.calls import Handle, Step
from .step.receipts import Contribution, Receipt

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .data.loader import Loader
    from .training import DataParallel, Stateful

__all__ = [
    "Checkpoint",
    "Contribution",
    "DataParallel",
    "Handle",
    "JoinRefused",
    "JoinTimeout",
    "Loader",
    "Member",
    "NetworkError",
    "NonFiniteGradient",
    "OperationInterrupted",
    "OperationMismatch",
    "Peer",
    "PeerConfig",
    "QuorumLost",
    "Receipt",
    "RegistryError",
    "RemoteProtocolError",
    "RemovedFromView",
    "ReplicasDiverged",
    "SecurityError",
    "ShoalError",
    "Stateful",
    "Step",
    "StepTimeout",
    "TcpOptions",
    "View",
    "join",
]


def __getattr__(name: str) -> Any:
    """What needs torch, which takes seconds to import; and what is rarely asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("shoal")
    if name == "Loader":
        from .data.loader import Loader

        return Loader
    if name == "Checkpoint":
        from .checkpoint import Checkpoint

        return Checkpoint
    if name in ("DataParallel", "Stateful"):
        from . import training

        return getattr(training, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
