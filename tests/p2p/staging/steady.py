"""Waits of the host for a device in a steady step: there is one place, at the end of the backward pass.

It is after the last copy that the step fetches, and before the first result that is stored. All other data that the
host reads from the device (digests, statistics, buffers, verdicts) have arrived by then, and no tensor is read in
place. On a GPU, synchronising calls of torch in such a step raise; marks that are waited for are not counted.
"""

import gc
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from p2p import DataParallel, Peer
from tests.p2p.staging.campaign import Wrong
from tests.p2p.staging.pair import Make, play
from tests.p2p.staging.standin import StandIn

NUM_FIRST, NUM_STEPS = 2, 20
NUM_UNPINNED = 3
"""Number of first steps in which memory is allocated, which a thread pins meanwhile."""
ONE_AT_A_TIME: Final = threading.Lock()
READS: Final = {Tensor.cpu, Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__, Tensor.__float__, torch.equal}


class HostReads(TorchFunctionMode):
    """Detects operations of torch that would wait for the device, on these storages."""

    def __init__(self, far: set[int]) -> None:
        super().__init__()
        self._far, self.found = far, list[str]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in READS:
            tensors = [each for each in args if isinstance(each, Tensor)]
            if any(_place(each) in self._far for each in tensors):
                self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    """A model with running statistics, a buffer that each step changes, and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 40), nn.Linear(40, 2)
        )
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))
        self.total: Tensor
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.total += 1
            self.calls += 1
        found: Tensor = self.layers(x)
        return found


def steps(peer: Peer, device: Any, buffers: Any, *, state_digest: Any = "part") -> None:
    """Train steps; raises AssertionError if the host has waited elsewhere."""
    device.refuses_every = 0
    gc.collect()  # with the model of the case before
    with ONE_AT_A_TIME:  # the generator is that of the process
        torch.manual_seed(3)
        model = Model().to(device.where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    parallel = DataParallel(peer, model, optimizer, bucket_bytes=200, buffers=buffers, state_digest=state_digest)
    device.haste, memory = 0.0, peer._session.loop.resources.host_memory
    far: set[int] = set()
    for step in range(1, NUM_STEPS + 1):
        x = torch.randn(5, 6).to(device.where)
        with _looked_at(device, step, far):
            optimizer.zero_grad()
            parallel(x).square().mean().backward()
            optimizer.step()
        memory.end_pinning()
        device.drain()  # the device is idle when the forward pass is over
        tensors = [*model.parameters(), *model.buffers()]
        tensors += [each for state in optimizer.state.values() for each in state.values()]
        tensors += [bucket.flat for bucket in parallel._gradients._buckets]
        far |= {_place(each) for each in tensors if each.numel()}
        assert model.total.tolist() == [float(step)] * 3 and model.calls.item() == step
    view = peer.view
    assert view is not None and view.is_mixed == (len(view.members) > 1)
    parallel._passes.end()  # hooks keep the model, which would be taken for a copy of the next case's model


def _check(step: int, happened: list[str], read: list[str]) -> None:
    assert "fetch" in happened and "store" in happened, (step, happened)
    is_pinned = "pageable" not in happened or step <= NUM_UNPINNED
    assert is_pinned, f"step {step} waits for a copy of memory that is not pinned: {happened}"
    last_fetch = len(happened) - 1 - happened[::-1].index("fetch")
    first_store = happened.index("store")
    assert "wait" not in happened[:last_fetch], f"step {step} waits before its last copy is begun: {happened}"
    assert "wait" not in happened[first_store:], f"step {step} waits behind its first result: {happened}"
    assert not read, f"step {step} reads the device with {read}"


@contextmanager
def _looked_at(device: Any, step: int, far: set[int]) -> Iterator[None]:
    if isinstance(device, StandIn):
        device.happened.clear()
        with HostReads(far) as reads:
            yield
        if step > NUM_FIRST:
            _check(step, [*device.happened], reads.found)
    else:
        with device.refuses_waits() if step > NUM_FIRST else nullcontext():
            yield


def _place(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr()


def of_kinds(seed: int) -> StandIn:
    device = StandIn(seed)
    device.numerics = f"kind {seed % 2}"
    return device


MODES: Final = ["mean", "check", "rank0", "local"]


def steady(seeds: range, make: Make = of_kinds) -> None:
    """A campaign with buffers and digests by seed: one peer, or two of different numerics classes.

    A GPU has one class: use the first 2 * len(MODES) seeds.

    Raises:
        Wrong: the host waits elsewhere, or has read data that had not arrived yet.
    """
    for seed in seeds:
        mode, digest = MODES[seed % len(MODES)], "all" if seed // len(MODES) % 2 else "part"
        is_mixed = seed >= 2 * len(MODES)
        try:
            script = partial(steps, buffers=mode, state_digest=digest)
            play(script, seeds=[seed, seed + 1] if is_mixed else [seed], make=make)
        except AssertionError as error:
            raise Wrong(f"seed={seed}: {error}") from error
