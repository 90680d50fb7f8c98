"""Members that read each other's memory: announcements, when these count, and progress seen there."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import Member
from gossip.commit import StepMachine
from gossip.effects import Activated, Committed, Diverged, Effect, Installed, Send
from gossip.levels import chain
from gossip.messages import Decide, Report, ReportKind
from gossip.progress import Beat, Finish, Progress, Ready

from .cores import (
    NOTHING,
    activate,
    after,
    bodies,
    commit_step_0,
    decide,
    first_view,
    genesis,
    only,
    run,
    say,
    seated,
    view_of,
    view_with,
)
from .members import A, B, C, D

SHARING = replace(NOTHING, maps_all=True)
TRIO = view_with(A, B, C)


def finish(step: int, digest: bytes = b"bits") -> Finish:
    return Finish(step, digest, b"state", TRIO.number)


ZERO = finish(0)


def installing(*readable: Member) -> StepMachine:
    """A, which can read the memory of these, and installs a view of three."""
    machine = StepMachine(A)
    machine.found(first_view())
    machine.reads.update(readable)
    machine.install(TRIO)
    return machine


# Announcements


@pytest.mark.parametrize(
    ("readable", "maps_all"), [((), False), ((B,), False), ((B, C), True), ((B, C, D), True), ((C, D), False)]
)
def test_ready_says_whether_all_others_of_the_view_can_be_read(readable: tuple[Member, ...], maps_all: bool) -> None:
    machine = installing(*readable)
    mine = Ready(True, -1, genesis(), None, maps_all=maps_all)
    assert machine.beat()[0] == Send(B, Beat(mine, Progress(-1, genesis(), None)))
    assert machine.install(TRIO) == [Installed(TRIO), Send(B, mine), Send(C, mine)]


def test_what_ready_says_of_it_is_fixed_when_the_view_is_installed() -> None:
    machine = installing(B)
    machine.reads.add(C)
    assert [beat.ready.maps_all for _, beat in bodies(Beat, machine.beat())] == [False, False]
    machine = installing(B, C)
    machine.reads.clear()
    assert [beat.ready.maps_all for _, beat in bodies(Beat, machine.beat())] == [True, True]


def test_who_has_loaded_the_state_says_the_same_of_it_as_before() -> None:
    machine = StepMachine(B)
    machine.reads = {A, C}
    machine.install(TRIO)
    machine.receive(A, SHARING)
    machine.receive(C, SHARING)
    mine = Ready(False, -1, genesis(), None, maps_all=True)
    assert machine.loaded(-1, genesis()) == [Send(A, mine), Send(C, mine), Activated(TRIO, -1, maps_all=True)]


@pytest.mark.parametrize("of_b", [False, True])
@pytest.mark.parametrize("of_c", [False, True])
@pytest.mark.parametrize("readable", [(B,), (B, C)])
def test_memory_is_shared_if_all_can_read_all(readable: tuple[Member, ...], of_b: bool, of_c: bool) -> None:
    machine = installing(*readable)
    assert machine.receive(B, replace(NOTHING, maps_all=of_b)) == []
    maps_all = readable == (B, C) and of_b and of_c
    assert machine.receive(C, replace(NOTHING, maps_all=of_c)) == [Activated(TRIO, -1, maps_all)]


@given(st.lists(st.sets(st.sampled_from([A, B, C])), min_size=3, max_size=3), st.booleans(), st.integers(0, 2**32 - 1))
def test_all_members_decide_alike_whatever_order_they_hear_it_in(
    readable: list[set[Member]], is_joining: bool, seed: int
) -> None:
    rng, in_flight, activated = Random(seed), list[tuple[Member, Member, Ready]](), dict[Member, bool]()
    machines = {member: StepMachine(member) for member in (A, B, C)}

    def carry_out(source: Member, effects: list[Effect]) -> None:
        in_flight.extend((source, target, ready) for target, ready in bodies(Ready, effects))
        for effect in only(Activated, effects):
            assert source not in activated
            activated[source] = effect.maps_all

    for (member, machine), reads in zip(machines.items(), readable, strict=True):
        if member != C or not is_joining:
            machine.found(first_view())
        machine.reads |= reads
        carry_out(member, machine.install(TRIO))
    while in_flight:
        chosen = rng.choice(in_flight)
        source, target, ready = next(each for each in in_flight if each[:2] == chosen[:2])  # a link keeps the order
        in_flight.remove((source, target, ready))
        carry_out(target, machines[target].receive(source, ready))
        if machines[C].wanted_state() is not None and rng.random() < 0.5:
            carry_out(C, machines[C].loaded(-1, genesis()))
    if machines[C].wanted_state() is not None:
        carry_out(C, machines[C].loaded(-1, genesis()))
    for source, target, ready in in_flight:
        carry_out(target, machines[target].receive(source, ready))
    maps_all = all({A, B, C} - {member} <= machines[member].reads for member in machines)
    assert activated == dict.fromkeys((A, B, C), maps_all)


def test_what_the_host_can_read_counts_from_the_next_view_on() -> None:
    peer = seated(B, C)
    for member in (B, C):
        peer.set_readable(0.0, member, is_so=True)
    for is_so in (True, False):
        peer.set_readable(0.0, C, is_so=is_so)
        peer.set_readable(0.0, D, is_so=False)  # which was unknown so far
        told = say(peer, B, Decide(after(view_of(peer), A, B, C)))
        assert [ready.maps_all for _, ready in bodies(Ready, told)] == [is_so, is_so]
        assert say(peer, B, SHARING) == []
        assert say(peer, C, SHARING) == [Activated(view_of(peer), -1, maps_all=is_so)]


def test_who_can_read_the_last_one_only_after_a_view_was_installed_has_its_members_start_over() -> None:
    peer = seated(B, C)
    wish = Report(ReportKind.READABLE, A, 0)
    assert peer.set_readable(0.0, B, is_so=True) == []
    assert bodies(Report, peer.set_readable(0.0, C, is_so=True)) == [(B, wish), (C, wish)]
    assert peer.set_readable(0.0, C, is_so=True) == []  # the restart is requested already
    decide(peer, B, 0.0)
    say(peer, B, SHARING)
    assert only(Activated, say(peer, C, SHARING)) == [Activated(view_of(peer), -1, maps_all=True)]
    assert peer.set_readable(0.0, C, is_so=True) == []  # it announces that in this view


def test_who_has_finished_the_open_step_starts_over_in_the_step_after_it() -> None:
    peer = seated(B)
    peer.finished(0.0, 0, b"bits", b"")
    assert peer.set_readable(0.0, B, is_so=True) == []
    assert bodies(Report, run(peer, 0.0, 0.5)) == []
    assert only(Committed, say(peer, B, Progress(-1, genesis(), Finish(0, b"bits", b"", view_of(peer).number)))) != []
    assert bodies(Report, run(peer, 0.5, 1.0))[0] == (B, Report(ReportKind.READABLE, A, 1))


# Progress in memory


def active() -> StepMachine:
    machine = installing(B, C)
    machine.receive(B, SHARING)
    assert machine.receive(C, SHARING) == [Activated(TRIO, -1, maps_all=True)]
    return machine


def test_what_is_shown_is_not_said_but_in_beats() -> None:
    machine = active()
    assert machine.finished(0, b"bits", b"state", is_shown=True) == []
    beat = Beat(SHARING, Progress(-1, genesis(), ZERO))
    assert machine.beat() == [Send(B, beat), Send(C, beat)]


def test_what_is_shown_before_all_others_are_seen_commits_with_the_last() -> None:
    machine = active()
    machine.finished(0, b"bits", b"state", is_shown=True)
    assert machine.receive(B, Progress(-1, genesis(), ZERO)) == []
    assert machine.receive(C, Progress(-1, genesis(), ZERO)) == [Committed(ZERO, TRIO)]


def test_a_step_commits_when_all_others_show_it() -> None:
    peer = seated(B, C)
    zero = Finish(0, b"bits", b"state", 2)
    assert peer.finished(0.0, 0, b"bits", b"state", is_shown=True) == []
    shown = [(member, Progress(-1, genesis(), zero)) for member in (B, C)]
    assert peer.saw(0.0, shown[:1]) == []
    assert peer.saw(0.0, shown) == [Committed(zero, view_of(peer))]
    assert (peer.done, peer.digest, peer.has_finished) == (0, chain(genesis(), zero), False)


def test_a_step_commits_by_what_one_shows_and_the_other_says() -> None:
    peer = seated(B, C)
    zero = Progress(-1, genesis(), Finish(0, b"bits", b"state", 2))
    peer.finished(0.0, 0, b"bits", b"state", is_shown=True)
    assert only(Committed, say(peer, B, Beat(NOTHING, zero))) == []
    assert only(Committed, peer.saw(0.0, [(C, zero)])) == [Committed(Finish(0, b"bits", b"state", 2), view_of(peer))]


def test_other_bits_are_loud_and_nothing_commits() -> None:
    peer = seated(B)
    peer.finished(0.0, 0, b"bits", b"state", is_shown=True)
    other = Progress(-1, genesis(), Finish(0, b"other", b"state", 2))
    reason = "results of step 0 differ: 62697473 at a, 6f74686572 at b"
    assert only(Diverged, peer.saw(0.0, [(B, other)])) == [Diverged(0, reason)]
    assert peer.done == -1


def test_what_is_seen_late_changes_nothing() -> None:
    peer = seated(B)
    commit_step_0(peer, B)
    assert peer.saw(0.0, [(B, Progress(-1, genesis(), Finish(0, b"bits", b"", 2)))]) == []
    activate(peer, replace(view_of(peer), number=3, parent=view_of(peer).hash))
    assert peer.done == 0
