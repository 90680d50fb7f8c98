"""The script of a simulated peer: steps of two operations of tokens (token_runner.py).

After a receipt of several numerics classes a third operation re-synchronises a slice of the parameters. The open step
is the production machine (p2p.step).
"""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np

from gossip import View
from gossip.progress import Finish
from p2p.errors import OperationInterrupted, OperationMismatch
from p2p.step.collective import AllReduce, Resync
from p2p.step.notices import Admitted, Commit, Notice, Uncommitted, Withdrawn
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.transitions import Stage

from .measuring import counts
from .memory import Tokens
from .parameters import Parameters
from .roots import broadcast, wrong_with
from .token_runner import ZEROS, TokenRunner

if TYPE_CHECKING:
    from tests.simulation import Simulation

    from .peer import Peer

NUM_OPERATIONS = 2
Results = tuple[tuple[Tokens, ...], ...]
"""Per operation and chunk: the members' inputs that it contains."""

OTHER: Final = " of another shape"
"""Part of the token of an operation that was called wrongly."""

NUMBER: Final = np.zeros(1, np.int64)
"""Input of every operation, as far as the machine knows."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a committed step, which observers are fed.

    Attributes:
        digest: of the results.
        slice: of the source's parameters in a re-synchronisation; empty: there was none.
        is_mixed: the receipt is of several numerics classes.
    """

    digest: bytes
    slice: str = ""
    is_mixed: bool = False


class Training:
    """One peer's script and state, and the machine of its open step."""

    def __init__(self, peer: "Peer", world: "Simulation", rng: Random) -> None:
        self.member = peer.member
        self.open_step = OpenStep(peer.member, segment_bytes=8)
        self.state = Parameters()
        self.is_mixed = False
        self.slice = ""
        self.results: dict[int, Outcome] = {}
        self.members: tuple[str, ...] = ()
        self.handed_out: tuple[Tokens, ...] = ()
        self.finished: Results = ()
        self.calls_wrong = ""
        self.catches_nothing = False
        self.goes_on_with = ""
        self.num_told = 0
        self._peer = peer
        self._world = world
        self._rng = rng
        self.inputs: dict[int, str] = {}
        self._attempt = 0
        self._num_submitted = 0
        self._computing: int | None = None
        self._suffix = ""
        self._is_interrupted = False

    # The script

    def hear(self, notice: Notice) -> None:
        """React, as the training thread, to a notice of the loop."""
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
                    self._world.invariants.seen["scripts that raised"] += 1
                    self._peer.leave()

    def _start_anew(self, suffix: str) -> None:
        self._attempt += 1
        self.inputs, self._num_submitted, self.handed_out = {}, 0, ()
        self._suffix, self._computing = suffix, None
        self._begin()

    def _go_on_without(self, step: int) -> None:
        """Withdraw the submitted inputs: the script adds nothing to the step, or has lost it."""
        self._world.invariants.took_back(self.inputs.values())
        self._attempt += 1
        self._num_submitted, self.handed_out = 0, ()
        way = self.goes_on_with or self._rng.choice(("zeros", "next", "leaves"))
        if way == "leaves" and not self._peer.leaving:
            self._peer.leave()
            return
        if way == "next" and not self._is_interrupted:
            self._world.invariants.seen["voided"] += 1
            self._world.invariants.told(self.member, step)  # the script knows already
            self._peer.perform(self.open_step.void(step, f"{self.member} goes on"))
        self._suffix = f" {way} {self._attempt}"
        for operation in self.inputs:
            self._hold(operation)
        self._begin()

    def _begin(self) -> None:
        """Begin step done + 1, with the inputs that are held or with new ones."""
        peer, step = self._peer, self.open_step.done + 1
        if not peer.active or peer.leaving or step == 0:
            return
        for operation in range(self._num_submitted, len(self.inputs)):
            self._submit(step, operation)
        if self._computing != step and len(self.inputs) < NUM_OPERATIONS:
            self._computing = step
            self._compute(self.inputs, step, 0, self._world.compute_s(self._rng) / NUM_OPERATIONS)

    def _compute(self, inputs: dict[int, str], step: int, operation: int, delay_s: float) -> None:
        self._world.clock.after(delay_s, self._peer, "computed", self._computed, inputs, step, operation, delay_s)

    def _computed(self, inputs: dict[int, str], step: int, operation: int, delay_s: float) -> None:
        if step != self.open_step.done + 1 or inputs is not self.inputs:
            return
        if not self._suffix:
            self._world.invariants.computed(self.member, step, operation)
        self._hold(operation)
        if operation + 1 < NUM_OPERATIONS:
            self._compute(inputs, step, operation + 1, delay_s)
        if self._peer.active and not self._peer.leaving:
            self._submit(step, operation)

    def _hold(self, operation: int) -> None:
        """Write the input, once, or again for another attempt, to memory that was not lent before."""
        member, step = self.member, self.open_step.done + 1
        self.inputs[operation] = f"{member.peer_id}/{member.incarnation}:{step}.{operation}{self._suffix}"
        self._peer.arena.write(("input", operation), (self.inputs[operation],))

    def _submit(self, step: int, operation: int) -> None:
        """Submit an operation, which may be a wrong call. In every other step a result is used before the commit."""
        if operation != self._num_submitted:
            return
        self._num_submitted += 1
        is_last, wrong = operation + 1 == NUM_OPERATIONS, ""
        if is_last:
            wrong, self.calls_wrong = self.calls_wrong, ""
        if wrong == "another":
            self.inputs[operation] += OTHER
            self._peer.arena.write(("input", operation), (self.inputs[operation],))
        if wrong != "fewer":
            shape = (2,) if wrong == "another" else (1,)
            is_early = operation == 0 and step % 2 == 1
            called = Operation(AllReduce(), NUMBER, NUMBER, shape, is_uncommitted=is_early)
            self._peer.perform(self.open_step.submit(step, self._attempt, called))
        if is_last and wrong != "fewer" and self.is_resynchronised():
            self.slice = f"{self.state.token(step)} of {self.member.peer_id}/{self.member.incarnation}"
            called = Operation(Resync(), NUMBER, NUMBER, (1,), is_far=self._is_far)
            self._peer.perform(self.open_step.submit(step, self._attempt, called))
        if is_last and wrong != "fewer" and self._world.plan.broadcasts and not self._peer.catch_up.is_own(step):
            self._peer.perform(self.open_step.submit(step, self._attempt, broadcast(step)))
        if is_last and wrong != "fewer" and self._world.plan.measured_s and not self._peer.catch_up.is_own(step):
            self._peer.perform(self.open_step.submit(step, self._attempt, counts()))
        if is_last and self._peer.alive:
            took_us = self._peer.measuring.took_us(step)
            self._peer.perform(self.open_step.close(self._attempt, self.state.digest, took_us))

    def is_resynchronised(self) -> bool:
        """Whether the open step re-synchronises a slice; follows from the last receipt, so members agree."""
        return self.is_mixed

    def token(self, index: int) -> str:
        """This peer's input of an operation."""
        return self.slice if index == NUM_OPERATIONS else self.inputs[index]

    def _is_far(self) -> bool:
        return self.state.is_far(_of_source(self._results()))

    def withdraw(self) -> None:
        """Let the script raise in the middle of the open step; if its results may be in use, all are told at once."""
        self._is_interrupted = self._num_submitted > 0 and (self.open_step.done + 1) % 2 == 1
        self._peer.perform(self.open_step.withdraw(self.open_step.done + 1, self._attempt))

    def is_open(self) -> bool:
        """Whether the script could give up the open step, or withdraw from it."""
        return self.open_step.done + 1 > 0 and self._peer.active and self.open_step.stage in (Stage.EMPTY, Stage.OPEN)

    # Finish and commit

    def _results(self) -> Results:
        """Results of the operations that are complete."""
        run = self.open_step.run
        assert run is not None and isinstance(run.runner, TokenRunner)
        return tuple(tokens for _, tokens in sorted(run.runner.complete.items()))

    def finishes(self) -> None:
        """Keep the results: all operations are complete on this member."""
        self.finished = self._results()

    def hand_out(self, index: int) -> None:
        """Let the script use a result before the commit."""
        self.handed_out = self._results()[index]

    def commit(self, finish: Finish, view: View) -> None:
        results, self.finished = self.finished, ()
        checks = self._world.invariants
        checks.contains(self.member, finish, view, results)
        if self.handed_out:
            checks.used(self.member, finish, self.handed_out, results[0])
        self.members = tuple(member.peer_id for member in view.members)
        submission = self.open_step.submission
        operations = [] if submission is None else submission.operations
        checks.agrees(self.member, checks.agreed.committed(view, finish.step, operations))
        for each, chunks in zip(operations, results, strict=False):
            if each.collective.root:
                checks.moved(self.member, wrong_with(each, view, chunks), is_void=each.is_root_missing)
        slowest = self._peer.measuring.judge(view, finish.step, operations)
        checks.agrees(self.member, checks.agreed.judged(view, finish.step, slowest))
        checks.seen["slow members"] += slowest is not None
        checks.seen["rows gathered"] += any(each.collective.is_rows for each in operations)
        slice = _of_source(results) if any(each.collective.is_of_one for each in operations) else ""
        if len(results) != 1:  # otherwise its script alone has ended the step before
            checks.resynchronised(self.member, finish.step, view, slice)
        self.advance(finish.step, Outcome(finish.digest, slice, view.is_mixed))
        checks.updated(self.member, view, finish, self.state)
        if self._world.plan.two_phase:
            for operation in range(NUM_OPERATIONS):
                self._peer.arena.write(("result", operation), (f"clipped {finish.step}",))  # the user owns the result

    def advance(self, step: int, outcome: Outcome) -> None:
        if step > 0:  # step 0 is the start, and has no operation
            self._update(outcome)
        self.is_mixed, self.slice = outcome.is_mixed, ""
        self.results[step] = outcome
        self.results.pop(step - 8, None)

    def _update(self, outcome: Outcome) -> None:
        """Take the source's slice, then run the optimizer."""
        taken = self.state.taken(outcome.slice) if outcome.slice else self.state
        self.state = taken.updated(outcome.digest, self._peer.place.hardware)


def _of_source(results: Results) -> str:
    """The source's input of the last operation: the others have added zeros."""
    return next(token for token in results[NUM_OPERATIONS][0] if token != ZEROS)
