import pytest

from gossip import Member, Seat, View
from gossip.commit import StepMachine
from gossip.effects import Committed, Diverged, Effect, Explain, Outvoted
from gossip.levels import chain
from gossip.numerics import apart, cases, inherited, marked, source_of, who_stays
from gossip.progress import Finish, Progress, Ready
from gossip.seniority import NOBODY
from gossip.view import NO_NUMERICS, feeder_of, is_akin

from .machines import GENESIS, NOTHING
from .members import LINEAGE, A, B, C, D

ONE, OTHER = b"AVX2" + bytes(4), b"none" + bytes(4)
LATER = b"nonelate"


def view_of(number: int, **classes: bytes) -> View:
    """A view with these classes, in rank order; A, B, C and D are founders."""
    members = {member.peer_id: member for member in (A, B, C, D)}
    seats = tuple(Seat(members[name.lower()], 1, numerics=numerics) for name, numerics in classes.items())
    return View(LINEAGE, number, 1, seats, b"")


MIXED = view_of(2, A=ONE, B=OTHER, C=OTHER)


def finish(state: bytes, *, is_far: bool = False, is_mixed: bool = True, digest: bytes = b"bits") -> Finish:
    return Finish(0, digest, marked(state * 16, is_far=is_far), 2, is_mixed)


def active(view: View = MIXED) -> StepMachine:
    machine = StepMachine(A)
    machine.found(view_of(1, A=ONE))
    machine.install(view)
    for member in view.members[1:]:
        machine.receive(member, NOTHING)
    return machine


def says(machine: StepMachine, member: Member, said: Finish) -> list[Effect]:
    return machine.receive(member, Progress(-1, GENESIS, said))


# Classes.


def test_whoever_goes_on_from_a_state_of_like_hardware_is_of_that_class() -> None:
    assert inherited(OTHER, LATER, A, 7) == LATER
    assert inherited(ONE, ONE, A, 7) == ONE


def test_whoever_goes_on_from_a_state_of_other_hardware_is_of_a_class_of_its_own() -> None:
    own = inherited(OTHER, ONE, A, 7)
    assert is_akin(own, OTHER) and own not in (OTHER, LATER)
    assert len({own, inherited(OTHER, ONE, B, 7), inherited(OTHER, ONE, A, 8)}) == 3
    assert own == apart(OTHER, A, 7)


@pytest.mark.parametrize("step", [-1, 0])
def test_before_the_first_update_all_have_the_same_bits(step: int) -> None:
    assert inherited(OTHER, ONE, A, step) == OTHER


@pytest.mark.parametrize(
    ("classes", "rank"),
    [((ONE, OTHER, OTHER), 1), ((ONE, OTHER), 0), ((OTHER, ONE, ONE, OTHER), 0), ((ONE, OTHER, LATER, OTHER), 1)],
)
def test_the_source_is_the_oldest_of_the_largest_class(classes: tuple[bytes, ...], rank: int) -> None:
    assert source_of(view_of(2, **dict(zip("ABCD", classes, strict=False)))) == rank


def test_a_joiner_is_fed_by_its_class_else_by_its_hardware_else_by_anybody() -> None:
    seats = (Seat(A, 1, numerics=ONE), Seat(B, 1, numerics=OTHER), Seat(C, 3, numerics=LATER))
    view = View(LINEAGE, 3, 1, seats, b"")
    assert {feeder_of(D, view, LATER)} == {C}
    assert feeder_of(D, view, OTHER) == B
    assert feeder_of(D, view, b"none new") == B  # C was only just admitted
    assert feeder_of(D, view, NO_NUMERICS) in (A, B)


# Differences


def test_parameters_are_compared_within_each_class_by_everybody() -> None:
    said = {A: finish(b"a"), B: finish(b"b"), C: finish(b"b")}
    assert cases(MIXED.seats, said) == []
    ((seats, words),) = cases(MIXED.seats, {**said, C: finish(b"c")})
    assert [seat.member for seat in seats] == [B, C] and words == {B: b"b" * 15, C: b"c" * 15}


def test_who_is_far_from_the_source_differs_from_all() -> None:
    said = {A: finish(b"a"), B: finish(b"b"), C: finish(b"b", is_far=True)}
    ((seats, words),) = cases(MIXED.seats, said)
    assert [seat.member for seat in seats] == [A, B, C] and words[A] == words[B] != words[C]
    assert who_stays(MIXED.seats, 1, [(seats, words)]) == frozenset({A, B})


def test_of_two_founders_in_a_class_none_can_stay_and_so_none_of_all() -> None:
    found = cases(MIXED.seats, {A: finish(b"a"), B: finish(b"b"), C: finish(b"c")})
    assert who_stays(MIXED.seats, 1, found) == NOBODY
    assert who_stays(MIXED.seats, 1, [*found, (MIXED.seats, {A: b"x"})]) == NOBODY  # whatever other cases are open


def test_who_stays_is_open_as_long_as_a_word_may_change_it() -> None:
    assert who_stays(MIXED.seats, 1, [(MIXED.seats, {A: b"x", B: b"y"})]) is None


def test_in_one_class_a_flag_is_no_flag() -> None:
    assert not finish(b"a", is_far=True, is_mixed=False).is_far
    assert finish(b"a", is_mixed=False).agreed == finish(b"a", is_mixed=False)


# A member.


def test_a_step_of_several_classes_commits_and_says_nothing_of_the_parameters() -> None:
    machine = active()
    machine.finished(0, b"bits", finish(b"a").state_digest)
    assert says(machine, B, finish(b"b")) == []
    committed = Finish(0, b"bits", b"", 2, True)
    assert says(machine, C, finish(b"b")) == [Committed(committed, MIXED)]
    assert machine.digest == chain(GENESIS, committed) == chain(GENESIS, finish(b"c"))


def test_results_are_compared_across_classes() -> None:
    machine = active()
    machine.finished(0, b"bits", finish(b"a").state_digest)
    says(machine, B, finish(b"b"))
    (raised,) = says(machine, C, finish(b"b", digest=b"else"))
    assert isinstance(raised, Diverged) and raised.reason.startswith("results of step 0 differ: ")


def test_a_difference_in_another_class_voids_the_step_here_too() -> None:
    machine = active(view := view_of(2, A=ONE, B=OTHER, C=OTHER, D=OTHER))
    machine.finished(0, b"bits", finish(b"a").state_digest)
    says(machine, B, finish(b"b"))
    says(machine, C, finish(b"b"))
    (told,) = says(machine, D, finish(b"d"))
    assert isinstance(told, Explain) and told.reason.startswith("d differs in step 0") and view.is_mixed
    assert machine.parting.is_void


def test_founders_that_differ_in_another_class_are_named() -> None:
    machine = active()
    machine.finished(0, b"bits", finish(b"a").state_digest)
    says(machine, B, finish(b"b"))
    (raised,) = says(machine, C, finish(b"c"))
    assert isinstance(raised, Diverged)
    assert raised.reason == f"parameters of step 0 differ: {'62' * 15}00 at b, {'63' * 15}00 at c"


def test_who_is_far_goes_though_it_is_alone_in_its_class() -> None:
    machine = active(view_of(2, A=ONE, B=OTHER, C=OTHER))
    machine.finished(0, b"bits", finish(b"a", is_far=True).state_digest)
    says(machine, B, finish(b"b"))
    assert says(machine, C, finish(b"b")) == [Outvoted(0)]


def test_a_barrier_commits_what_several_classes_have_finished() -> None:
    """A joiner, which was not in that view, computes the same digest."""
    machine = active()
    machine.finished(0, b"bits", finish(b"a").state_digest)
    view = view_of(3, A=ONE, B=OTHER)
    machine.install(view)
    effects = machine.receive(B, Ready(True, -1, GENESIS, finish(b"b")))
    assert [effect.finish for effect in effects if isinstance(effect, Committed)] == [Finish(0, b"bits", b"", 2, True)]
    joiner = StepMachine(D)
    later = view_of(3, A=ONE, B=OTHER, D=ONE)
    joiner.install(later)
    joiner.receive(A, Ready(True, -1, GENESIS, finish(b"a")))
    joiner.receive(B, Ready(True, -1, GENESIS, finish(b"b")))
    wanted = joiner.wanted_state()
    assert wanted == (0, machine.digest, A)  # of its own class


def test_founders_that_have_gone_are_compared_with_their_class() -> None:
    machine = active(view_of(2, A=ONE, B=OTHER, C=ONE))
    says(machine, B, finish(b"b"))
    says(machine, C, finish(b"c"))
    machine.install(view_of(3, A=ONE, B=OTHER))
    assert "at c, which has gone" in machine.why_contradicted(finish(b"a").state_digest)
    assert machine.why_contradicted(finish(b"c", is_far=True).state_digest) == ""
    machine.install(view_of(4, A=ONE))  # B's parameters are those of another class
    assert machine.why_contradicted(finish(b"c").state_digest) == ""
