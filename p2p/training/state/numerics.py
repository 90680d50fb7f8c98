"""The numerics class of a peer: all that determines which bits its optimizers compute from equal inputs.

Leaves out the number of threads: it does not affect updates, and `shoal run` sets it by the number of peers of a host.
"""

import platform
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final

import torch

from gossip.view import HARDWARE_BYTES, NO_NUMERICS

from ...device import Device

FLAGS: Final = ("fused", "foreach", "capturable", "differentiable")
"""Options of an optimizer's group that select the implementation of its update. Each peer keeps its own."""


def describe_numerics(device: Device, optimizers: Iterable[object]) -> str:
    """The numerics class in words, with parameters on `device`: the same text on peers that compute the same bits."""
    made_by = [_optimizer(each) for each in optimizers if isinstance(each, torch.optim.Optimizer)]
    return f"{device.numerics or _of_host()}, torch {torch.__version__}, {' and '.join(made_by)}"


def trait_of(text: str, mixed: str) -> bytes:
    """The trait by which peers are compared, in words; `mixed`: as in `PeerConfig`."""
    is_one = mixed == "refuse"
    return f"one numerics class, {text}".encode() if is_one else b"numerics classes that are synchronised again"


def class_of(text: str) -> bytes:
    """Numerics class of the description `text`, without the position at which such hardware joined."""
    return blake2b(text.encode(), digest_size=HARDWARE_BYTES).digest() + NO_NUMERICS[HARDWARE_BYTES:]


def _of_host() -> str:
    name, instructions = _processor(), torch.backends.cpu.get_cpu_capability()
    return f"cpu {name} ({platform.machine()}, {instructions})"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "of no name")


def _optimizer(optimizer: torch.optim.Optimizer) -> str:
    flags = [{key: group[key] for key in FLAGS if group.get(key) is not None} for group in optimizer.param_groups]
    shown = [", ".join(f"{key}={value}" for key, value in each.items()) for each in flags]
    return f"{type(optimizer).__name__}({'; '.join(dict.fromkeys(shown))})"
