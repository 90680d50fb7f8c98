"""Campaigns: random uses of a device's tensors, in two peers, drawn by seeds: `python -m tests.p2p.staging.campaign`.

Elements are small integers, so that the expected bits are known.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from collectives import CODECS
from p2p import DataParallel, Peer
from p2p.catchup.frozen import FrozenDiffer, digest_of
from p2p.device import HOST
from p2p.staging import Staged
from p2p.step import operation
from p2p.training.rounds.outer import OuterConfig, OuterOptimizer
from p2p.training.rounds.outer_on_device import DeviceOuterOptimizer
from p2p.training.state.mirrors import Mirror
from p2p.training.state.replica_state import FlatState
from p2p.training.state.state_copies import NUM_SLOTS, StateCopies
from p2p.training.tensors.layouts import in_memory_order
from p2p.training.tensors.staged_buckets import StagedBucket, make_staged_bucket
from tests.p2p.staging.lent_states import LateCopies, copy_lent_states
from tests.p2p.staging.mirroring import mirror_in_turns
from tests.p2p.staging.on_streams import fill_on_streams, wait_on_streams, watched
from tests.p2p.staging.pair import Make, play
from tests.p2p.staging.standin import StandIn
from tests.p2p.staging.sums import NUM_PEERS as NUM_MEMBERS
from tests.p2p.staging.sums import add_in_turns, group_of, leave_in_the_middle, lose_in_the_middle, play_steps
from tests.simulated.mutant import mutant, without

SIZES = [(0,), (1,), (7,), (7,), (4, 6), (300, 70)]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8]
NUM_PEERS = 2
SLOT_BYTES = 1000
"""Size of the slots through which a state is copied, in pieces."""


class Wrong(AssertionError):
    """A wrong result, with its seed."""


def calls(seeds: range, make: Make = StandIn, *, device_adds: bool = False) -> None:
    """Operations without training."""
    algorithm = "direct" if device_adds else None

    def script(peer: Peer, device: Any) -> None:
        peer.wait_view()
        for seed in seeds:
            _replay(seed, device, partial(_calls, peer, seed, device.where, algorithm))

    play(script, make=make, device_adds=device_adds)


def calls_in_parts(seeds: range, make: Make = StandIn) -> None:
    """Operations without training, of which the longest are split."""
    sizes = (operation, "WHOLE_BYTES", 40_000), (operation, "PART_BYTES", 20_000)
    with without(mutant(*sizes, breaks="nothing")):
        calls(seeds, make)


def training(seeds: range, make: Make = StandIn) -> None:
    """Steps of a model."""

    def script(peer: Peer, device: Any) -> None:
        torch.manual_seed(0)
        model = Model().to(device.where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        parallel = DataParallel(peer, model, optimizer, bucket_bytes=64, nonfinite="skip", state_digest="all")
        for seed in seeds:
            _replay(seed, device, partial(_steps, peer, parallel, model, optimizer, seed))

    play(script, make=make)


def given_up(seeds: range, make: Make = StandIn) -> None:
    """The result of a step may be in flight when the step is given up, and the next one begins in the same buffer."""
    device = make(0)
    bucket = make_staged_bucket(
        [nn.Parameter(torch.zeros(6, device=device.where))], None, device.empty, make_staged=lambda: Staged(device)
    )
    assert bucket.operation.on_complete is not None
    for seed in seeds:
        for step in range(3):
            _replay(seed, device, partial(_fill, bucket, step, device.where))
            bucket.operation.result[...] = -1
            bucket.operation.on_complete(b"a view")
            bucket.begin_step()


def _fill(bucket: StagedBucket, step: int, where: str, _: random.Random) -> None:
    bucket.add(0, torch.full((6,), float(step), device=where), 1.0)
    bucket.fetch()
    bucket.wait()
    assert (bucket.operation.input[:6] == step).all(), (step, bucket.operation.input)


def streams(seeds: range, make: Make = StandIn) -> None:
    """Gradients of one bucket arrive on several streams of the script, and so do its passes."""
    device = make(0)
    parameters = [nn.Parameter(torch.zeros(4, device=device.where)) for _ in range(5)]
    with watched(device):
        bucket = make_staged_bucket(parameters, None, device.empty, make_staged=lambda: Staged(device))
        for seed in seeds:
            _replay(seed, device, partial(fill_on_streams, bucket, device))


def handles(seeds: range, make: Make = StandIn) -> None:
    """Operations of one step are awaited on several streams of the script."""

    def script(peer: Peer, device: Any) -> None:
        peer.wait_view()
        with watched(device):
            for seed in seeds:
                _replay(seed, device, partial(wait_on_streams, peer, device))

    play(script, seeds=[0], make=make)


def states(seeds: range, make: Make = StandIn) -> None:
    """A state is sent to a joiner while the script changes it, after each copy has begun."""
    device, late = make(0), LateCopies()
    slots = [device.empty(SLOT_BYTES, np.dtype(np.uint8)) for _ in range(NUM_SLOTS)]
    copies = StateCopies(device, late.delaying(device.device_of), slots)
    for seed in seeds:
        _replay(seed, device, partial(_copy_states, device, copies, late))
    copies.end()


def _copy_states(device: Any, copies: StateCopies, late: LateCopies, drawn: random.Random) -> None:
    where = device.where
    drawn_ones = [_numbers("zeros", drawn.choice(SIZES), drawn.choice(DTYPES)).to(where) for _ in range(4)]
    tensors = [_strided(each, "turned") for each in drawn_ones]
    gaps = _strided(_numbers("gaps", (30,), torch.float32).to(where), "gaps")
    tensors.append(gaps)
    device.watched = lambda: tensors
    expected, states = [], []
    known: list[tuple[bytes, bytes]] = []
    frozen = drawn.choice([[], [0, 2], [4]])
    for step in range(3):
        for tensor in tensors:
            tensor.fill_(step + 1)  # an update
        late.is_updated.set()
        mark = device.mark()
        late.is_updated.clear()
        for _ in range(drawn.choice([0, 1, 1, 2])):
            now = [in_memory_order(tensor).view(torch.uint8).cpu().numpy().tobytes() for tensor in tensors]
            expected.append(now)
            digest = digest_of([(number, len(now[number])) for number in frozen], [now[number] for number in frozen])
            known.append((drawn.choice([b"", bytes(16), digest]), digest))
            states.append(copies.begin(FlatState(b"a tree", tensors, (), frozen), mark, lambda: None, known[-1][0]))
        copies.order_after_copies()
    late.is_updated.set()
    copies.end()
    for state, wanted, (said, digest) in zip(states, expected, known, strict=True):
        kept = {*frozen} if said else set()
        try:
            assert state.is_whole is not None and state.is_whole() and (not kept or said == digest)
            assert all(number in kept or bytes(part) == wanted[number] for number, part in enumerate(state.tensors))
        except FrozenDiffer:
            assert kept and said != digest


def states_of_the_host(seeds: range, make: Make = StandIn) -> None:
    """The same for a state in memory of the host, of which donors copy all, or a share."""
    copies = StateCopies(HOST, lambda tensor: HOST, ())
    for seed in seeds:
        _replay(seed, make(0), partial(_copy_lent_states, copies))
    copies.end()


def _copy_lent_states(copies: StateCopies, drawn: random.Random) -> None:
    tensors = [_numbers("zeros", drawn.choice(SIZES), drawn.choice(DTYPES)) for _ in range(4)]
    copy_lent_states(copies, [*tensors, _numbers("large", (60_000,), torch.float32)], drawn)


def mirrors(seeds: range, make: Make = StandIn) -> None:
    """Parts of a replica that a step mirrors, and tensors that are created from them."""

    def script(peer: Peer, device: Any) -> None:
        mirror = Mirror(peer._session, device)
        for seed in seeds:
            _replay(seed, device, partial(mirror_in_turns, mirror, device))
        mirror.forget()

    play(script, seeds=[0], make=make)


def rounds(seeds: range, make: Make = StandIn) -> None:
    """One replica on a device, and one on the host."""
    device = make(0)
    for seed in seeds:
        _replay(seed, device, partial(_rounds, device))


def _rounds(device: Any, drawn: random.Random) -> None:
    config = OuterConfig(codec=drawn.choice([*CODECS]))
    generator = torch.Generator().manual_seed(drawn.randrange(1 << 32))
    places = "cpu", device.where
    models = [
        {"weight": torch.zeros(700, device=each), "bias": torch.zeros(40, dtype=torch.bfloat16, device=each)}
        for each in places
    ]
    host, there = (
        OuterOptimizer(models[0], config),
        DeviceOuterOptimizer(models[1], config, Staged(device), device.empty),
    )
    for _ in range(2):
        for name, value in models[0].items():
            value += torch.randn(value.shape, generator=generator)
            models[1][name].copy_(value)
        sent = [outer.payloads() for outer in (host, there)]
        assert [each.tobytes() for each in sent[0]] == [each.tobytes() for each in sent[1]]
        gathered = [np.stack(rows) for rows in zip(*sent, strict=True)]
        for rank, outer in enumerate((host, there)):
            outer.apply(gathered, [3, 5], rank)
        for rows in gathered:
            rows.fill(255)  # the buffer is reused
        assert host.anchor.tobytes() == there.anchor.cpu().numpy().tobytes()
        assert all(torch.equal(models[0][name], models[1][name].cpu()) for name in models[0])


def sums(seeds: range, make: Make = StandIn) -> None:
    """Several peers in one thread, whose devices compute sums."""
    with group_of(make) as group:
        for seed in seeds:
            for index, device in enumerate(group.devices):
                device.begin(NUM_MEMBERS * seed + index)
            _replay(seed, group.devices[0], partial(play_steps, group))
    for seed in seeds:
        with group_of(make) as group:
            _replay(seed, group.devices[0], partial(leave_in_the_middle, group))


def lost(seeds: range, make: Make = StandIn) -> None:
    """A device fails while it computes sums."""
    for seed in seeds:
        with group_of(make) as group:
            for index, device in enumerate(group.devices):
                device.begin(NUM_MEMBERS * seed + index)
            _replay(seed, group.devices[0], partial(lose_in_the_middle, group))


def sums_of_both(seeds: range, make: Make = StandIn) -> None:
    """Sums of one chunk, partly by a device and partly by the host."""
    device = make(0)
    for seed in seeds:
        _replay(seed, device, partial(add_in_turns, device))


CAMPAIGNS: dict[str, Callable[..., None]] = {
    "calls": calls,
    "training": training,
    "given up": given_up,
    "streams": streams,
    "handles on streams": handles,
    "states": states,
    "states of the host": states_of_the_host,
    "mirrors": mirrors,
    "rounds": rounds,
    "calls in parts": calls_in_parts,
    "sums": sums,
    "sums of both": sums_of_both,
    "lost": lost,
    "calls that a device adds up": partial(calls, device_adds=True),
}


OF_STAND_INS = ("lost",)
"""Campaigns that need the stand-in, since a GPU cannot be made to fail."""


def _replay(seed: int, device: Any, act: Callable[[random.Random], None]) -> None:
    device.begin(seed)
    try:
        act(random.Random(seed))
    except BaseException as error:
        raise Wrong(f"seed={seed}: {type(error).__name__}: {error}") from error


# Calls


def _calls(peer: Peer, seed: int, where: str, algorithm: str | None, drawn: random.Random) -> None:
    for turn in range(6):
        mode = drawn.choice(["alone", "alone", "early", "async", "block", "out"])
        number = drawn.randrange(1, 4) if mode in ("async", "block") else 1
        cases = [_Case(drawn, f"{seed} {turn} {index}", peer.rank, where) for index in range(number)]
        if mode == "async":
            handles = [peer.all_reduce(case.tensor, algorithm=algorithm, op=case.op, async_op=True) for case in cases]
            drawn.choice([peer.wait, *(handle.wait for handle in handles)])()
        elif mode == "block":
            with peer.step(samples=1):
                for case in cases:
                    peer.all_reduce(case.tensor, algorithm=algorithm, op=case.op)
        elif mode == "out":
            (case,) = cases
            before, out = case.tensor.clone(), torch.empty(case.tensor.shape, dtype=case.tensor.dtype, device=where)
            peer.all_reduce(case.tensor, algorithm=algorithm, op=case.op, out=out)
            assert torch.equal(case.tensor, before)
            case.tensor = out
        else:
            peer.all_reduce(cases[0].tensor, algorithm=algorithm, op=cases[0].op, commit=mode == "alone")
        for case in cases:
            case.check(mode)
    peer.barrier()


class _Case:
    def __init__(self, drawn: random.Random, name: str, rank: int, where: str) -> None:
        shape, dtype = drawn.choice(SIZES), drawn.choice(DTYPES)
        self.op = drawn.choice(["sum", "mean", "max"] if dtype.is_floating_point else ["sum", "max"])
        every = [_numbers(f"{name} {each}", shape, dtype).to(where) for each in range(NUM_PEERS)]
        self.tensor = _strided(every[rank], drawn.choice(["dense", "gaps", "turned"]))
        total = torch.stack(every).double()
        found = total.max(0).values if self.op == "max" else total.sum(0) / (NUM_PEERS if self.op == "mean" else 1)
        self.expected = found.to(dtype)

    def check(self, mode: str) -> None:
        assert torch.equal(self.tensor, self.expected), (mode, self.op, self.tensor, self.expected)


def _numbers(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(random.Random(name).randrange(1 << 32))
    return torch.randint(0, 60, shape, generator=generator).to(dtype)


def _strided(tensor: Tensor, how: str) -> Tensor:
    if how == "gaps":
        wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype, device=tensor.device)
        wide[..., 0] = tensor
        return wide[..., 0]
    return tensor.t().contiguous().t() if how == "turned" and tensor.ndim == 2 else tensor


# Training


class Model(nn.Module):
    """A model with parameters in other memory orders, and some that not every batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            [
                nn.Parameter(torch.randn(5, 3)),
                nn.Parameter(torch.randn(3, 5).t()),
                nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)),
                nn.Parameter(torch.randn(9)),
                nn.Parameter(torch.randn(1)),
            ]
        )

    def forward(self, factors: list[Tensor | None]) -> Tensor:
        used = [(w * f).sum() for w, f in zip(self.weights, factors, strict=True) if f is not None]
        return torch.stack(used).sum()


def _factors(model: Model, name: str) -> list[Tensor | None]:
    """The gradients of a loss; some parameters have none."""
    drawn = random.Random(name)
    found: list[Tensor | None] = [
        _numbers(f"{name} {index}", tuple(w.shape), w.dtype).to(w.device) if drawn.random() < 0.8 else None
        for index, w in enumerate(model.weights)
    ]
    found[drawn.randrange(len(found))] = torch.ones((), device=model.weights[0].device)
    return found


def _steps(
    peer: Peer, parallel: Any, model: Model, optimizer: torch.optim.Optimizer, seed: int, drawn: random.Random
) -> None:
    kept: list[tuple[Tensor, Tensor]] = []
    for turn in range(4):
        if is_zeroed := drawn.random() < 0.4:  # gradients are zeroed in place
            kept = [(each, before) for each, before in kept if all(w.grad is not each for w in model.weights)]
        optimizer.zero_grad(set_to_none=not is_zeroed)
        num_passes, spoilt = drawn.choice([1, 1, 2]), drawn.choice([None, None, None, 0, 1])
        every = [
            [_factors(model, f"{seed} {turn} {rank} {each}") for each in range(num_passes)] for rank in range(NUM_PEERS)
        ]
        for factors in every[peer.rank][1:]:
            with parallel.no_sync():
                parallel(factors).backward()
        is_spoilt = spoilt == peer.rank
        (parallel(every[peer.rank][0]) * (float("inf") if is_spoilt else 1.0)).backward()
        counted = [passes for rank, passes in enumerate(every) if rank != spoilt]
        for parameter, expected in zip(model.weights, _means(model, counted), strict=True):
            gradient = parameter.grad
            if is_zeroed and num_passes > 1 and expected is None:  # accumulated into zeros
                expected = torch.zeros_like(parameter)
            assert (gradient is None) == (expected is None), (turn, gradient, expected)
            if gradient is not None and expected is not None:
                assert torch.equal(gradient, expected), (turn, gradient, expected)
                assert gradient.stride() == parameter.stride()
                if drawn.random() < 0.2:
                    kept.append((gradient, gradient.clone()))
        optimizer.step()
        assert all(torch.equal(each, before) for each, before in kept)
        kept = kept[-2:]


def _means(model: Model, counted: list[list[list[Tensor | None]]]) -> Iterator[Tensor | None]:
    for index, parameter in enumerate(model.weights):
        found = [factors[index] for passes in counted for factors in passes]
        there = [each.expand_as(parameter) for each in found if each is not None]
        yield torch.stack(there).sum(0) / len(counted) if there else None


def main() -> int:
    """Run all campaigns; ends with the first wrong seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, campaign in CAMPAIGNS.items():
        campaign(range(given.first, given.first + given.seeds))
        print(f"{name}: {given.seeds} seeds from {given.first} on, all elements right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
