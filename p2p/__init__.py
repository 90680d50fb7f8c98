"""Public API: `join`, a peer's operations, and steps that commit. Each name is imported on first access.

So `import p2p` takes milliseconds, and imports no torch; `shoal status` needs neither numpy nor zmq.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gossip import Member, View

    from .checkpoint import Checkpoint
    from .config import PeerConfig
    from .data.loader import Loader
    from .errors import (
        DatasetRefused,
        DeviceLost,
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
        RootLost,
        RunEnded,
        SecurityError,
        ShoalError,
        StepTimeout,
    )
    from .joining import join
    from .net.tcp import TcpOptions
    from .peer import Peer
    from .session.calls import Handle, Step
    from .step.receipts import Contribution, Receipt
    from .training import DataParallel, DiLoCo, Stateful

__all__ = [
    "Checkpoint",
    "Contribution",
    "DataParallel",
    "DatasetRefused",
    "DeviceLost",
    "DiLoCo",
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
    "RootLost",
    "RunEnded",
    "SecurityError",
    "ShoalError",
    "Stateful",
    "Step",
    "StepTimeout",
    "TcpOptions",
    "TooSlow",
    "View",
    "join",
]

_HOMES: Final = {
    "gossip": ("Member", "View"),
    "p2p.checkpoint": ("Checkpoint",),
    "p2p.config": ("PeerConfig",),
    "p2p.data.loader": ("Loader",),
    "p2p.joining": ("join",),
    "p2p.net.tcp": ("TcpOptions",),
    "p2p.peer": ("Peer",),
    "p2p.session.calls": ("Handle", "Step"),
    "p2p.step.receipts": ("Contribution", "Receipt"),
    "p2p.training": ("DataParallel", "DiLoCo", "Stateful"),
}
"""Modules of the names; all other names are errors."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("shoal")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "p2p.errors")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
