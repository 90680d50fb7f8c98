"""Mutants of numerics classes: one rule is removed (R20 and R21 of PROTOCOL.md)."""

from collections.abc import Callable, Mapping, Sequence

import gossip.joining
import gossip.numerics
import p2p.step.run
from gossip import Member, Seat
from gossip.commit import StepMachine
from gossip.effects import Committed, Effect
from gossip.numerics import Case, cases, source_of
from gossip.progress import Finish
from p2p.step.operation import Operation
from p2p.step.run import Run
from p2p.step.submission import Submission

from .mutant import Mutant, mutant, without
from .training import Outcome, Training

Start = Callable[[Run, Submission], bool]
Said = Mapping[Member, Finish]

TRAIN = "CLASSES: one of three computes other bits than the others, and founds the run"


def _across_classes(seats: Sequence[Seat], said: Said) -> list[Case]:
    words = {member: finish.bits for member, finish in said.items()}
    return [(seats, words)] if len({*words.values()}) > 1 else []


def _within_the_own_class(seats: Sequence[Seat], said: Said) -> list[Case]:
    numerics = {seat.member: seat.numerics for seat in seats}
    own = numerics[next(iter(said))]  # the first is the member itself
    return [case for case in cases(seats, said) if all(seat.numerics == own for seat in case[0])]


def _commit_with_the_own_state(original: Callable[[StepMachine, Finish], list[Effect]]) -> object:
    def commit(self: StepMachine, finish: Finish) -> list[Effect]:
        (committed,) = original(self, finish)
        assert isinstance(committed, Committed)
        return [Committed(finish, committed.view)]

    return commit


def _from(original: Start, choose: Callable[[Run, Operation], int]) -> Start:
    """Replaces the source of a re-synchronisation by another member."""

    def start(self: Run, submission: Submission) -> bool:
        operation = submission.operations[self.num_started]
        with without(Mutant(((p2p.step.run, "source_of", lambda view: choose(self, operation)),), frozenset())):
            return original(self, submission)

    return start


_fixed: dict[Operation, Member] = {}


def _as_in_the_first_view(run: Run, operation: Operation) -> int:
    source = _fixed.setdefault(operation, run.view.members[source_of(run.view)])
    return run.view.members.index(source) if source in run.view.members else -1


def _presence_by_the_installed_view(self: Training) -> bool:
    view = self._peer.view
    return view is not None and view.is_mixed


def _update_first(self: Training, outcome: Outcome) -> None:
    updated = self.state.updated(outcome.digest, self._peer.place.hardware)
    self.state = updated.taken(outcome.slice) if outcome.slice else updated


NUMERICS: dict[str, Mutant] = {
    "R20: parameters are compared across classes": mutant(
        (gossip.numerics, "cases", _across_classes), breaks="never", seed=5_000_001, scenario=TRAIN
    ),
    "R20: who looks at its own class only": mutant(
        (gossip.numerics, "cases", _within_the_own_class),
        breaks="S14 S19",
        scenario="CLASSES: two of one class differ by roundings, and the others are of another one",
    ),
    "R20: the chain is over the state of two classes": mutant(
        (Finish, "agreed", property(lambda self: self)), breaks="S3 never", scenario=TRAIN
    ),
    "R20: the receipt has the state of the own class": mutant(
        (StepMachine, "_commit", _commit_with_the_own_state(StepMachine._commit)), breaks="S3", scenario=TRAIN
    ),
    "R20: hardware alone makes a class": mutant(
        (gossip.joining, "inherited", lambda own, donors, me, step: own),
        (gossip.joining, "apart", lambda own, me, step: own),
        breaks="S2 S12 never",
        seed=5_000_089,
    ),
    "R21: source by arrival": mutant(
        (Run, "start", _from(Run.start, lambda run, operation: run._rank)), breaks="S20", scenario=TRAIN
    ),
    "R21: the source is fixed at submission": mutant(
        (Run, "start", _from(Run.start, _as_in_the_first_view)),
        breaks="S20 StopIteration",
        scenario="CLASSES: the member whose slice is taken is killed before the others have it",
    ),
    "R21: the installed view says whether a slice is synchronised": mutant(
        (Training, "is_resynchronised", _presence_by_the_installed_view),
        breaks="S20",
        scenario="CLASSES: other hardware joins a run of one class, and dies out",
    ),
    "R21: a slice is taken after the update": mutant(
        (Training, "_update", _update_first), breaks="S21", scenario=TRAIN
    ),
    "R21: nobody looks how far it is from the source": mutant(
        (Finish, "is_far", property(lambda self: False)),
        breaks="L1 S12",
        scenario="CLASSES: the only one of its class has had other updates",
    ),
}
