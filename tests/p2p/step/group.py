"""The operations of several members of a view, and what they send each other."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives import BFLOAT16, Outgoing
from p2p.memory.shared_runner import RunState, SharedRunner
from p2p.net.frames import Segment
from p2p.step.operations import Operation, Operations, Use
from tests.p2p.memory.machine import Machine

Array = npt.NDArray[Any]

SEGMENT_BYTES = 64


class Group:
    """The operations of several members, and a network in memory that delivers in any order."""

    def __init__(self, size: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.in_flight: list[tuple[int, Segment]] = []
        self.num_sent = 0
        self.mismatched: list[tuple[int, int]] = []
        self.all = [
            Operations(partial(self._send, me), partial(self._mismatch, me), segment_bytes=SEGMENT_BYTES)
            for me in range(size)
        ]
        self.members: list[int] = []

    def _send(self, me: int, sequence: int, fingerprint: bytes, outgoing: Outgoing) -> None:
        payload = outgoing.payload.tobytes()
        source = self.members.index(me)
        segment = Segment(sequence, source, outgoing.transfer, outgoing.segment, fingerprint, payload)
        self.num_sent += 1
        self.in_flight.append((self.members[outgoing.peer], segment))

    def _mismatch(self, me: int, index: int, source: int) -> None:
        assert source != me
        self.mismatched.append((me, index))

    def install(self, *members: int) -> None:
        """Another view, of which all have heard: what was under way in the last one is dropped."""
        self.in_flight, self.members = [], list(members)
        for me in members:
            self.all[me].install()

    def activate(self, *members: int) -> None:
        """All of them, or those named."""
        for me in members or self.members:
            self.all[me].activate(self.members.index(me), len(self.members))

    def deliver(self, num_segments: int | None = None) -> None:
        """That many segments, or all there will be."""
        while self.in_flight and num_segments != 0:
            target, segment = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
            self.all[target].receive(segment)
            num_segments = None if num_segments is None else num_segments - 1

    def finished(self) -> tuple[int, bytes, bytes]:
        """What all members have finished: the same."""
        (finished,) = {self.all[me].finished() for me in self.members}
        assert finished is not None
        return finished

    def end(self) -> None:
        for me in self.members:
            self.all[me].end()


class SharingGroup(Group):
    """A group whose members can read each other's memory."""

    def __init__(self, machine: Machine, size: int, seed: int = 0) -> None:
        super().__init__(size, seed)
        self._machine = machine
        self._sharings: dict[int, SharedRunner] = {}

    def install(self, *members: int, shares: bool = True) -> None:
        super().install(*members)
        sharings = self._machine.enter_view(*members)
        self._sharings = dict(zip(members, sharings, strict=True)) if shares else {}

    def activate(self, *members: int) -> None:
        for me in members or self.members:
            self.all[me].activate(self.members.index(me), len(self.members), self._sharings.get(me))

    def deliver(self, num_turns: int | None = None) -> None:
        """So many turns, of a segment or of a member, or all until nobody goes on."""
        done = set[int]()
        while (self.in_flight or done != set(self.members)) and num_turns != 0:
            chosen = self.rng.choice([*self.members, *([-1] if self.in_flight else [])])
            before = self._progress()
            if chosen == -1:
                super().deliver(1)
                done.clear()
            elif self.all[chosen].advance() is RunState.BUSY or self._progress() != before:
                done.clear()
            else:
                done.add(chosen)
            num_turns = None if num_turns is None else num_turns - 1

    def _progress(self) -> list[int]:
        return [arena.board.progress(0)[0] for arena in self._machine.host.arenas]


def new_view(size: int, seed: int = 0) -> Group:
    """A group in its first view, active."""
    group = Group(size, seed)
    group.install(*range(size))
    group.activate()
    return group


def all_reduce(values: Array, algorithm: str | None = None, op: str = "sum") -> Operation:
    return Operation("all_reduce", values, np.full_like(values, 77), values.shape, algorithm, op=op)


def counts(number: int, first: int = 0) -> Operation:
    values = np.array([first, number], np.int64)
    return Operation("all_gather", values, values, values.shape, "one-shot", Use.COUNTS)


def weighted(values: Array, algorithm: str | None = None) -> Operation:
    result, scratch = np.empty_like(values), values.copy()
    return Operation("all_reduce", values, result, values.shape, algorithm, Use.WEIGHTED, scratch, op="mean")


def other_calls(algorithm: str) -> list[Operation]:
    """What is not `all_reduce(np.arange(10))`, in one way each."""
    return [
        all_reduce(np.arange(11)),
        all_reduce(np.arange(10, dtype=np.float32)),
        all_reduce(np.arange(10), algorithm),
        all_reduce(np.arange(10), op="max"),
        all_reduce(np.arange(10).astype(BFLOAT16)),
        Operation("all_reduce", np.arange(10), np.arange(10), (2, 5), None),
        Operation("barrier", np.arange(10), np.arange(10), (10,), None),
        counts(1),
    ]


def inputs_of(world_size: int, length: int, dtype: type = np.float32) -> list[Array]:
    """Whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(length)
    return [rng.integers(-99, 99, length).astype(dtype) for _ in range(world_size)]


def submit_weighted(
    group: Group, numbers: Sequence[int], gradients: Sequence[Array], algorithm: str | None = None
) -> list[Operation]:
    operations = [weighted(gradient, algorithm) for gradient in gradients]
    for me in group.members:
        group.all[me].submit(0, counts(numbers[me], first=10 * me))
        group.all[me].submit(0, operations[me])
        group.all[me].close(0, b"")
    return operations
