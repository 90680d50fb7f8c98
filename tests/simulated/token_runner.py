"""Operations over messages or lent memory that move *tokens* instead of numbers: each names a member's input.

An operation is complete when the inputs of all members have arrived: each member sums all of them, or (two phases) each
sums its chunk and the others fetch that.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from collectives import MissingSegment, Outgoing
from gossip import Member, Stamp, View
from p2p.memory.shared_runner import RunState
from p2p.net.frames import Segment
from p2p.step.operation import Task

from . import roots
from .measuring import gathered, token_of
from .memory import Region, Tokens

ZEROS = "zeros"
"""Input of a member that is not the source of a re-synchronisation."""

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer


@dataclass(frozen=True, slots=True)
class Part:
    """A data frame: one member's input of an operation, or its sum.

    Attributes:
        region: its place in the sender's memory.
        tokens: None: the frame is a reference, and the region is read there.
        sequence: of the operation in its view; `fingerprint`: of the operation, both as the machine sends them.
    """

    sender: Member
    stamp: Stamp
    step: int
    region: Region
    tokens: Tokens | None
    sequence: int = 0
    fingerprint: bytes = b""


class TokenRunner:
    """The operations of one view (`p2p.step.runner.Runner`)."""

    sends = False

    def __init__(self, peer: "Peer", world: "Simulation", rng: Random, view: View) -> None:
        self.outgoing: list[tuple[int, Outgoing]] = []
        self.complete: dict[int, tuple[Tokens, ...]] = {}
        self._peer = peer
        self._world = world
        self._rng = rng
        self._view = view
        self._rank = view.members.index(peer.member)
        self._tasks: dict[int, Task] = {}
        self._arrived: defaultdict[Region, dict[int, Tokens]] = defaultdict(dict)
        self._gets_on = False

    @property
    def _step(self) -> int:
        return self._peer.training.open_step.done + 1

    def start(self, index: int, task: Task) -> None:
        operation, checks = task.operation, self._world.invariants
        if operation.collective.is_priced or operation.collective.is_broadcast:
            checks.agrees(self._peer.member, checks.agreed.chosen(self._view, self._step, operation))
            checks.seen["operations by tables"] += operation.ran != "one-shot"
            checks.seen["broadcasts by tables"] += operation.collective.is_broadcast and operation.ran != "one-shot"
        if operation.collective.gathers:
            token = token_of(task)
        elif operation.collective.root:
            token = roots.token_of(task, self._peer.member.peer_id)
        else:
            token = self._peer.training.token(index)
        if operation.collective.is_of_one:
            token = ZEROS if task.weight == 0 else token
        if not operation.collective.is_priced or operation.collective.is_of_one:
            self._peer.arena.write(("input", index), (token,))
        self._tasks[index] = task
        checks.contributed(self._peer.member, self._view.stamp, self._step, index, token)
        self._share(("input", index), (token,))

    def _share(self, region: Region, tokens: Tokens) -> None:
        """Add this rank's tokens, and send them to the others."""
        self._add(region, self._rank, tokens)
        part = Part(self._peer.member, self._view.stamp, self._step, region, tokens)
        others = (rank for rank in range(len(self._view.members)) if rank != self._rank)
        self.outgoing += [(region[1], Outgoing(rank, 0, 0, part)) for rank in others]  # type: ignore[arg-type]

    def receive(self, index: int, segment: Segment) -> None:
        part = segment.payload
        assert isinstance(part, Part)
        if part.tokens is None:
            self._read_later(segment.source, part)
        else:
            self._add(part.region, segment.source, part.tokens)

    def _read_later(self, rank: int, part: Part) -> None:
        """Read a reference, possibly late."""
        late_s = self._world.plan.late_read_s
        if not late_s:
            self.read(rank, part)
            return
        delay_s = self._rng.random() * late_s
        if self._rng.random() < 0.05:
            delay_s *= 5
        if delay_s > 0.3:
            self._world.faults.on_slow_read(self._peer)
        self._world.clock.after(delay_s, self._peer, "read", self._read_now, rank, part)

    def _read_now(self, rank: int, part: Part) -> None:
        run = self._peer.training.open_step.run
        if run is not None and run.runner is self and part.step == self._step:
            self.read(rank, part)
            self._peer.perform(self._peer.training.open_step.advance()[1])

    def read(self, rank: int, part: Part) -> None:
        """Read lent memory, then the lender's tag: with another tag the tokens are dropped."""
        tokens, tag = self._world.peers[part.sender].arena.read(part.region)
        if tag == part.stamp.hash[:8]:
            self._add(part.region, rank, tokens)
        else:
            self._world.invariants.seen["void reads"] += 1

    def _add(self, region: Region, rank: int, tokens: Tokens) -> None:
        arrived = self._arrived[region]
        arrived[rank] = tokens
        if len(arrived) < len(self._view.members):
            return
        what, index = region
        parts = tuple(arrived[each] for each in range(len(arrived)))
        total = tuple(token for part in parts for token in part)
        if what == "input" and self._world.plan.two_phase and len(parts) > 1:
            self._peer.arena.write(("result", index), total)
            self._share(("result", index), total)
        else:
            self.complete[index] = (total,) if what == "input" else parts
            operation = self._tasks[index].operation
            if operation.collective.gathers:
                operation.result = gathered(self.complete[index][0], operation.input)
            self._gets_on = True

    def advance(self) -> RunState:
        gets_on, self._gets_on = self._gets_on, False
        return RunState.RUNNABLE if gets_on else RunState.IDLE

    def is_complete(self, index: int) -> bool:
        return index in self.complete

    def digest(self, index: int) -> bytes:
        return repr(self.complete[index]).encode()

    def missing(self, index: int) -> Sequence[MissingSegment]:
        return ()

    def end_step(self) -> None:
        self.complete = {}
        self._arrived.clear()

    def stop(self) -> None:
        pass
