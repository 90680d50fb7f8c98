"""The open steps of several peers, and a network in memory that delivers in any order.

Requests of an open step to its core are only recorded: each test decides what the members agree on.
"""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from collectives import BFLOAT16
from gossip import Member, Seat, View
from gossip.progress import Abort
from gossip.progress import Finish as Finished
from p2p.memory.shared_runner import RunState, SharedRunner
from p2p.net.frames import Segment
from p2p.step.agreed_rows import AgreedRows
from p2p.step.collective import AllGather, AllReduce, Barrier, GenericCollective
from p2p.step.effects import DeliverEarly, Disagree, Finish, GiveUp, Leave, SendSegment, StepEffect, Tell
from p2p.step.notices import Admitted, Commit, Notice, Uncommitted
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.runner import MessageRunner, Runner
from p2p.step.submission import Submission
from tests.gossip.members import A, B, C, D, E, view_of
from tests.p2p.memory.machine import Machine

Array = npt.NDArray[Any]

Kind = TypeVar("Kind")

SEGMENT_BYTES = 64
MEMBERS = (A, B, C, D, E)


def only(kind: type[Kind], found: Iterable[object]) -> list[Kind]:
    return [each for each in found if isinstance(each, kind)]


class Peer:
    """One peer: its open step, its script's attempt, and their notices and requests.

    Attributes:
        told: notices to the training thread.
        asked: requests to its core, in the installed view, since the last commit.
    """

    def __init__(self, group: "Group", member: Member) -> None:
        self.member = member
        self.open_step = OpenStep(member, segment_bytes=SEGMENT_BYTES)
        self.attempt = 0
        self.told: list[Notice] = []
        self.asked: list[StepEffect] = []
        self._group = group

    def submit(self, *operations: Operation) -> None:
        for operation in operations:
            self.carry_out(self.open_step.submit(self.open_step.done + 1, self.attempt, operation))

    def close(self, state_digest: bytes = b"") -> None:
        self.carry_out(self.open_step.close(self.attempt, state_digest))

    def withdraw(self) -> None:
        self.carry_out(self.open_step.withdraw(self.open_step.done + 1, self.attempt))
        self.attempt += 1

    def advance(self) -> RunState:
        state, effects = self.open_step.advance()
        self.carry_out(effects)
        return state

    def commit(self, finish: Finish, view: View) -> Commit:
        """Commit a step that all have finished in `view` as this peer has."""
        finished = Finished(finish.step, finish.digest, finish.state_digest, finish.view_number)
        commit = self.open_step.committed(finished, view)
        self.asked, self.attempt = [], self.attempt + 1
        return commit

    def heard(self, kind: type[Kind]) -> list[Kind]:
        """Notices of that kind."""
        return only(kind, self.told)

    @property
    def finish(self) -> Finish | None:
        """The step that it has finished, at most one."""
        found = only(Finish, self.asked)
        assert len(found) <= 1
        return found[0] if found else None

    def carry_out(self, effects: Iterable[StepEffect]) -> None:
        for effect in effects:
            match effect:
                case SendSegment():
                    self._group.send(self, effect)
                case Disagree(said):
                    others = [member for member in self._group.view.members if member != self.member]
                    self._group.in_flight += [(self._group.of(member), (self.member, said)) for member in others]
                case Tell(notice):
                    self.told.append(notice)
                case DeliverEarly(index, view_number):
                    assert view_number == self._group.view.number
                    self.carry_out(self.open_step.deliver_early(index))
                case _:
                    self.asked.append(effect)


class Group:
    """Peers that have founded their swarm together, unless a test defines joiners.

    Attributes:
        members: of the installed view, by their numbers, in rank order.
        in_flight: messages in flight, with their targets.
        joiners: peers that have joined later, in view 2.
    """

    def __init__(self, size: int, seed: int = 0, joiners: Collection[int] = ()) -> None:
        self.rng = random.Random(seed)
        self.all = [Peer(self, member) for member in MEMBERS[:size]]
        for each in self.all:
            each.open_step.loaded(-1, None)
        self.view = view_of(1, A)
        self.members: list[int] = []
        self.in_flight: list[tuple[Peer, Segment | tuple[Member, Abort]]] = []
        self.num_sent = 0
        self.joiners = joiners

    def of(self, member: Member) -> Peer:
        return self.all[MEMBERS.index(member)]

    def send(self, sender: Peer, effect: SendSegment) -> None:
        number, sequence, fingerprint, (rank, transfer, segment, payload) = effect
        assert number == self.view.number
        source = self.view.members.index(sender.member)
        self.num_sent += 1
        sent = Segment(sequence, source, transfer, segment, fingerprint, payload.tobytes())
        self.in_flight.append((self.of(self.view.members[rank]), sent))

    def install(self, *members: int) -> None:
        """Install another view at all members; messages of the last one are dropped."""
        self.in_flight, self.members = [], list(members)
        seats = tuple(Seat(MEMBERS[me], 2 if me in self.joiners else 1) for me in members)
        self.view = replace(view_of(self.view.number + 1, A), seats=seats)
        for me in members:
            self.all[me].asked = []
            self.all[me].carry_out(self.all[me].open_step.installed(self.view))

    def activate(self, *members: int) -> None:
        """Activate the view at all members, or at those named."""
        for me in members or self.members:
            each = self.all[me].open_step
            self.all[me].carry_out(each.activated(self.view, each.done, self.runner(me), founded_in=1))

    def runner(self, me: int) -> Runner:
        return MessageRunner(SEGMENT_BYTES)

    def deliver(self, num_messages: int | None = None) -> None:
        """Deliver `num_messages` messages, or all that there will be."""
        while self.in_flight and num_messages != 0:
            target, message = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
            if isinstance(message, Segment):
                target.carry_out(target.open_step.receive(message))
            else:
                target.carry_out(target.open_step.receive_abort(*message))
            num_messages = None if num_messages is None else num_messages - 1

    def finished(self) -> Finish:
        """The finish of all members; checks that it is the same."""
        (finish,) = {self.all[me].finish for me in self.members}
        assert finish is not None
        return finish

    def commit(self) -> list[Commit]:
        finish = self.finished()
        return [self.all[me].commit(finish, self.view) for me in self.members]

    @property
    def mismatched(self) -> dict[int, str]:
        """Peers that have given the step up, with their reasons."""
        found = {me: only(GiveUp, each.asked) for me, each in enumerate(self.all)}
        return {me: effects[0].reason for me, effects in found.items() if effects}

    @property
    def parted(self) -> set[int]:
        """Peers that go alone."""
        return {me for me, each in enumerate(self.all) if only(Leave, each.asked)}


class SharedGroup(Group):
    """A group whose members can read each other's memory."""

    def __init__(self, machine: Machine, size: int, seed: int = 0) -> None:
        super().__init__(size, seed)
        self._machine = machine
        self._runners: dict[int, SharedRunner] = {}

    def install(self, *members: int, shares: bool = True) -> None:
        runners = self._machine.enter_view(*members)
        self._runners = dict(zip(members, runners, strict=True)) if shares else {}
        super().install(*members)

    def runner(self, me: int) -> Runner:
        return self._runners.get(me) or super().runner(me)

    def deliver(self, num_turns: int | None = None) -> None:
        """Run `num_turns` turns, of a message or of a member, or all until no member advances."""
        idle = set[int]()
        while (self.in_flight or idle != set(self.members)) and num_turns != 0:
            chosen = self.rng.choice([*self.members, *([-1] if self.in_flight else [])])
            before = self._progress()
            if chosen == -1:
                super().deliver(1)
                idle.clear()
            elif self.all[chosen].advance() is RunState.RUNNABLE or self._progress() != before:
                idle.clear()
            else:
                idle.add(chosen)
            num_turns = None if num_turns is None else num_turns - 1

    def _progress(self) -> list[int]:
        return [arena.board.progress[0] for arena in self._machine.host.arenas]


def new_view(size: int, seed: int = 0) -> Group:
    """A group in its first view, active."""
    return enter(Group(size, seed), *range(size))


def shared_view(machine: Machine, size: int, seed: int = 0) -> SharedGroup:
    """The same over shared memory."""
    group = SharedGroup(machine, size, seed)
    enter(group, *range(size))
    return group


def enter(group: Group, *members: int) -> Group:
    """Install and activate a view; checks that there are no other notices."""
    group.install(*members)
    group.activate()
    for me in members:
        group.all[me].told = [notice for notice in group.all[me].told if not isinstance(notice, Admitted)]
    return group


def all_reduce(values: Array, algorithm: str | None = None, op: str = "sum", *, early: bool = False) -> Operation:
    result = np.full_like(values, 77)
    return Operation(AllReduce(op), values, result, values.shape, algorithm, is_uncommitted=early)


def gather(values: Array) -> Operation:
    return Operation(AllGather(), values, values, values.shape, "one-shot")


def moved(kind: str, values: Array, op: str = "sum", root: str = "", algorithm: str | None = None) -> Operation:
    collective = GenericCollective(kind, op, root)
    return Operation(collective, values, np.full_like(values, 77), values.shape, algorithm)


def counts(number: int, first: int = 0) -> Operation:
    values = np.array([first, number, number, 0, 0, 0], np.int64)
    return Operation(AllGather(is_counts=True), values, values, values.shape, "one-shot")


def weighted(values: Array, algorithm: str | None = None) -> Operation:
    collective = AllReduce("mean", is_weighted=True)
    return Operation(collective, values, np.empty_like(values), values.shape, algorithm)


def other_calls(algorithm: str) -> list[Operation]:
    """Operations that each differ from `all_reduce(np.arange(10))` in one property."""
    return [
        all_reduce(np.arange(11)),
        all_reduce(np.arange(10, dtype=np.float32)),
        all_reduce(np.arange(10), algorithm),
        all_reduce(np.arange(10), op="max"),
        all_reduce(np.arange(10), early=True),
        all_reduce(np.arange(10).astype(BFLOAT16)),
        Operation(AllReduce(), np.arange(10), np.arange(10), (2, 5)),
        Operation(Barrier(), np.arange(10), np.arange(10), (10,)),
        gather(np.arange(10)),
        moved("broadcast", np.arange(10), root="a"),
        moved("reduce-scatter", np.arange(10)),
        moved("reduce-scatter", np.arange(10), "max"),
        counts(1),
    ]


def inputs_of(world_size: int, length: int, dtype: type = np.float32) -> list[Array]:
    """Integers, whose sums are exact in any order."""
    rng = np.random.default_rng(length)
    return [rng.integers(-99, 99, length).astype(dtype) for _ in range(world_size)]


def submit_all(group: Group, operations: Sequence[Sequence[Operation]], num_turns: int = 5) -> None:
    """Submit the operations of all members in random order, with up to `num_turns` turns after each."""
    turns = [me for me, own in zip(group.members, operations, strict=True) for _ in own]
    group.rng.shuffle(turns)
    submitted = dict.fromkeys(group.members, 0)
    for me in turns:
        group.all[me].submit(operations[group.members.index(me)][submitted[me]])
        submitted[me] += 1
        group.deliver(group.rng.randrange(num_turns))


def run_step(group: Group, *operations: Operation, state_digest: bytes = b"") -> Finish:
    """Run one operation per member until all have finished the step."""
    for me, operation in zip(group.members, operations, strict=True):
        group.all[me].submit(operation)
        group.all[me].close(state_digest)
    group.deliver()
    return group.finished()


def submit_weighted(
    group: Group, numbers: Sequence[int], gradients: Sequence[Array], algorithm: str | None = None
) -> list[Operation]:
    operations = [weighted(gradient, algorithm) for gradient in gradients]
    for me in group.members:
        group.all[me].submit(counts(numbers[me], first=10 * me), operations[me])
        group.all[me].close()
    return operations


def early_results(peer: Peer) -> list[Operation]:
    """Operations whose results the script got before the commit, since the last call."""
    found = peer.heard(Uncommitted)
    assert all(notice.outcome == notice.operation.outcome for notice in found)
    peer.told = [notice for notice in peer.told if not isinstance(notice, Uncommitted)]
    return [notice.operation for notice in found]


def submission_of(step: int = 0, attempt: int = 0, state_digest: bytes | None = None) -> Submission:
    """The submission of a peer without measurements."""
    return Submission(step, attempt, AgreedRows(Member("a", 1)), state_digest=state_digest)
