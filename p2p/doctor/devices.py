"""Checks of devices: the speed of copies to and from each, and whether memory of peers can be registered with it."""

import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

import numpy as np
import torch

from collectives import Array

from ..device import HOST, Device, PinRefused
from ..errors import ShoalError
from ..memory.arena import REGIONS_OFFSET, Arena, RemoteArena, find_arena, leave_out_of_forks
from ..memory.extents import EXTENT_BYTES
from ..staging import cuda_devices
from ..training.state.numerics import describe_numerics
from .finding import Finding, size
from .lender import Lent, lent, pattern

NUM_COPIES: Final = 7
Clock = Callable[[], float]


def look_at_devices(clock: Clock) -> Iterator[Finding]:
    """Findings about all devices that this process sees."""
    words = describe_numerics(HOST, []).removesuffix(", ")
    yield Finding("numerics", f"{words}: peers with the same words, and the same optimizer, compute the same updates")
    seen, why_none = cuda_devices()
    if not seen:
        yield Finding("devices", f"no GPU: {why_none}; peers train on the CPU", facts={"number": 0})
    for each in seen:
        of_memory = f"{size(each.free_bytes)} of {size(each.total_bytes)} free"
        facts = {
            "free_bytes": each.free_bytes,
            "total_bytes": each.total_bytes,
            "registers_read_only": each.registers_read_only,
        }
        yield Finding(each.name, f"{each.device.numerics}; {of_memory}", facts=facts)
        yield from look_at_device(each.device, each.name, clock)


def look_at_device(device: Device, where: str, clock: Clock, num_bytes: int = EXTENT_BYTES) -> Iterator[Finding]:
    """Findings about one device; `where`: torch's name for it; `num_bytes`: to register and copy, in whole pages."""
    name = secrets.token_hex(8)
    arena = Arena(REGIONS_OFFSET + num_bytes, name)
    try:
        region = arena.allocate(num_bytes)
        if region is None:
            yield Finding(f"{where} pinned", f"there is no {size(num_bytes)} of memory to try it with", is_well=False)
            return
        own = arena.array(region, np.uint8)
        yield from _look_at_copies(device, where, clock, own)
    finally:
        arena.close()
    try:
        with lent(num_bytes) as of_another:
            yield _look_at_peers(device, where, clock, of_another)
    except (ShoalError, OSError) as error:
        says = f"memory of another process cannot be read ({error}): peers of this host use sockets"
        yield Finding(f"{where} peers", says, is_well=False, facts={"read-only": False, "writable": False})


def _look_at_copies(device: Device, where: str, clock: Clock, memory: Array) -> Iterator[Finding]:
    """The speed of copies with `memory` pageable, then registered."""
    pageable = rates(device, where, memory, clock)
    begun = clock()
    try:
        device.pin(memory)
    except PinRefused as error:
        yield Finding(
            f"{where} pinned",
            f"memory of a peer cannot be registered ({error}): copies are pageable, {_in_words(pageable)}",
            is_well=False,
            facts={"pageable": pageable},
        )
        return
    took_s = clock() - begun
    try:
        pinned = rates(device, where, memory, clock)
    finally:
        device.wait_for_copies()
        device.unpin(memory)
    yield Finding(
        f"{where} pinned",
        f"{_in_words(pinned)}; pageable {_in_words(pageable)}; {size(memory.nbytes)} were registered in "
        f"{took_s * 1000:.3g} ms",
        facts={"pinned": pinned, "pageable": pageable, "register_s": took_s},
    )


def rates(device: Device, where: str, memory: Array, clock: Clock) -> dict[str, float]:
    """GB/s to the host and back, each the median of `NUM_COPIES` copies; all bytes are verified.

    Raises:
        ShoalError: copied bytes are wrong.
    """
    tensor = torch.arange(len(memory), dtype=torch.int64).to(torch.uint8).to(where)
    back = torch.empty_like(tensor)
    expected = np.arange(len(memory)).astype(np.uint8)
    times: dict[str, list[float]] = {"fetch": [], "store": []}
    for _ in range(NUM_COPIES):
        memory.fill(0)
        back.zero_()
        begun = clock()
        device.fetch(tensor, memory, [device.mark()]).wait()
        fetched = clock()
        mark = device.store(memory, back, [device.mark()])
        mark.wait()
        times["fetch"].append(fetched - begun)
        times["store"].append(clock() - fetched)
        if not np.array_equal(memory, expected) or not bool((back == tensor).all()):
            raise ShoalError(f"{where} copied wrong bytes: do not train on it")
    return {f"{name}_gb_per_s": memory.nbytes / median(each) / 1e9 for name, each in times.items()}


def _in_words(found: dict[str, float]) -> str:
    return f"{found['fetch_gb_per_s']:.3g} GB/s to the host, {found['store_gb_per_s']:.3g} back"


def _look_at_peers(device: Device, where: str, clock: Clock, of_another: Lent) -> Finding:
    """Whether another process's arena can be registered, through a read-only and through a writable mapping."""
    region = of_another.region
    read_only = RemoteArena.open(of_another.pid, of_another.peer_id).array(region, np.uint8)
    writable = _writable(of_another)
    found = {"read-only": _tried(device, where, clock, read_only), "writable": _tried(device, where, clock, writable)}
    said = "; ".join(f"{name}: {why or 'yes'}" for name, (why, _) in found.items())
    facts: dict[str, object] = {name: not why for name, (why, _) in found.items()}
    facts |= {f"{name}_times": times for name, (_, times) in found.items() if times}
    why, times = found["writable"]
    rate = "" if why else f"; {times['store_gb_per_s']:.3g} GB/s out of it"
    return Finding(
        f"{where} peers",
        f"what a peer has in its arena can be registered through a mapping that is {said}{rate}",
        not why,
        facts,
    )


def _writable(of_another: Lent) -> Array:
    """Map the arena of another process writable, as a peer does for its device (memory/windows.py).

    Raises:
        ShoalError: the process has ended.
        OSError: the arena cannot be mapped.
    """
    found = find_arena(of_another.pid, of_another.peer_id, os.O_RDWR)
    if found is None:
        raise ShoalError("it has ended")
    try:
        mapped = mmap.mmap(found, os.fstat(found).st_size)
    finally:
        os.close(found)
    leave_out_of_forks(mapped)
    offset, length = of_another.region
    return np.frombuffer(mapped, np.uint8, length, offset)


def _tried(device: Device, where: str, clock: Clock, memory: Array) -> tuple[str, dict[str, float]]:
    """Register and read `memory`. Returns why it cannot be registered (empty: it can), and the times.

    Raises:
        ShoalError: the bytes that were read are wrong.
    """
    begun = clock()
    try:
        device.pin(memory)
    except PinRefused as error:
        return f"no ({error})", {}
    register_s = clock() - begun
    expected, times = torch.from_numpy(pattern(len(memory))).to(where), []
    try:
        for _ in range(NUM_COPIES):
            into = torch.zeros(len(memory), dtype=torch.uint8, device=where)
            after = [device.mark()]
            after[0].wait()
            begun = clock()
            device.store(memory, into, after).wait()
            times.append(clock() - begun)
            if not bool((into == expected).all()):
                raise ShoalError(f"{where} read wrong bytes from a peer: do not train on it")
    finally:
        device.wait_for_copies()
        device.unpin(memory)
    return "", {"register_s": register_s, "store_gb_per_s": memory.nbytes / median(times) / 1e9}
