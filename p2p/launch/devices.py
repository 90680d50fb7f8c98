"""The GPUs of this host, and which GPU and cores each peer gets. Without torch, whose import takes seconds.

A GPU is named by its UUID, since CUDA numbers GPUs by speed, and other tools by bus position. Unusable names are
refused before any peer starts; CUDA would silently see fewer devices, or none.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from ..errors import LaunchError

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
QUERY: Final = ("nvidia-smi", "--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
LIST: Final = ("nvidia-smi", "-L")
TIMEOUT_S: Final = 20.0

_DEVICE: Final = re.compile(r"nvidia\d+")
_LISTED: Final = re.compile(r"^(\s*)\S.*\(UUID: ([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this host; GPUs are in the order of the bus.

    Attributes:
        uuid: empty: unknown.
        bus: bus address, as in /sys/bus/pci/devices.
        name: of the model.
        parts: UUIDs of its MIG devices, which are used in its place.
    """

    uuid: str = ""
    bus: str = ""
    name: str = ""
    parts: tuple[str, ...] = ()


@cache
def host_gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver offers; without `nvidia-smi` only their number is known."""
    number = count_devices(Path("/dev"))
    if not number:
        return ()
    return ask_driver() or (Gpu(),) * number


def ask_driver() -> tuple[Gpu, ...]:
    """The GPUs that `nvidia-smi` reports; empty: it is missing, fails, or its output cannot be parsed."""
    try:
        queried, listed = (
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout
            for command in (QUERY, LIST)
        )
        return parse(queried, listed)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def count_devices(dev: Path) -> int:
    """The number of GPUs that the kernel's driver offers."""
    return sum(bool(_DEVICE.fullmatch(path.name)) for path in dev.iterdir())


def parse(queried: str, listed: str) -> tuple[Gpu, ...]:
    """Parse the output of `nvidia-smi` for `QUERY` and `LIST`. ValueError: unexpected output."""
    parts: dict[str, list[str]] = {}
    gpu = ""
    for line in listed.splitlines():
        if found := _LISTED.match(line):
            if not found[1]:
                gpu = found[2]
            parts.setdefault(gpu, []).extend([found[2]] if found[1] else [])
    gpus = []
    for line in queried.splitlines():
        _, uuid, bus, name = (field.strip() for field in line.split(",", 3))
        domain, _, rest = bus.lower().partition(":")
        gpus.append(Gpu(uuid, f"{domain[-4:]}:{rest}", name, tuple(parts.get(uuid, ()))))
    return tuple(gpus)


def visible_devices(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Devices to distribute to peers by CUDA_VISIBLE_DEVICES, one each. An existing value is respected.

    Raises:
        LaunchError: that value names a device that this host does not have.
    """
    given = environ.get(VARIABLE)
    if given is None:
        return tuple(name for index, gpu in enumerate(gpus) for name in gpu.parts or (gpu.uuid or str(index),))
    names = []
    for name in map(str.strip, given.split(",")):
        if not name or name == "-1":
            break  # like CUDA, which ignores all later devices
        names.append(name if not all(gpu.uuid for gpu in gpus) or not gpus else _resolve(name, gpus, environ))
    return tuple(names)


def _resolve(name: str, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> str:
    here = [uuid for gpu in gpus for uuid in (gpu.uuid, *gpu.parts)]
    if name.isdecimal():
        if int(name) >= len(gpus):
            raise LaunchError(f"{VARIABLE} names device {name}, and this host has {len(gpus)}: 0 to {len(gpus) - 1}")
        is_certain = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
        gpu = gpus[int(name)]
        return gpu.uuid if is_certain and not gpu.parts else name
    uuid = name.removeprefix("MIG-").partition("/")[0] if name.startswith("MIG-GPU-") else name
    found = [each for each in here if each.startswith(uuid)]
    if not name.startswith(("GPU-", "MIG-")) or len(found) != 1:
        what = "names more than one device" if len(found) > 1 else "is not a device of this host"
        raise LaunchError(f"{VARIABLE} has {name}, which {what}: {', '.join(here)}, or numbers from 0 on")
    return name if uuid != name else found[0]


def describe(environ: Mapping[str, str], gpus: Sequence[Gpu], num_peers: int, *, is_auto: bool) -> str:
    """A notice for the user about devices that are missing or shared; empty: none is needed.

    Raises:
        LaunchError: as of `visible_devices`.
    """
    names = visible_devices(environ, gpus)
    if not names and is_auto:
        is_masked = bool(gpus) or VARIABLE in environ
        why = f"{VARIABLE} is {environ.get(VARIABLE, '')!r}" if is_masked else "there is no GPU here"
        return f"{why}, so -n auto is one peer, on the CPU"
    if not names and gpus:
        here = "the one GPU" if len(gpus) == 1 else f"the {len(gpus)} GPUs"
        return f"{VARIABLE} is {environ.get(VARIABLE, '')!r}, so no peer sees any of {here} of this host"
    if num_peers > len(names) > 0:
        share = "the one GPU" if len(names) == 1 else f"{len(names)} GPUs"
        return f"{num_peers} peers share {share}, which they use in turns: `-n auto` starts one peer for each"
    return ""


def cores_of_peer(
    place: int, num_peers: int, names: Sequence[str], gpus: Sequence[Gpu], usable: frozenset[int], sys: Path
) -> frozenset[int]:
    """The share of peer `place` in the cores near its device; empty: no device, or all usable cores are as near."""
    near = {name: _near(name, gpus, sys) & usable for name in names}
    mine = near[names[place % len(names)]] if names else frozenset[int]()
    if not mine or mine == usable:
        return frozenset()
    sharing = [other for other in range(num_peers) if near[names[other % len(names)]] == mine]
    turn, cores = sharing.index(place % num_peers) if place % num_peers in sharing else 0, sorted(mine)
    length = max(1, len(cores) // len(sharing))
    first = turn * length % len(cores)
    return frozenset(cores[first : first + length])


def _near(name: str, gpus: Sequence[Gpu], sys: Path) -> frozenset[int]:
    gpu = next((each for each in gpus if name in (each.uuid, *each.parts)), None)
    if gpu is None or not gpu.bus:
        return frozenset()
    try:
        text = (sys / "bus/pci/devices" / gpu.bus / "local_cpulist").read_text()
    except OSError:
        return frozenset()
    return parse_cores(text)


def parse_cores(text: str) -> frozenset[int]:
    """Parse a list of numbers and ranges in the kernel's format."""
    spans = (part.partition("-") for part in text.strip().split(",") if part)
    return frozenset(core for first, _, last in spans for core in range(int(first), int(last or first) + 1))
