"""Host memory for operations on tensors of a device: registered with the device if possible, and copied in pieces."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives import Array

from ..device import HOST, Device
from ..memory.host_memory import HostMemory
from ..staging import Cut, Staged
from .operation_call import ArrayAllocator
from .session import Session


def single_device_of(session: Session, tensor: Any, what: str) -> Device:
    """The device of `tensor`: the host, or the one device that this peer uses. `what`: name in the error.

    Raises:
        ValueError: another device than before.
    """
    device = session.device_of(tensor)
    if device is HOST:
        return device
    used, where = session.used_device or (device, str(tensor.device))
    if used is not device:
        raise ValueError(
            f"{what} is on {tensor.device}, and this peer has used {where} so far: a peer uses one device, so move it "
            "there, and start a peer for each device (`shoal run -n auto`)"
        )
    session.used_device = used, where
    return device


def is_on_device(session: Session, tensor: Any) -> bool:
    """Whether the tensor is on a device, which the host must wait for to read it."""
    return session.device_of(tensor) is not HOST


def pin(session: Session, device: Device, arrays: Sequence[Array]) -> None:
    """Register the memory of `arrays` with `device`, if it is in the arena."""
    if device is not HOST:
        _pin(session, device, arrays)


def pinned(session: Session, device: Device, empty: ArrayAllocator) -> ArrayAllocator:
    """`empty`, with results registered with `device`."""

    def make(size: int, dtype: np.dtype[Any]) -> Array:
        array = empty(size, dtype)
        _pin(session, device, (array,))
        return array

    return make


def staged_by(session: Session, device: Device) -> Staged:
    """Staging of operations between `device` and the arena."""
    return Staged(device, cut_of(session), session.membership.interrupt)


def cut_of(session: Session) -> Cut:
    """Cut of copies into the arena and out of it."""
    return lambda array: _memory(session).cut(array)


def _pin(session: Session, device: Device, arrays: Sequence[Array]) -> None:
    """At once before the peer has a seat; later in a thread."""
    _memory(session).pin(device, arrays, is_aside=session.history.view is not None)


def _memory(session: Session) -> HostMemory:
    return session.loop.resources.host_memory
