"""Mutants: each wait of the staging is removed in turn, which a seed detects. `--hunt` looks for other seeds."""

import argparse
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from collectives import Array
from collectives.program import Copy, Publish, Reduce
from p2p.catchup.state_copy import StateCopy
from p2p.device import OVER
from p2p.errors import DeviceLost
from p2p.memory import adding
from p2p.memory.adding import Adding, DeviceSum
from p2p.memory.exchange import Exchange
from p2p.memory.extents import Extents
from p2p.memory.host_memory import HostMemory
from p2p.memory.shared_runner import RunState, SharedRunner
from p2p.session.calls import Calls
from p2p.session.operation_call import StagedCall
from p2p.staging import Staged, whole
from p2p.step.open_step import OpenStep
from p2p.training.rounds.outer import OuterOptimizer
from p2p.training.rounds.outer_on_device import DeviceOuterOptimizer
from p2p.training.state import state_copies
from p2p.training.state.mirrors import Mirror
from p2p.training.state.replica_state import raw_bytes
from p2p.training.state.state_copies import StateCopies
from p2p.training.steps.reducer import GradientReducer
from p2p.training.tensors import staged_buckets
from p2p.training.tensors.staged_buckets import StagedBucket
from tests.p2p.staging.campaign import CAMPAIGNS, Wrong
from tests.p2p.staging.standin import StandIn, Unordered
from tests.p2p.staging.steady import steady
from tests.simulated.mutant import Mutant, mutant, without

NUM_TRIES = 40


@dataclass(frozen=True, slots=True)
class Missing:
    """A removed wait, with the campaign and the seed that detect it."""

    mutant: Mutant
    campaign: str
    seed: int

    @property
    def seeds(self) -> range:
        """Seeds of which one detects it: the thread that copies states is sometimes in time without any wait."""
        return range(self.seed, self.seed + (3 if self.campaign.startswith("states") else 1))


def _missing(campaign: str, seed: int, *patches: tuple[object, str, Any]) -> Missing:
    return Missing(mutant(*patches, breaks="elements"), campaign, seed)


def _go_by_without_a_stream(go_by: Callable[..., None]) -> Callable[..., None]:
    def changed(self: StagedBucket, staged: Staged, verdict: Array) -> None:
        go_by(self, staged, verdict)
        self._stream = None

    return changed


def _nothing(*_: object) -> None:
    pass


def _fetch_after_nothing(self: Staged, *pairs: tuple[Any, Array]) -> None:
    self._fetched = [
        self._device.fetch(source[piece], into[piece], after=[]) for source, into in pairs for piece in self._cut(into)
    ]


def _fetch_after_the_first_mark(self: Staged, *pairs: tuple[Any, Array]) -> None:
    first = vars(self).setdefault("first", self._device.mark())
    self._fetched = [
        self._device.fetch(source[piece], into[piece], after=[first])
        for source, into in pairs
        for piece in self._cut(into)
    ]


def _fetch_the_last_only(self: Staged, *pairs: tuple[Any, Array]) -> None:
    Staged_fetch(self, *pairs)
    del self._fetched[:-1]


def _fetch_the_first_only(self: Staged, *pairs: tuple[Any, Array]) -> None:
    Staged_fetch(self, *pairs)
    del self._fetched[1:]


Staged_fetch = Staged.fetch


def _store_after_nothing(self: Staged, source: Array, into: Any) -> None:
    self._stored = [self._device.store(source[piece], into[piece], after=[]) for piece in self._cut(source)]


def _stored_alone(self: Staged) -> bool:
    return all(mark.is_over() for mark in self._stored)


def _fetched_alone(self: Staged) -> bool:
    return all(mark.is_over() for mark in self._fetched)


def _wait_for_stored(self: Staged) -> None:
    for mark in self._stored:
        mark.wait()


def _wait_for_fetched(self: Staged) -> None:
    for mark in self._fetched:
        mark.wait()


def _without_order(deliver: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Any, *given: Any) -> Any:
        ways = self._staged if isinstance(self._staged, list) else [self._staged]
        for staged in ways:
            staged.order_after_stores = _nothing
        try:
            return deliver(self, *given)
        finally:
            for staged in ways:
                del staged.order_after_stores

    return changed


def _fetch_as_stored_before(fetch: Callable[[StagedBucket], None]) -> Callable[[StagedBucket], None]:
    def changed(self: StagedBucket) -> None:
        before = self._stored_in
        fetch(self)
        self._stored_in = before

    return changed


def _begin_and_wait(self: Mirror, tensors: Any) -> None:
    Mirror_begin(self, tensors)
    if self._staged is not None:
        self._staged.wait()


Mirror_begin = Mirror.begin


def _rest_in_vain(self: GradientReducer) -> None:
    Gradients_rest(self)
    self._resting = -1


Gradients_rest = GradientReducer.begin_digest


def _verdict_on_the_heap(self: StagedBucket, staged: Staged, verdict: Array) -> None:
    StagedBucket_go_by(self, staged, np.zeros_like(verdict))


StagedBucket_go_by = StagedBucket.set_staging


def _read_in_place(self: Mirror) -> Any:
    return [np.frombuffer(raw_bytes(each.detach()), np.uint8) for each in self._tensors]


def _read_at_once(self: Mirror) -> Any:
    staged, self._staged = self._staged, None
    try:
        return Mirror_read(self)
    finally:
        self._staged = staged


Mirror_read = Mirror.read


def _pin_at_once(self: HostMemory, device: Any, arrays: Any, *, is_aside: bool) -> None:
    HostMemory_pin(self, device, arrays, is_aside=False)


HostMemory_pin = HostMemory.pin


def _begin_after_nothing(self: StateCopies, state: Any, after: Any, tell: Any, known: bytes = b"") -> Any:
    return StateCopies_begin(self, state, OVER, tell, known)


StateCopies_begin = StateCopies.begin


def _aside_over(self: StateCopies, tell: Any, copy: Any, then: Any) -> Callable[[], bool]:
    """Does not wait for copies in progress."""
    threading.Thread(target=lambda: (copy(), then()), daemon=True).start()
    return lambda: True


def _arrived_at_once(mark: Any, slot: Array, into: Array) -> tuple[Array, Array]:
    return slot, into


def _settle_without_waiting(*instructions: type) -> Callable[[Exchange], bool]:
    """Work in progress counts as over at these instructions; without any: at the end."""

    def changed(self: Exchange) -> bool:
        there = self._instructions[self._next] if self._next < len(self._instructions) else None
        if (there is None) is bool(instructions) or not isinstance(there, instructions or object):
            return Exchange_settle(self)
        while self._under_way:
            self._has_written(self._under_way.popleft()[1])
        return True

    return changed


Exchange_settle = Exchange._settle


def _settle_despite_errors(self: Exchange) -> bool:
    try:
        return Exchange_settle(self)
    except DeviceLost:
        self._has_written(self._under_way.popleft()[1])
        return False


def _stop_at_once(self: SharedRunner) -> None:
    self.is_broken = True


def _drop_run_alone(self: OpenStep) -> None:
    self.run = None


def _install_at_once(self: HostMemory, view: Any) -> None:
    adding, self._adding = self._adding, None
    try:
        HostMemory_install(self, view)
    finally:
        self._adding = adding
    self._keep_windows()


HostMemory_install = HostMemory.install


def _end_at_once(self: Adding) -> None:
    adder, self.adder = self.adder, None
    Adding_end(self)
    self.adder = adder


Adding_end = Adding.end


def _store_in_front(self: StagedCall, sources: Any, into: Any) -> None:
    for staged, source in zip(self._staged, sources, strict=True):
        staged.store(source, into[: source.size])
        staged.order_after_stores()


def _reach_own_at_once(self: DeviceSum, memory: Any, array: Array) -> Any:
    return DeviceSum_reach(self, memory, array) or (array, range(0))


DeviceSum_reach = DeviceSum._reach


def _advance_and_go_at_once(self: SharedRunner) -> RunState:
    """Does not wait for work in progress when it is interrupted."""
    self.stop = lambda: setattr(self, "is_broken", True)  # type: ignore[method-assign]
    try:
        return SharedRunner_advance(self)
    finally:
        del self.stop


SharedRunner_advance = SharedRunner.advance


def _unpin_own_first(self: HostMemory) -> None:
    adding, self._adding = self._adding, None
    HostMemory_unpin(self)
    self._adding = adding
    HostMemory_unpin(self)


HostMemory_unpin = HostMemory.unpin


def _without_wait(write: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Any, *given: Any) -> Any:
        if self._staged is None:
            return write(self, *given)
        self._staged.wait = _nothing
        try:
            return write(self, *given)
        finally:
            del self._staged.wait

    return changed


def _make_forgetfully(self: Calls, *given: Any, **named: Any) -> Any:
    self._staged.clear()
    return Calls_make(self, *given, **named)


Calls_make = Calls._make


MUTANTS = {
    "a fetch comes after nothing": _missing("calls", 0, (Staged, "fetch", _fetch_after_nothing)),
    "a fetch comes after the first mark": _missing("training", 0, (Staged, "fetch", _fetch_after_the_first_mark)),
    "a store comes after nothing": _missing("calls", 0, (Staged, "store", _store_after_nothing)),
    "the input is not waited for": _missing("calls", 0, (Staged, "wait", _wait_for_stored)),
    "a full bucket is not waited for at the end": _missing("training", 0, (StagedBucket, "wait", _nothing)),
    "the last result is not waited for": _missing("calls", 7, (Staged, "wait", _wait_for_fetched)),
    "an input is ready before it is fetched": _missing("calls", 0, (Staged, "is_ready", _stored_alone)),
    "a bucket is ready before it is fetched": _missing("training", 0, (StagedBucket, "is_ready", lambda self: True)),
    "the gradients are not waited for": _missing("training", 21, (Staged, "fetch", _fetch_the_last_only)),
    "whether they are finite is not waited for": _missing("training", 0, (Staged, "fetch", _fetch_the_first_only)),
    "gradients are handed out before they are stored": _missing(
        "training", 0, (StagedBucket, "result_views", _without_order(StagedBucket.result_views))
    ),
    "results are handed out before they are stored": _missing(
        "calls", 0, (StagedCall, "deliver_result", _without_order(StagedCall.deliver_result))
    ),
    "a result counts as stored since the step before": _missing(
        "training", 0, (StagedBucket, "fetch", _fetch_as_stored_before(StagedBucket.fetch))
    ),
    "what the script keeps is written": _missing("training", 1, (staged_buckets, "num_users", lambda tensor: 0)),
    "copies are not cut where extents end": _missing(
        "calls", 1, (HostMemory, "cut", lambda self, array: whole(array)), (HostMemory, "pin", _pin_at_once)
    ),
    "an extent is unpinned while it is copied": _missing("calls", 0, (StandIn, "wait_for_copies", _nothing)),
    "extents stay pinned": _missing("training", 0, (Extents, "unpin", _nothing)),
    "an update does not come after the copy of a state": _missing(
        "states", 0, (StateCopies, "order_after_copies", _nothing)
    ),
    "an update does not wait for the copy of what is lent": _missing(
        "states of the host", 0, (StateCopies, "order_after_copies", _nothing)
    ),
    "a state counts as copied before it is": _missing("states of the host", 0, (StateCopies, "aside", _aside_over)),
    "a state is fetched after nothing": _missing("states", 0, (StateCopies, "begin", _begin_after_nothing)),
    "a piece of a state is not waited for": _missing("states", 0, (state_copies, "_arrived", _arrived_at_once)),
    "frozen parameters of others are left out": _missing(
        "states of the host", 0, (StateCopy, "_is_like", lambda self, state: True)
    ),
    "a payload is sent before it is fetched": _missing("rounds", 0, (Staged, "wait", _nothing)),
    "a payload is added before it is stored": _missing("rounds", 0, (Staged, "order_after_stores", _nothing)),
    "payloads are written while they are stored": _missing(
        "rounds", 0, (DeviceOuterOptimizer, "apply", OuterOptimizer.apply)
    ),
    "a part is published while it is added up": _missing(
        "sums", 0, (Exchange, "_settle", _settle_without_waiting(Publish))
    ),
    "an operation ends while parts are copied": _missing("sums", 0, (Exchange, "_settle", _settle_without_waiting())),
    "a sum of a device that has failed is published": _missing(
        "lost", 17, (Exchange, "_settle", _settle_despite_errors)
    ),
    "a late sum lands in a region of a later operation": _missing("sums", 2, (SharedRunner, "stop", _stop_at_once)),
    "a step is withdrawn while a part is added up": _missing("sums", 2, (OpenStep, "_drop_run", _drop_run_alone)),
    "a view is left while a part is added up": _missing("sums", 2, (HostMemory, "install", _install_at_once)),
    "memory of others is released while it is read": _missing("sums", 10, (Adding, "end", _end_at_once)),
    "what is not pinned is added up": _missing("sums", 0, (DeviceSum, "_reach", _reach_own_at_once)),
    "sums are not cut where extents end": _missing("sums", 0, (adding, "ends_in", lambda region, extent_bytes: ())),
    "the parts of a tensor are stored in one place": _missing(
        "calls in parts", 1, (StagedCall, "_store", _store_in_front)
    ),
    "what a step shows is waited for where it is begun": _missing("steady", 0, (Mirror, "begin", _begin_and_wait)),
    "a digest is fetched at the end of a step": _missing("steady", 0, (GradientReducer, "begin_digest", _rest_in_vain)),
    "what a step shows is read on the device": _missing("steady", 0, (Mirror, "read", _read_in_place)),
    "what a step shows is read before it is fetched": _missing("steady", 0, (Mirror, "read", _read_at_once)),
    "buffers are written before they are stored": _missing(
        "steady", 0, (Mirror, "write", _without_order(Mirror.write))
    ),
    "gradients of several streams are written on the last one": _missing(
        "streams", 0, (Staged, "beside", lambda self, stream: nullcontext())
    ),
    "a stream does not follow the one that has used a bucket": _missing(
        "streams", 0, (Staged, "order_after_stream", _nothing)
    ),
    "the first stream does not follow the one that has filled a bucket with zeros": _missing(
        "streams", 0, (StagedBucket, "set_staging", _go_by_without_a_stream(StagedBucket.set_staging))
    ),
    "a handle is waited for on another stream": _missing(
        "handles on streams", 1, (Staged, "order_after_stream", _nothing)
    ),
    "a verdict lies where no device copies by itself": _missing(
        "steady", 0, (StagedBucket, "set_staging", _verdict_on_the_heap)
    ),
    "the host adds up what the device still writes": _missing(
        "sums of both", 0, (Exchange, "_settle", _settle_without_waiting(Reduce, Copy))
    ),
    "who is interrupted goes while a part is added up": _missing(
        "sums", 0, (SharedRunner, "advance", _advance_and_go_at_once)
    ),
    "own memory is released while a part is added up": _missing("sums", 10, (HostMemory, "unpin", _unpin_own_first)),
    "memory of who is gone stays registered": _missing("sums", 0, (HostMemory, "_keep_windows", _nothing)),
    "buffers are written where others are still stored": _missing(
        "mirrors", 0, (Mirror, "write", _without_wait(Mirror.write))
    ),
    "a bucket is written while an older step is stored": _missing(
        "training", 21, (StagedBucket, "_write", _without_wait(StagedBucket._write))
    ),
    "a call forgets the copies of the one before": _missing("calls", 7, (Calls, "_make", _make_forgetfully)),
    "an early result is sent from memory that is used again": _missing(
        "calls", 4, (StagedCall, "copy_input", _nothing)
    ),
    "what has come is not written": _missing("training", 0, (torch, "_foreach_copy_", _nothing)),
}


def shows(missing: Missing, seed: int) -> bool:
    """Whether the seed fails without the rule."""
    try:
        with without(missing.mutant):
            (CAMPAIGNS | {"steady": steady})[missing.campaign](range(seed, seed + 1))
    except (Wrong, Unordered):
        return True
    return False


def main() -> int:
    """Print the seed that detects each mutant; returns 1 if one is not detected."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hunt", action="store_true", help="try further seeds")
    torch.set_num_threads(1)
    is_hunted, num_missed = parser.parse_args().hunt, 0
    for name, missing in MUTANTS.items():
        seeds = [*missing.seeds, *(range(NUM_TRIES) if is_hunted else ())]
        seed = next((each for each in seeds if shows(missing, each)), None)
        num_missed += seed is None
        print(f"{name}: {'NOT SEEN' if seed is None else f'{missing.campaign} seed {seed}'}", flush=True)
    print(f"{len(MUTANTS) - num_missed} of {len(MUTANTS)} are seen")
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main())
