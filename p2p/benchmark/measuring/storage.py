"""Storage of the arrays of a benchmark: host memory, or a device that all contenders of a peer share.

A turn begins when its array is in place, and ends when the result is: on a device, for every contender, when the
current stream has finished. The process that starts a peer determines its device; each has its own if there are enough.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from p2p.device import HOST, Device, FoundDevice, MemoryShort, failures_named
from p2p.errors import LaunchError, ShoalError
from p2p.launch.devices import VARIABLE, host_gpus, visible_devices
from p2p.session.tensors import as_array
from p2p.staging import cuda_devices

from ..arrays import Array, as_tensor
from ..plan import ADDS, CUDA, Plan, format_size
from ..stages import TimedDevice, times_of_stages

Find = Callable[[], tuple[tuple[FoundDevice, ...], str]]
"""Returns the devices that this process sees; and, if none, why."""

Said = Mapping[str, Any]
"""`name`, `place`, `refused` and `num_sums` of a peer's device."""

NO_DEVICE: Final = "leave --device out to measure on the CPU; `shoal doctor` says what there is"


class Storage(Protocol):
    """Holds one array at a time."""

    def device_of(self, tensor: Any) -> Device:
        """As of `LoopConfig`."""

    def put(self, array: Array) -> Any:
        """Store `array`; returns the argument for an operation on it. Blocks until it is stored."""

    def finish(self) -> None:
        """Block until all operations that were called are done."""

    def take(self, given: Any) -> Array:
        """The current contents of what `put` returned, on the host."""

    def stages_s(self, start_s: float, end_s: float) -> tuple[float, ...] | None:
        """Seconds of each of `STAGES` of the operation since `put`; None: it has no stages."""

    def said(self) -> Said | None:
        """The device, for the report; None: it is the host."""


class HostStorage:
    """Host memory: the array itself."""

    def device_of(self, tensor: Any) -> Device:
        """As `Storage`."""
        return HOST

    def put(self, array: Array) -> Any:
        """As `Storage`."""
        return array

    def finish(self) -> None:
        """As `Storage`."""

    def take(self, given: Any) -> Array:
        """As `Storage`."""
        array: Array = given
        return array

    def stages_s(self, start_s: float, end_s: float) -> tuple[float, ...] | None:
        """As `Storage`."""
        return None

    def said(self) -> Said | None:
        """As `Storage`."""
        return None


class DeviceStorage:
    """One tensor on a device, replaced when the size or type changes."""

    def __init__(self, found: FoundDevice) -> None:
        import torch  # takes seconds: imported only if there is a device

        self._torch, self._where = torch, found.name
        self._device = TimedDevice(found.device)
        self._tensor: Any = None

    def device_of(self, tensor: Any) -> Device:
        """As `Storage`."""
        is_there = isinstance(tensor, self._torch.Tensor) and str(tensor.device) == self._where
        return self._device if is_there else HOST

    def put(self, array: Array) -> Any:
        """As `Storage`.

        Raises:
            ShoalError: the device has too little memory.
            DeviceLost: the device has failed.
        """
        source = as_tensor(array)
        with failures_named():
            if self._tensor is None or (self._tensor.shape, self._tensor.dtype) != (source.shape, source.dtype):
                self._tensor = self._empty(source)
            self._tensor.copy_(source)
            self._device.mark().wait()
        self._device.copies.clear()
        return self._tensor

    def _empty(self, like: Any) -> Any:
        self._tensor = None  # its memory is free for the next one
        try:
            return self._device.zeros(like.numel(), self._torch.empty(0, dtype=like.dtype, device=self._where))
        except MemoryShort as error:
            raise ShoalError(
                f"{self._where} has no room for an array of {format_size(like.nbytes)}: {error}; take a smaller -e, or "
                "fewer peers for each device"
            ) from None

    def finish(self) -> None:
        """As `Storage`."""
        with failures_named():
            self._device.mark().wait()

    def take(self, given: Any) -> Array:
        """As `Storage`."""
        with failures_named():
            return as_array(given.cpu())

    def stages_s(self, start_s: float, end_s: float) -> tuple[float, ...] | None:
        """As `Storage`."""
        return times_of_stages(self._device.copies, start_s, end_s)

    def said(self) -> Said | None:
        """As `Storage`."""
        adder, name = self._device.adder, self._device.numerics or self._where
        place = f"{os.environ.get(VARIABLE, '')} {self._where}"
        num_sums = 0 if adder is None else adder.num_sums
        return {"name": name, "place": place, "refused": self._device.refused, "num_sums": num_sums}


def storage_of(plan: Plan, place: int, find: Find = cuda_devices) -> Storage:
    """The storage of the peer with index `place` on this host.

    Raises:
        ShoalError: this host has no such device.
    """
    if plan.device != CUDA:
        return HostStorage()
    found, why = find()
    if not found:
        raise ShoalError(f"--device {plan.device} needs a GPU: {why}; {NO_DEVICE}")
    return DeviceStorage(found[place % len(found)])


def check_devices(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raise LaunchError if peers on this host would find no device. Does not import torch, which takes seconds."""
    if plan.device != CUDA:
        return
    gpus = host_gpus()
    if not visible_devices(environ, gpus):
        why = f"{VARIABLE} is {environ[VARIABLE]!r}" if gpus and VARIABLE in environ else "the driver shows none here"
        raise LaunchError(f"--device {plan.device} needs a GPU, and {why}: {NO_DEVICE}")


def devices_of(said: Sequence[Said | None]) -> list[str]:
    """Names of the peers' devices; a device that peers share appears once."""
    places = {each["place"]: each["name"] for each in said if each is not None}
    return [places[place] for place in sorted(places)]


def warnings_of_devices(plan: Plan, said: Sequence[Said | None]) -> list[str]:
    """Reasons why times may mislead, in words."""
    there = [each for each in said if each is not None]
    found, number = [], len(devices_of(there))
    if len(there) > number:
        share = "one GPU" if number == 1 else f"{number} GPUs"
        found.append(f"{len(there)} peers share {share}: times include waiting for it, and copies share its link")
    if refused := sorted({each["refused"] for each in there if each["refused"]}):
        found.append(
            f"memory of peers could not be registered with their device ({'; '.join(refused)}): copies of it are "
            "pageable, several times slower; `shoal doctor` says what limits it"
        )
    adding = [name for name in plan.algorithms if name.partition("@")[2] == ADDS]
    if adding and (idle := sum(not each["num_sums"] for each in there)):
        found.append(
            f"{idle} of {len(there)} peers made no sum on their device: there {', '.join(adding)} is what the host "
            "adds; arrays are too short (256 KiB for each peer), or memory of others could not be registered"
        )
    return found
