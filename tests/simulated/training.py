"""What a simulated peer trains: steps of two operations, over messages or lent memory; no numbers, only who added what.

A step is computed once and held until it is committed. An operation is complete when the inputs of all members are
there: each member adds them all, or (two phases) each adds up its chunk and the others fetch that.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING

from gossip import Member, Stamp, View
from gossip.messages import NOTHING_DONE, Finish

from .memory import Arena, Region, Tokens

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer

NUM_OPERATIONS = 2
Results = tuple[tuple[Tokens, ...], ...]
"""Per operation, per chunk: whose inputs are in it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A data frame: what one member adds to an operation, or has added up.

    Attributes:
        region: where it is in the sender's memory.
        tokens: None is a reference: it is read there.
    """

    sender: Member
    stamp: Stamp
    step: int
    operation: int
    region: Region
    tokens: Tokens | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A data frame: the state after `step`; `digest` is of the chain of steps up to it."""

    stamp: Stamp
    step: int
    digest: bytes
    state: bytes


@dataclass(frozen=True, slots=True)
class Fed:
    """A data frame: a committed step, for an observer."""

    step: int
    previous: bytes
    digest: bytes
    result: bytes


@lru_cache(maxsize=256)
def digest_of(results: Results) -> bytes:
    return blake2b(repr(results).encode(), digest_size=8).digest()


def state_after(state: bytes, result: bytes) -> bytes:
    """An optimizer step."""
    return blake2b(state + result, digest_size=8).digest()


class Training:
    """One peer's state, and its part in the open step: step done + 1."""

    def __init__(self, peer: "Peer", world: "Simulation", rng: Random, arena: Arena) -> None:
        self.done = NOTHING_DONE
        self.state = b""
        self.finished: int | None = None
        self.halted: int | None = None
        self.weightless: int | None = None
        self.fed: dict[tuple[int, bytes], bytes] = {}
        self.results: dict[int, bytes] = {}
        self._peer = peer
        self._world = world
        self._rng = rng
        self._arena = arena
        self._inputs: dict[int, str] = {}
        self._computing: int | None = None
        self._was_finished: Results = ()
        self.handed_out: tuple[Tokens, ...] = ()
        self.forget_view()

    def forget_view(self) -> None:
        """Nothing of an older view completes any more. Inputs stay."""
        self._submitted: list[int] = []
        self._arrived: dict[tuple[int, Region], dict[Member, Tokens]] = {}
        self._complete: dict[int, tuple[Tokens, ...]] = {}
        self.finished = None

    # The open step.

    def restart(self) -> None:
        """The barrier of a view is complete: what was finished is committed or dropped, what was given up goes on."""
        if self._was_finished:
            self._world.invariants.seen["dropped and redone"] += 1
            self._was_finished = ()
        self.halted = None
        if self.weightless == self.done + 1:
            for operation in self._inputs:
                self._hold(operation)
        self.begin()

    def begin(self) -> None:
        """Begin step done + 1, from the inputs held or from new ones."""
        peer, step = self._peer, self.done + 1
        if not peer.active or peer.leaving or step == 0:
            return
        for operation in tuple(self._inputs):
            self._submit(step, operation)
        if self._computing != step and len(self._inputs) < NUM_OPERATIONS:
            self._computing = step
            self._compute(step, 0, self._world.compute_s(self._rng) / NUM_OPERATIONS)

    def _compute(self, step: int, operation: int, delay_s: float) -> None:
        self._world.clock.after(delay_s, self._peer, "computed", self._computed, step, operation, delay_s)

    def _computed(self, step: int, operation: int, delay_s: float) -> None:
        self._world.invariants.computed(self._peer.member, step, operation)
        self._hold(operation)
        if operation + 1 < NUM_OPERATIONS:
            self._compute(step, operation + 1, delay_s)
        if self._peer.active and not self._peer.leaving:
            self._submit(step, operation)

    def _hold(self, operation: int) -> None:
        """The input is written: once, or once more as zeros, which nobody has been lent before."""
        member, step = self._peer.member, self.done + 1
        zero = " zero" if self.weightless == step else ""
        self._inputs[operation] = f"{member.peer_id}/{member.incarnation}:{step}.{operation}{zero}"
        self._arena.write(("input", operation), (self._inputs[operation],))

    def _submit(self, step: int, operation: int) -> None:
        peer = self._peer
        if operation in self._submitted or not peer.active or self.halted == step or step != self.done + 1:
            return
        assert peer.view is not None
        stamp = peer.view.stamp
        self._submitted.append(operation)
        token = self._inputs[operation]
        self._world.invariants.contributed(peer.member, stamp, step, operation, token)
        peer.core.submitted(step, len(self._submitted), len(self._complete))
        self._share(Part(peer.member, stamp, step, operation, ("input", operation), (token,)))

    def _share(self, part: Part) -> None:
        """Send `part` to everybody; by reference to whoever can map our memory."""
        peer, world = self._peer, self._world
        assert peer.view is not None
        reference = Part(part.sender, part.stamp, part.step, part.operation, part.region, None)
        for member in peer.view.members:
            if member != peer.member:
                other = world.peers[member]
                lends = world.plan.lends and other.host == peer.host
                world.network.send_data(peer, other, other.take_in, reference if lends else part)
        self.add(part, part.tokens or ())

    def receive(self, part: Part) -> None:
        """A data frame of the installed view."""
        if part.tokens is not None:
            self.add(part, part.tokens)
            return
        if not self._world.plan.late_read_s:
            self._read(part)
            return
        delay_s = self._rng.random() * self._world.plan.late_read_s
        if self._rng.random() < 0.05:
            delay_s *= 5
        if delay_s > 0.3:
            self._world.faults.on_slow_read(self._peer)
        self._world.clock.after(delay_s, self._peer, "read", self._read, part)

    def _read(self, part: Part) -> None:
        """Read lent memory, then look at the lender's tag: another one makes what was read void."""
        tokens, tag = self._world.peers[part.sender].arena.read(part.region)
        if tag != part.stamp.hash[:8]:
            self._world.invariants.seen["void reads"] += 1
        elif part.stamp == self._peer.core.stamp:
            self.add(part, tokens)

    def add(self, part: Part, tokens: Tokens) -> None:
        """`tokens` of the sender are here, in the installed view."""
        view = self._peer.view
        assert view is not None
        arrived = self._arrived.setdefault((part.step, part.region), {})
        arrived[part.sender] = tokens
        if len(arrived) < len(view.members) or part.step != self.done + 1:
            return
        operation = part.operation
        parts = tuple(arrived[member] for member in view.members)
        if part.region[0] == "input":
            total = tuple(token for tokens in parts for token in tokens)
            if self._world.plan.two_phase and len(parts) > 1:
                region = "result", operation
                self._arena.write(region, total)
                self._share(Part(self._peer.member, view.stamp, part.step, operation, region, total))
                return
            parts = (total,)
        self._complete[operation] = parts
        is_wanted = part.step % 2 and self.halted != part.step  # the script uses it before the commit
        if operation == 0 and is_wanted and not self.handed_out:
            self.handed_out = parts
            self._peer.core.handed_out()
        self._peer.core.submitted(part.step, len(self._submitted), len(self._complete))  # it gets on
        self._try_finish()

    def _try_finish(self) -> None:
        peer, step = self._peer, self.done + 1
        if not peer.active or self.finished == step or self.halted == step or len(self._complete) < NUM_OPERATIONS:
            return
        assert peer.view is not None
        self.finished = step
        self._was_finished = tuple(self._complete[operation] for operation in range(NUM_OPERATIONS))
        digest = digest_of(self._was_finished)
        self._world.invariants.finished(peer.member, peer.view, step, (digest, self.state))
        self._world.faults.on_finish(peer)
        if peer.alive:
            peer.perform(peer.core.finished(peer.now(), step, digest, self.state))

    def is_open(self) -> bool:
        """Whether the script could give the open step up, or withdraw from it."""
        step = self.done + 1
        return step > 0 and self._peer.active and self.finished != step and self.halted != step

    # What is committed, fed and loaded.

    def commit(self, finish: Finish, view: View) -> None:
        results, self._was_finished = self._was_finished, ()
        self._world.invariants.contains(self._peer.member, finish, view, results)
        if self.handed_out:
            self._world.invariants.used(self._peer.member, finish, self.handed_out, results[0])
        self._advance(finish.step, finish.digest)
        self._inputs, self._complete, self._submitted = {}, {}, []
        for region in [key for key in self._arrived if key[0] <= finish.step]:
            del self._arrived[region]
        if self._world.plan.two_phase:
            for operation in range(NUM_OPERATIONS):
                self._arena.write(("result", operation), (f"clipped {finish.step}",))  # the user may: it is theirs

    def _advance(self, step: int, result: bytes) -> None:
        self.done, self.state, self.handed_out = step, state_after(self.state, result), ()
        self.results[step] = result
        self.results.pop(step - 8, None)

    def take_fed(self, fed: Fed) -> None:
        if fed.step <= self.done:
            return
        self.fed[fed.step, fed.digest] = fed.result  # two swarms may feed it
        self._peer.perform(self._peer.core.fed(fed.step, fed.previous, fed.digest))

    def apply(self, step: int, digest: bytes) -> None:
        """An observer runs its loop with what it was fed."""
        delay_s = 0.3 * self._world.compute_s(self._rng)
        self._world.clock.after(delay_s, self._peer, "applied", self._applied, step, digest)

    def _applied(self, step: int, digest: bytes) -> None:
        if step != self.done + 1:
            return
        self._advance(step, self.fed[step, digest])
        self._loaded(step, digest, "steps applied")

    def load(self, snapshot: Snapshot) -> None:
        wanted = self._peer.core.wanted_state()
        if self._peer.view is None:
            fits = snapshot.step >= self.done and snapshot.digest != self._peer.core.digest
        else:
            fits = wanted is not None and (snapshot.step, snapshot.digest) == wanted[:2]
        if not fits:
            return
        self.done, self.state = snapshot.step, snapshot.state
        self._loaded(snapshot.step, snapshot.digest, "states loaded")

    def _loaded(self, step: int, digest: bytes, what: str) -> None:
        for old in [old for old in self.fed if old[0] <= step]:
            del self.fed[old]
        self._world.invariants.loaded(self._peer.member, step)
        self._world.invariants.seen[what] += 1
        self._peer.perform(self._peer.core.loaded(self._peer.now(), step, digest))
