"""Places where a benchmark trains: the host, a GPU, or the stand-in for one, whose times mean nothing."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

import p2p
from p2p.config import LoopConfig
from p2p.device import HOST, Device
from p2p.joining import join_as
from p2p.staging import cuda_devices
from tests.p2p.staging.standin import StandIn

CPU: Final = "cpu"
CUDA: Final = "cuda"
STAND_IN: Final = "stand-in"
DEVICES: Final = (CPU, CUDA, STAND_IN)
"""Values of `--device`."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one peer.

    Attributes:
        name: torch's name of the device.
    """

    name: str
    device: Device

    def join(self) -> p2p.Peer:
        """As `p2p.join`."""
        if not isinstance(self.device, StandIn):
            return p2p.join()
        return join_as({"loop": LoopConfig(device_of=self.device.device_of)})

    def watch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Tell a stand-in which tensors will be copied as a state; a real device tracks writes by its streams."""
        if isinstance(self.device, StandIn):
            self.device.watched = lambda: [
                *model.state_dict().values(),
                *(each for state in optimizer.state.values() for each in state.values()),
            ]

    def finish(self) -> None:
        """Block until the current stream has finished its work."""
        self.device.mark().wait()


def place_of(kind: str, index: int) -> Place:
    """The place of peer `index` on this host; GPUs are shared if there are fewer.

    Raises:
        SystemExit: there is no GPU.
    """
    if kind == STAND_IN:
        return Place("cpu", StandIn(index))
    if kind == CPU:
        return Place("cpu", HOST)
    found, why = cuda_devices()
    if not found:
        raise SystemExit(f"--device {CUDA} needs a GPU: {why}; {STAND_IN} runs the same code without one")
    chosen = found[index % len(found)]
    return Place(chosen.name, chosen.device)


def check(kind: str) -> None:
    """Raise SystemExit if there is no such place."""
    place_of(kind, 0)
