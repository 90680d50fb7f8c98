"""A peer that calls what a seed draws, in each step something else, and compares the results with plain numpy.

    exchanged.py SEED LAST_STEP ARENA_BYTES

All peers call the same. Each for itself draws where its tensors lie, and what else is so in its thread.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any

import numpy as np
import torch

import p2p
from collectives import BFLOAT16, as_bits, even_chunks, split_by_weight
from p2p.session.operation_call import OperationArgs, OperationCall
from p2p.step.collective import AllReduce
from tests.live.exchange_values import Array, Drawn, draw, expected, is_same, type_of, values_of

MODES = ("alone", "alone", "early", "asynchronous", "block", "block", "barrier")
SAMPLES = (0, 1, 1, 2, 3, 7)
LAYOUTS = ("heap", "heap", "arena", "strided", "transposed", "backwards")


class Withdrawn(Exception):
    """Ends a block."""


@contextmanager
def surroundings(rng: Random) -> Iterator[None]:
    """What scripts have around a call, and what should change nothing in it."""
    with ExitStack() as stack:
        chosen = rng.sample(("flush", "raise", "warn", "inference", "elsewhere", "dtype"), rng.randrange(4))
        if "flush" in chosen:
            torch.set_flush_denormal(True)
            stack.callback(torch.set_flush_denormal, False)
        if "raise" in chosen:
            stack.enter_context(np.errstate(all="raise"))
        if "warn" in chosen:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("error")
        if "inference" in chosen:
            stack.enter_context(torch.inference_mode())
        if "elsewhere" in chosen:
            stack.enter_context(torch.device("meta"))
        if "dtype" in chosen:
            torch.set_default_dtype(torch.float64)
            stack.callback(torch.set_default_dtype, torch.float32)
        yield


class Place:
    """A tensor somewhere.

    Attributes:
        array: its elements.
        tensor: what is passed to a call: of torch, or the array.
        around: elements of the same memory, which nobody may write.
    """

    def __init__(self, peer: p2p.Peer, call: Drawn, values: Array, rng: Random, *, is_dense: bool = False) -> None:
        dtype, shape, size = type_of(call.name), call.shape, call.size
        layout = rng.choice(LAYOUTS[:3] if is_dense else LAYOUTS)
        gap = rng.choice((0, 1, 5))
        self.around: list[Array] = []
        if layout in ("heap", "arena"):
            whole = np.empty(size + 2 * gap, dtype)
            if layout == "arena":
                whole = array_of(peer.empty(whole.size, dtype=getattr(torch, call.name)))
            self.array, self.around = whole[gap : gap + size].reshape(shape), [whole[:gap], whole[gap + size :]]
        elif layout == "strided":
            whole = np.empty((*shape, 3), dtype)
            self.array, self.around = whole[..., 1], [whole[..., 0], whole[..., 2]]
        elif layout == "transposed":
            self.array = np.empty(shape[::-1], dtype).T
        else:
            self.array = np.empty(shape, dtype)[::-1] if shape else np.empty(shape, dtype)
        is_torch = dtype == BFLOAT16 or (layout != "backwards" and rng.random() < 0.6)
        if is_torch and min(self.array.strides, default=0) < 0:
            self.array = np.empty(shape, dtype)
        for each in self.around:
            as_bits(each)[...] = 1
        as_bits(self.array)[...] = as_bits(values).reshape(shape)
        self.tensor = self._of_torch() if is_torch else self.array

    def _of_torch(self) -> Any:
        if self.array.dtype == BFLOAT16:
            return torch.from_numpy(self.array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(self.array)

    def holds(self) -> Array:
        """Its elements, in one dimension, once nothing beside them has changed."""
        assert all((as_bits(each) == 1).all() for each in self.around), "what lies beside it was written"
        return np.ascontiguousarray(self.array).reshape(-1)


def array_of(result: Any) -> Array:
    if isinstance(result, np.ndarray):
        return result
    if result.dtype == torch.bfloat16:
        return np.asarray(result.view(torch.int16).numpy().view(BFLOAT16))
    return np.asarray(result.numpy())


class Call:
    """One call of a step."""

    def __init__(self, peer: p2p.Peer, call: Drawn, key: tuple[int, ...], rng: Random) -> None:
        self._peer, self._call, self._key = peer, call, key
        self._values = values_of(call, *key, peer.peer_id)
        self._place = Place(peer, call, self._values, rng)
        view = peer.view
        assert view is not None
        self._root = view.members[0].peer_id
        takes_out = call.what in ("all_reduce", "broadcast") and not call.is_weighted and rng.random() < 0.35
        self._out = Place(peer, call, np.zeros_like(self._values), rng, is_dense=True) if takes_out else None
        self._result: Any = None

    def begin(self, **how: Any) -> None:
        peer, call, tensor = self._peer, self._call, self._place.tensor
        out: dict[str, Any] = {} if self._out is None else {"out": self._out.tensor}
        if call.is_weighted:  # as a model's buckets are
            asked = OperationArgs(AllReduce("mean", is_weighted=True), call.algorithm)
            block = peer._calls._block
            assert block is not None
            block.add(OperationCall(tensor, asked, peer._session.empty))
        elif call.what == "all_reduce":
            self._result = peer.all_reduce(tensor, op=call.op, algorithm=call.algorithm, **out, **how)
        elif call.what == "broadcast":
            self._result = peer.broadcast(tensor, root=self._root, algorithm=call.algorithm, **out, **how)
        elif call.what == "all_gather":
            self._result = peer.all_gather(tensor, algorithm=call.algorithm, **how)
        else:
            self._result = peer.reduce_scatter(tensor, op=call.op, algorithm=call.algorithm, **how)

    def is_untouched(self) -> bool:
        return self._place.holds().tobytes() == self._values.tobytes()

    def overwrite(self) -> None:
        """As a script may that goes on: others may still read the tensor."""
        as_bits(self._place.array)[...] = 0

    def is_right(self, members: Sequence[str], algorithm: str, weights: Sequence[int]) -> bool:
        """Whether this peer has what comes of it, where these were counted."""
        call, place = self._call, self._out or self._place
        inputs = [values_of(call, *self._key, peer_id) for peer_id in members]
        rank = members.index(self._peer.peer_id)
        if call.what == "broadcast" and self._root not in members:
            return self.is_untouched()
        result = self._result.wait() if isinstance(self._result, p2p.Handle) else self._result
        is_written = call.what in ("all_reduce", "broadcast") and self._out is None
        if not (is_written or self.is_untouched()):
            return False
        if call.what == "broadcast":
            return place.holds().tobytes() == inputs[members.index(self._root)].tobytes()
        if call.what == "all_gather":
            rows = array_of(result)
            assert rows.shape == (len(members), *call.shape), rows.shape
            return np.ascontiguousarray(rows).tobytes() == b"".join(each.tobytes() for each in inputs)
        wanted = expected(call, algorithm, inputs, weights, rank)
        if call.what == "all_reduce":
            return is_same(place.holds(), wanted)
        share, where = result
        assert where == split_by_weight(call.size, even_chunks(len(members)))[rank], where
        return is_same(array_of(share), wanted[where])

    def __str__(self) -> str:
        return f"{self._call}, {self._place.array.strides}, out {self._out is not None}"


def samples_of(seed: int, step: int, peer_id: str) -> int:
    return 2 if Random(f"{seed} {step} samples").random() < 0.3 else Random(f"{seed} {step} {peer_id}").choice(SAMPLES)


def make(peer: p2p.Peer, seed: int, mode: str, calls: list[Call], rng: Random) -> None:
    """One step of all calls.

    Raises:
        Withdrawn: it is given up here.
    """
    if mode == "barrier":
        peer.barrier()
    elif mode == "alone":
        calls[0].begin()
    elif mode == "early":
        for call in calls:
            with suppress(p2p.RootLost):
                call.begin(commit=False)
        peer.barrier()
    elif mode == "asynchronous":
        for call in calls:
            call.begin(async_op=True)
        peer.wait()
    else:
        gives_up = rng.random() < 0.06
        with peer.step(samples=samples_of(seed, peer.last_step, peer.peer_id)):
            for call in calls:
                call.begin()
                if gives_up and rng.random() < 0.5:
                    raise Withdrawn
            if gives_up:
                raise Withdrawn


def take_step(peer: p2p.Peer, seed: int, rng: Random) -> None:
    """The one behind the last that is committed."""
    step = peer.last_step
    drawn = Random(f"{seed} {step}")
    mode = drawn.choice(MODES)
    number = {"alone": 1, "barrier": 0}.get(mode, drawn.randrange(1, 6))
    plan = [draw(drawn, has_samples=mode == "block") for _ in range(number)]
    calls = [Call(peer, each, (seed, step, index), rng) for index, each in enumerate(plan)]
    try:
        with surroundings(rng):
            make(peer, seed, mode, calls, rng)
    except p2p.RootLost:
        pass
    except (Withdrawn, p2p.OperationInterrupted) as error:
        assert mode == "early" or all(call.is_untouched() for call in calls), "tensors are as they were"
        for call in calls:
            call.overwrite()
        print(type(error).__name__, flush=True)
        return
    except p2p.RemovedFromView:
        print("removed", flush=True)
        peer.wait_view()
        return
    receipt = peer.receipt
    assert receipt is not None and receipt.step == peer.last_step == step + 1
    members = [each.peer_id for each in receipt.contributions]
    weights = [each.weight for each in receipt.contributions]
    assert mode != "block" or weights == [samples_of(seed, step, each) for each in members], weights
    for call, algorithm in zip(calls, receipt.algorithms, strict=False):  # some end with a barrier
        assert call.is_right(members, algorithm, weights), f"step {step + 1}, {mode}, {algorithm}: {call}"
    print("step", peer.last_step, flush=True)


def main(seed: int, last_step: int, arena_bytes: int) -> None:
    torch.set_num_threads(1)
    with p2p.join(arena_bytes=arena_bytes) as peer:
        print("here", peer.peer_id, flush=True)
        rng = Random(f"{seed} {peer.peer_id}")
        peer.wait_view()
        try:
            while peer.last_step < last_step:
                take_step(peer, seed, rng)
        except p2p.OperationMismatch as error:
            # As it joined, rank 0 of its view was another peer than in the last step of the others.
            assert str(error).count("broadcast from peer") == 2, error
            print("another root", flush=True)
            return
        print("end", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
