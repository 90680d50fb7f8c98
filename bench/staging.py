"""Times of copies between the host and a GPU, and what this machine permits a device to do with memory of peers.

    python -m bench.staging                        # facts, rates, and the stages of a training step
    python -m bench.staging --facts                # the first ten minutes on a new machine
    python -m bench.staging --device stand-in      # its code, without a GPU: the numbers mean nothing

Writes staging.json, staging.log and, if matplotlib is installed, staging.png into $OUT, or bench/results. Exits with 2
if there is no GPU. Needs torch with CUDA, but no network and no environment of the project (`make gpu-wheels`).
"""

import argparse
import json
import logging
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

import p2p
from p2p.benchmark.results.machine import commit, machine
from p2p.benchmark.stages import FETCH, STORE, TimedDevice
from p2p.config import LoopConfig, PeerConfig
from p2p.device import HOST, Device, FoundDevice, PinRefused
from p2p.doctor.command import line
from p2p.doctor.devices import look_at_device
from p2p.doctor.finding import Finding
from p2p.staging import cuda_devices
from tests.p2p.staging.standin import StandIn

MIB: Final = 1 << 20
SIZES: Final = (64 * MIB, 256 * MIB)
NUM_CALLS: Final = 200
NUM_STEPS: Final = 12
WARM_UP: Final = 4
CALLBACK: Final = """
import torch
from torch.autograd import Variable
x = torch.ones(2, device="{}", requires_grad=True)
def end(): raise RuntimeError("raised in a callback")
x.register_hook(lambda g: Variable._execution_engine.queue_callback(end))
try: x.sum().backward()
except RuntimeError as error: print("caught", error)
"""

log = logging.getLogger("bench.staging")


# Facts


def facts(chosen: FoundDevice, num_bytes: int) -> Iterator[Finding]:
    """Facts that depend on the machine."""
    device, where = chosen.device, chosen.name
    yield from look_at_device(device, where, time.perf_counter, num_bytes)
    says = {True: "yes", False: "no", None: "nobody says"}[chosen.registers_read_only]
    registers = {"supported": chosen.registers_read_only}
    yield Finding("read-only", f"HostRegisterReadOnlySupported: {says}", facts=registers)
    yield _calls(device, where)
    yield _border(device, where)
    yield _refusal(device, where)
    yield _callback(where)
    yield _core()


def _calls(device: Device, where: str) -> Finding:
    """Host time of a mark, of polling it, and of a small copy."""
    tensor, array = torch.zeros(1024, device=where), np.zeros(1024, np.float32)
    timed = {
        "mark": _microseconds(device.mark),
        "is_over": _microseconds(device.mark().is_over),
        "fetch_4_kib": _microseconds(lambda: device.fetch(tensor, array, [device.mark()]).wait()),
    }
    return Finding("calls", ", ".join(f"{name} {value:.3g} us" for name, value in timed.items()), facts=timed)


def _microseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(NUM_CALLS):
        call()
    return (time.perf_counter() - begun) / NUM_CALLS * 1e6


def _border(device: Device, where: str) -> Finding:
    """Whether a copy may cross from one piece of registered memory into the next."""
    mapped = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    memory = np.frombuffer(mapped, np.uint8)
    pieces = memory[: mmap.PAGESIZE], memory[mmap.PAGESIZE :]
    try:
        for piece in pieces:
            device.pin(piece)
    except PinRefused as error:
        return Finding("border", f"nothing was registered ({error})", is_well=False)
    tensor = torch.ones(2 * mmap.PAGESIZE, dtype=torch.uint8, device=where)
    try:
        device.fetch(tensor, memory, [device.mark()]).wait()
        outcome, works = "right" if memory.all() else "wrong", bool(memory.all())
    except (RuntimeError, AssertionError) as error:
        outcome, works = f"refused ({str(error).splitlines()[0]})", False
    device.wait_for_copies()
    for piece in pieces:
        device.unpin(piece)
    return Finding("border", f"a copy across two registered pieces: {outcome}", facts={"works": works})


def _refusal(device: Device, where: str) -> Finding:
    """Whether a failed registration causes an error in the next kernel."""
    try:
        device.pin(np.empty(0, np.uint8))
        return Finding("refusal", "registering nothing was not refused", is_well=False)
    except (PinRefused, AssertionError) as error:
        is_well = bool((torch.ones(8, device=where) + 1).sum().item() == 16)
        return Finding("refusal", f"refused ({error}); the next kernel {'runs' if is_well else 'is wrong'}", is_well)


def _callback(where: str) -> Finding:
    """Effect of an exception at the end of a backward pass, with autograd's threads."""
    done = subprocess.run([sys.executable, "-c", CALLBACK.format(where)], capture_output=True, text=True, check=False)
    outcome = done.stdout.strip() or f"ends the process with {done.returncode}"
    said = f"an exception in a callback of autograd: {outcome}"
    return Finding("callback", said, facts={"exit_code": done.returncode})


def _core() -> Finding:
    """Rates at which one core adds and digests."""
    one, other = (np.ones(16 * MIB, np.float32) for _ in range(2))
    begun = time.perf_counter()
    np.add(one, other, out=one)
    added = time.perf_counter()
    xxhash.xxh3_128_digest(other.data)
    ended = time.perf_counter()
    add_s, digest_s = added - begun, ended - added
    found = {"add_gb_per_s": 3 * one.nbytes / add_s / 1e9, "digest_gb_per_s": one.nbytes / digest_s / 1e9}
    return Finding("core", ", ".join(f"{name} {value:.3g}" for name, value in found.items()), facts=found)


# Rates, and the stages of a step


def beside_torch(device: Device, where: str, num_bytes: int) -> Finding:
    """Rates of shoal's copies, and of torch's own of pinned memory of the same size, on a GPU."""
    ours, peers = look_at_device(device, where, time.perf_counter, num_bytes)
    facts = {**ours.facts, "peers": peers.facts}
    if where != "cpu":
        facts["torch_fetch_gb_per_s"] = _plain(where, num_bytes)
    return Finding(f"{num_bytes // MIB} MiB", ours.says, ours.is_well, facts)


def _plain(where: str, num_bytes: int) -> float:
    source = torch.ones(num_bytes, dtype=torch.uint8, device=where)
    into = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    into.copy_(source)
    begun = time.perf_counter()
    into.copy_(source)
    return num_bytes / (time.perf_counter() - begun) / 1e9


def steps(device: Device, where: str, width: int) -> tuple[Finding, list[tuple[str, float, float]]]:
    """Durations of a step and of its stages, at a peer that trains alone."""
    watched = TimedDevice(device)
    with TemporaryDirectory(prefix="shoal") as folder:
        loop = LoopConfig(device_of=lambda tensor: watched if isinstance(tensor, Tensor) else HOST)
        with p2p.Peer(PeerConfig(swarm="staging", home=Path(folder) / "home", loop=loop)) as peer:
            model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(where)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=4 * MIB)
            times: list[float] = []
            stages: list[tuple[str, float, float]] = []
            for _ in range(NUM_STEPS):
                begun = time.perf_counter()
                parallel(torch.ones(8, width, device=where)).sum().backward()
                times.append(time.perf_counter() - begun)
                stages.append(("backward", begun, time.perf_counter()))
                optimizer.step()
                optimizer.zero_grad()
    copies = (each for each in watched.copies if each.ended_s is not None)
    stages += ((each.stage, each.begun_s, each.ended_s or each.begun_s) for each in copies)
    step_s, number = float(np.median(times[WARM_UP:])), sum(each.numel() for each in model.parameters())
    says = f"{step_s * 1000:.3g} ms with {number:,} parameters"
    return Finding("step", says, facts={"step_s": step_s, "parameters": number}), stages


def draw(stages: list[tuple[str, float, float]], path: Path) -> str:
    """Draw the last step as bars; returns a line about the picture."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return "no picture: matplotlib is missing"
    begun = [stage for stage in stages if stage[0] == "backward"][-1][1]
    figure, axes = pyplot.subplots(figsize=(10, 2))
    for row, name in enumerate(("backward", FETCH, STORE)):
        spans = [(start - begun, end - start) for each, start, end in stages if each == name and end > begun]
        bars = [(1000 * start, 1000 * length) for start, length in spans]
        axes.broken_barh(bars, (row - 0.4, 0.8))
    axes.set_yticks(range(3), ("backward", FETCH, STORE))
    axes.set_xlabel("ms since the backward pass of the last step began")
    figure.tight_layout()
    figure.savefig(path)
    return f"picture: {path}"


def found_device(name: str) -> FoundDevice:
    """The device to measure.

    Raises:
        SystemExit: there is no GPU.
    """
    if name == "stand-in":
        return FoundDevice("cpu", StandIn(0), 0, 0)
    found, why = cuda_devices()
    if not found:
        print(f"bench.staging: no GPU: {why}; `--device stand-in` runs the same code without one", file=sys.stderr)
        sys.exit(2)
    return found[0]


def main() -> None:
    """Measure, print, and write the files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "stand-in"], default="cuda")
    parser.add_argument("--facts", action="store_true", help="facts alone")
    parser.add_argument("--mib", type=int, nargs="+", default=[size // MIB for size in SIZES])
    parser.add_argument("--width", type=int, default=1024, help="of the model whose steps are timed")
    given = parser.parse_args()
    chosen = found_device(given.device)
    out = Path(os.environ.get("OUT", "bench/results"))
    out.mkdir(parents=True, exist_ok=True)
    log.setLevel(logging.INFO)
    for handler in (logging.StreamHandler(sys.stdout), logging.FileHandler(out / "staging.log", "w")):
        log.addHandler(handler)
    if given.device == "cuda":
        torch.autograd.set_multithreading_enabled(False)
    findings = list(_measure(chosen, given, out))
    report: Mapping[str, Any] = {
        "commit": commit(),
        "machine": machine(),
        "device": chosen.device.numerics or given.device,
        "found": {each.name: {"is_well": each.is_well, "says": each.says, **each.facts} for each in findings},
    }
    (out / "staging.json").write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if all(each.is_well for each in findings) else 1)


def _measure(chosen: FoundDevice, given: argparse.Namespace, out: Path) -> Iterator[Finding]:
    def said(finding: Finding) -> Finding:
        log.info("%s", line(finding))
        return finding

    for finding in facts(chosen, given.mib[0] * MIB):
        yield said(finding)
    if given.facts:
        return
    for num_mib in given.mib:
        yield said(beside_torch(chosen.device, chosen.name, num_mib * MIB))
    finding, stages = steps(chosen.device, chosen.name, given.width)
    yield said(finding)
    log.info("%s", draw(stages, out / "staging.png"))


if __name__ == "__main__":
    main()
