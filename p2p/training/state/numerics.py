"""The numerics class of a peer: what decides which bits its optimizers compute from the same numbers.

Not the number of threads: it changes no update, and `shoal run` sets it by how many peers a host has.
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
"""Of a group of an optimizer: by which code it makes its updates, not which. Each peer keeps its own."""


def describe_numerics(device: Device, optimizers: Iterable[object]) -> str:
    """For people, and the same text for peers that compute the same bits, with parameters on `device`."""
    made_by = [_optimizer(each) for each in optimizers if isinstance(each, torch.optim.Optimizer)]
    return f"{device.numerics or _of_host()}, torch {torch.__version__}, {' and '.join(made_by)}"


def trait_of(text: str, mixed: str) -> bytes:
    """What peers have in common of it, for people; `mixed`: as of `PeerConfig`."""
    is_one = mixed == "refuse"
    return f"one numerics class, {text}".encode() if is_one else b"numerics classes that are synchronised again"


def class_of(text: str) -> bytes:
    """Its numerics class, without where such hardware came in."""
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
