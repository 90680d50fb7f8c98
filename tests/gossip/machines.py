"""Step machines in initial states for tests."""

from gossip import Phase, Seat, View
from gossip.commit import StepMachine
from gossip.effects import Effect
from gossip.given_up import Cause, GivenUp
from gossip.levels import chain
from gossip.progress import Finish, Ready
from gossip.view import founding_view

from .members import LINEAGE, A, B, C, view_of

FOUNDING = founding_view(Seat(A, 1), LINEAGE, 1)
TRIO = view_of(2, A, B, C)
TRIO_LATER = view_of(3, A, B, C)
PAIR = view_of(3, A, B)


def founder() -> StepMachine:
    machine = StepMachine(A)
    machine.found(FOUNDING)
    return machine


GENESIS = founder().digest
NOTHING = Ready(True, -1, GENESIS, None)
UNSEATED = Ready(False, -1, b"", None)


def finish(step: int, view: View = TRIO, digest: bytes = b"bits", state_digest: bytes = b"state") -> Finish:
    return Finish(step, digest, state_digest, view.number)


def given_up(cause: Cause, view: View = TRIO, reason: str = "", step: int = 0) -> GivenUp:
    """The words of a member that gives `step` up in `view`."""
    return GivenUp(step, view.number, cause, reason, 0 if cause is Cause.IN_USE else view.number)


ZERO = finish(0)
DIGEST_0 = chain(GENESIS, ZERO)


def active(view: View = TRIO) -> StepMachine:
    """A, active in `view` without a committed step."""
    machine = founder()
    machine.install(view)
    for member in view.members[1:]:
        machine.receive(member, NOTHING)
    assert machine.phase is Phase.ACTIVE
    return machine


def finished(view: View = TRIO) -> StepMachine:
    """The same machine, after it has finished step 0."""
    machine = active(view)
    machine.finished(0, b"bits", b"state")
    return machine


def barrier(machine: StepMachine, said: Ready, view: View = PAIR) -> list[Effect]:
    """Effects of this READY of B in the next view."""
    machine.install(view)
    return machine.receive(B, said)
