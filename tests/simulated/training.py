"""What a simulated peer trains: steps of two operations, over messages or lent memory; no numbers, only who added what.

The open step is the machine that ships (p2p.step); here are its script, and a runner whose operations move *tokens*. An
operation is complete when the inputs of all members are there: each member adds them all, or (two phases) each adds up
its chunk and the others fetch that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np

from collectives import Awaited, Outgoing
from gossip import Member, Stamp, View
from gossip.progress import NOTHING_DONE, Finish
from p2p.errors import OperationInterrupted, OperationMismatch
from p2p.memory.shared_runner import RunState
from p2p.net.frames import Segment
from p2p.step.collective import AllReduce
from p2p.step.notices import Admitted, Commit, Notice, Uncommitted, Withdrawn
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation, Task
from p2p.step.transitions import Stage

from .memory import Arena, Region, Tokens

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer

NUM_OPERATIONS = 2
Results = tuple[tuple[Tokens, ...], ...]
"""Per operation, per chunk: whose inputs are in it."""

OTHER: Final = " of another shape"
"""In the token of an operation that was called wrongly."""

NUMBER: Final = np.zeros(1, np.int64)
"""What every operation adds, as far as the machine knows."""


@dataclass(frozen=True, slots=True)
class Part:
    """A data frame: what one member adds to an operation, or has added up.

    Attributes:
        region: where it is in the sender's memory.
        tokens: None is a reference: it is read there.
        sequence: of the operation in its view; `fingerprint`: of it, both as the machine sends them.
    """

    sender: Member
    stamp: Stamp
    step: int
    operation: int
    region: Region
    tokens: Tokens | None
    sequence: int = 0
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A data frame: the state after `step`; `digest` is of the chain up to it, `members` are on its receipt."""

    donor: Member
    stamp: Stamp
    step: int
    digest: bytes
    state: bytes
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fed:
    """A data frame: a committed step, for an observer."""

    step: int
    previous: bytes
    digest: bytes
    result: bytes
    members: tuple[str, ...]


@lru_cache(maxsize=256)
def digest_of(results: Results) -> bytes:
    return blake2b(repr(results).encode(), digest_size=16).digest()


def state_after(state: bytes, result: bytes) -> bytes:
    """An optimizer step."""
    return blake2b(state + result, digest_size=8).digest()


class TokenRunner:
    """The operations of one view."""

    def __init__(self, training: "Training", view: View, rank: int) -> None:
        self.outgoing: list[tuple[int, Outgoing]] = []
        self.complete: dict[int, tuple[Tokens, ...]] = {}
        self._training = training
        self._view = view
        self._rank = rank
        self._arrived: dict[Region, dict[int, Tokens]] = {}
        self._tasks: list[Task] = []
        self._gets_on = False

    def start(self, index: int, task: Task) -> None:
        self._tasks.append(task)
        token = self._training.contributes(self._view, index)
        self._add(("input", index), self._rank, (token,))
        self._tell(("input", index), (token,))

    def _tell(self, region: Region, tokens: Tokens) -> None:
        training, index = self._training, region[1]
        stamp, step = self._view.stamp, training.open_step.done + 1
        part = Part(training.member, stamp, step, index, region, tokens)
        others = (rank for rank in range(len(self._view.members)) if rank != self._rank)
        self.outgoing += [(index, Outgoing(rank, 0, 0, part)) for rank in others]  # type: ignore[arg-type]

    def receive(self, index: int, segment: Segment) -> None:
        part = segment.payload
        assert isinstance(part, Part)
        if part.tokens is None:
            self._training.read_later(self, segment.source, part)
        else:
            self._add(part.region, segment.source, part.tokens)

    def read(self, rank: int, part: Part) -> None:
        """Read lent memory, then look at the lender's tag: another one makes what was read void."""
        tokens, tag = self._training.memory_of(part.sender).read(part.region)
        if tag == part.stamp.hash[:8]:
            self._add(part.region, rank, tokens)
        else:
            self._training.seen("void reads")

    def _add(self, region: Region, rank: int, tokens: Tokens) -> None:
        arrived = self._arrived.setdefault(region, {})
        arrived[rank] = tokens
        if len(arrived) < len(self._view.members):
            return
        index = region[1]
        parts = tuple(arrived[each] for each in range(len(self._view.members)))
        if region[0] == "input":
            total = tuple(token for part in parts for token in part)
            if self._training.has_two_phases and len(parts) > 1:
                self._training.arena.write(("result", index), total)
                self._tell(("result", index), total)
                self._add(("result", index), self._rank, total)
                return
            parts = (total,)
        self.complete[index] = parts
        self._gets_on = True

    def advance(self) -> RunState:
        gets_on, self._gets_on = self._gets_on, False
        return RunState.BUSY if gets_on else RunState.IDLE

    def is_complete(self, index: int) -> bool:
        return index in self.complete

    def digest(self, index: int) -> bytes:
        return repr(self.complete[index]).encode()

    def missing(self, index: int) -> Sequence[Awaited]:
        return ()

    def end_step(self) -> None:
        self.complete, self._arrived, self._tasks = {}, {}, []


class Training:
    """One peer's script and state, and the machine of its open step."""

    def __init__(self, peer: "Peer", world: "Simulation", rng: Random, arena: Arena) -> None:
        self.member = peer.member
        self.open_step = OpenStep(peer.member, segment_bytes=8)
        self.arena = arena
        self.done = NOTHING_DONE
        self.state = b""
        self.fed: dict[tuple[int, bytes], Fed] = {}
        self.states: dict[tuple[int, bytes], Snapshot] = {}
        self.results: dict[int, bytes] = {}
        self.members: tuple[str, ...] = ()
        self.handed_out: tuple[Tokens, ...] = ()
        self.finished: Results = ()
        self.calls_wrong = ""
        self.catches_nothing = False
        self.follows = False
        self.goes_on_with = ""
        self.num_told = 0
        self._peer = peer
        self._world = world
        self._rng = rng
        self._inputs: dict[int, str] = {}
        self._attempt = 0
        self._num_submitted = 0
        self._computing: int | None = None
        self._suffix = ""
        self._is_interrupted = False

    # What the runner asks.

    @property
    def has_two_phases(self) -> bool:
        return self._world.plan.two_phase

    def seen(self, what: str) -> None:
        self._world.invariants.seen[what] += 1

    def memory_of(self, member: Member) -> Arena:
        return self._world.peers[member].arena

    def contributes(self, view: View, index: int) -> str:
        """The token of an operation that starts in this view."""
        token = self._inputs[index]
        self._world.invariants.contributed(self.member, view.stamp, self.open_step.done + 1, index, token)
        return token

    def read_later(self, runner: TokenRunner, rank: int, part: Part) -> None:
        """Whoever is given a reference reads when it comes round to it."""
        world = self._world
        if not world.plan.late_read_s:
            runner.read(rank, part)
            return
        delay_s = self._rng.random() * world.plan.late_read_s
        if self._rng.random() < 0.05:
            delay_s *= 5
        if delay_s > 0.3:
            world.faults.on_slow_read(self._peer)
        world.clock.after(delay_s, self._peer, "read", self._read, runner, rank, part)

    def _read(self, runner: TokenRunner, rank: int, part: Part) -> None:
        if self.open_step.runner is runner and part.step == self.open_step.done + 1:
            runner.read(rank, part)
            self._peer.advance()

    # The script.

    def hear(self, notice: Notice) -> None:
        """What the training thread makes of what the loop tells it."""
        match notice:
            case Admitted():
                self._begin()
            case Commit():
                self._start_anew("")
            case Uncommitted():
                pass
            case Withdrawn(step):
                self._go_on_without(step)
            case OperationMismatch() | OperationInterrupted():
                self.num_told += 1
                self._start_anew(f" again {self._attempt}")
                leaves = self.catches_nothing or self._rng.random() < 0.3
                if leaves and isinstance(notice, OperationMismatch) and not self._peer.leaving:
                    self.seen("scripts that raised")
                    self._peer.leave()

    def _start_anew(self, suffix: str) -> None:
        self._attempt += 1
        self._inputs, self._num_submitted, self.handed_out = {}, 0, ()
        self._suffix, self._computing = suffix, None
        self._begin()

    def _go_on_without(self, step: int) -> None:
        """What was submitted is taken back: the script adds nothing to the step, or has lost it."""
        self._world.invariants.took_back(self._inputs.values())
        self._attempt += 1
        self._num_submitted, self.handed_out = 0, ()
        way = self.goes_on_with or self._rng.choice(("zeros", "next", "leaves"))
        if way == "leaves" and not self._peer.leaving:
            self._peer.leave()
            return
        if way == "next" and not self._is_interrupted:
            self.seen("voided")
            self._world.invariants.told(self.member, step)  # it knows
            self._peer.perform(self.open_step.void(step, f"{self.member} goes on"))
        self._suffix = f" {way} {self._attempt}"
        for operation in self._inputs:
            self._hold(operation)
        self._begin()

    def _begin(self) -> None:
        """Begin step done + 1, from the inputs held or from new ones."""
        peer, step = self._peer, self.done + 1
        if not peer.active or peer.leaving or step == 0:
            return
        for operation in range(self._num_submitted, len(self._inputs)):
            self._submit(step, operation)
        if self._computing != step and len(self._inputs) < NUM_OPERATIONS:
            self._computing = step
            self._compute(self._inputs, step, 0, self._world.compute_s(self._rng) / NUM_OPERATIONS)

    def _compute(self, inputs: dict[int, str], step: int, operation: int, delay_s: float) -> None:
        self._world.clock.after(delay_s, self._peer, "computed", self._computed, inputs, step, operation, delay_s)

    def _computed(self, inputs: dict[int, str], step: int, operation: int, delay_s: float) -> None:
        if step != self.done + 1 or inputs is not self._inputs:
            return
        if not self._suffix:
            self._world.invariants.computed(self.member, step, operation)
        self._hold(operation)
        if operation + 1 < NUM_OPERATIONS:
            self._compute(inputs, step, operation + 1, delay_s)
        if self._peer.active and not self._peer.leaving:
            self._submit(step, operation)

    def _hold(self, operation: int) -> None:
        """The input is written: once, or for another attempt, in memory that nobody has been lent before."""
        member, step = self.member, self.done + 1
        self._inputs[operation] = f"{member.peer_id}/{member.incarnation}:{step}.{operation}{self._suffix}"
        self.arena.write(("input", operation), (self._inputs[operation],))

    def _submit(self, step: int, operation: int) -> None:
        """The first result is wanted before the commit in every other step. One may be called wrongly."""
        if operation != self._num_submitted:
            return
        self._num_submitted += 1
        is_last, wrong = operation + 1 == NUM_OPERATIONS, ""
        if is_last:
            wrong, self.calls_wrong = self.calls_wrong, ""
        if wrong == "another":
            self._inputs[operation] += OTHER
        if wrong != "fewer":
            shape = (2,) if wrong == "another" else (1,)
            is_early = operation == 0 and step % 2 == 1
            called = Operation(AllReduce(), NUMBER, NUMBER, shape, is_uncommitted=is_early)
            self._peer.perform(self.open_step.submit(step, self._attempt, called))
        if is_last and self._peer.alive:
            self._peer.perform(self.open_step.close(self._attempt, self.state))

    def withdraw(self) -> None:
        """The script raises in the middle of the open step; if results of it may be in use, all are told at once."""
        self._is_interrupted = self._num_submitted > 0 and (self.done + 1) % 2 == 1
        self._peer.perform(self.open_step.withdraw(self.done + 1, self._attempt))

    def is_open(self) -> bool:
        """Whether the script could give the open step up, or withdraw from it."""
        return self.done + 1 > 0 and self._peer.active and self.open_step.stage in (Stage.EMPTY, Stage.OPEN)

    # What is finished, committed, fed and loaded.

    def finishes(self) -> None:
        """All operations are complete here."""
        runner = self.open_step.runner
        assert isinstance(runner, TokenRunner)
        self.finished = tuple(runner.complete[operation] for operation in sorted(runner.complete))

    def hand_out(self, index: int) -> None:
        """The script uses a result before the commit."""
        runner = self.open_step.runner
        assert isinstance(runner, TokenRunner)
        self.handed_out = runner.complete[index]

    def commit(self, finish: Finish, view: View) -> None:
        results, self.finished = self.finished, ()
        checks = self._world.invariants
        checks.contains(self.member, finish, view, results)
        if self.handed_out:
            checks.used(self.member, finish, self.handed_out, results[0])
        self.members = tuple(member.peer_id for member in view.members)
        self._advance(finish.step, finish.digest)
        if self._world.plan.two_phase:
            for operation in range(NUM_OPERATIONS):
                self.arena.write(("result", operation), (f"clipped {finish.step}",))  # the user may: it is theirs

    def _advance(self, step: int, result: bytes) -> None:
        self.done, self.state = step, state_after(self.state, result)
        self.results[step] = result
        self.results.pop(step - 8, None)

    def take_fed(self, fed: Fed) -> None:
        if fed.step > self.done:
            self.fed[fed.step, fed.digest] = fed  # two swarms may feed it
            self._peer.perform(self._peer.core.fed(fed.step, fed.previous, fed.digest))

    def apply(self, step: int, digest: bytes) -> None:
        """An observer runs its loop with what it was fed."""
        delay_s = 0.3 * self._world.compute_s(self._rng)
        self._world.clock.after(delay_s, self._peer, "applied", self._applied, step, digest)

    def _applied(self, step: int, digest: bytes) -> None:
        if self._peer.core.due == (step, digest):
            fed = self.fed[step, digest]
            self._advance(step, fed.result)
            self._loaded(step, digest, fed.members, "steps applied")

    def take_state(self, snapshot: Snapshot) -> None:
        """All of it comes at once."""
        core, step, digest = self._peer.core, snapshot.step, snapshot.digest
        if not core.seated and core.state_comes(self._peer.now(), snapshot.donor):
            self.states[step, digest] = snapshot
            self._peer.perform(core.state_came(step, digest, snapshot.stamp.lineage))

    def load(self, step: int, digest: bytes) -> None:
        """The script loads it when it next waits: at once, unless it runs its loop meanwhile."""
        snapshot = self.states.pop((step, digest))
        if self.follows:
            delay_s = 0.3 * self._world.compute_s(self._rng)
            self._world.clock.after(delay_s, self._peer, "loads", self._load, snapshot)
        else:
            self._load(snapshot)

    def _load(self, snapshot: Snapshot) -> None:
        self.done, self.state = snapshot.step, snapshot.state
        self._loaded(snapshot.step, snapshot.digest, snapshot.members, "states loaded")

    def _loaded(self, step: int, digest: bytes, members: tuple[str, ...], what: str) -> None:
        for old in [old for old in self.fed if old[0] <= step]:
            del self.fed[old]
        self.members = members
        self.open_step.loaded(step, members, None)
        self._world.invariants.loaded(self.member, step)
        self.seen(what)
        self._peer.perform(self._peer.core.loaded(self._peer.now(), step, digest))
