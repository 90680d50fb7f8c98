"""Fuzzing: no input raises, in any order and at any time, and retained memory stays bounded."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gossip import NO_VIEW, Core, Envelope, Foundation, Member, Phase, Policy, Stamp, State, View
from gossip.effects import Effect, Send, WriteRecord
from gossip.given_up import Cause
from gossip.messages import (
    Accept,
    Accepted,
    AcceptorRecord,
    Ballot,
    Body,
    Decide,
    Gossip,
    Head,
    Join,
    Leave,
    LineageAnswer,
    LineageQuery,
    Nack,
    Ping,
    PingRequest,
    Prepare,
    Promise,
    Refuse,
    Report,
    ReportKind,
    Sync,
    ViewQuery,
)
from gossip.progress import Abort, Beat, Progress, Ready, StateQuery
from gossip.view import NO_NUMERICS
from p2p.errors import RemoteProtocolError
from p2p.net.wire import Codec
from tests.cases import some_of

from .arbitrary import BYTES, MEMBERS, NUMBERS, claims, envelopes, of
from .cores import NOTHING, RUN, SAME, core, founder, joiner, say, seated, view_with
from .members import LINEAGE, A, B, C, claim

LAW = settings(suppress_health_check=list(HealthCheck))
CODEC, WIRE = Codec([Envelope, AcceptorRecord], is_bounded=False), Codec([Envelope], is_bounded=False)
"""Cores tolerate more values than the wire allows."""

STRANGER = Member("stranger", 1)
DELAYS_S = (0.0, 0.01, 0.25, 0.5, 1.0, 3.0, 30.0, 1e4, 1e9, -0.1, -2.0, -1e4, -1e9)


def seated_joiner() -> Core:
    """B in a view with A, waiting for its state."""
    peer = joiner()
    say(peer, A, Decide(view_with(A, B)))
    say(peer, A, NOTHING)
    assert (peer.phase, peer._steps.wanted_state()) == (Phase.INSTALLING, (-1, NOTHING.digest, A))
    return peer


def leaver() -> Core:
    peer = seated(B, C)
    peer.leave(0.0)
    return peer


def seeded() -> Core:
    """A, which will found the swarm if no other seed knows one."""
    peer = core()
    peer.found_from_seeds(0.0, Foundation(["control a", "control b"], LINEAGE, 2, Policy.LIVE))
    peer.meet(0.0, claim(B))
    peer.ask_for_seat(0.0, RUN)
    return peer


STARTS: tuple[Callable[[], Core], ...] = (
    core,
    seeded,
    founder,
    lambda: founder(1, Policy.LIVE),
    joiner,
    lambda: joiner(follows=True),
    seated_joiner,
    leaver,
    lambda: seated(B, C),
    lambda: seated(B, C, founding_size=1),
    lambda: seated(B, C, policy=Policy.LIVE),
)


@dataclass(frozen=True, slots=True)
class Event:
    """An event at a core, `delay_s` after the one before.

    Attributes:
        what: an envelope, a command of the host, or None: only time passes.
        in_view: whether to replace the stamp of the envelope by that of the core's installed view.
    """

    delay_s: float
    what: Envelope | tuple[str, ...] | None
    in_view: bool


numbers, octets = st.sampled_from(NUMBERS), st.sampled_from(BYTES)
member = st.sampled_from(MEMBERS)
commands = st.one_of(
    st.tuples(st.just("declare_dead"), member, of(str), of(AcceptorRecord | None)),
    st.tuples(st.just("link_refused"), member, of(str)),
    st.tuples(st.just("link_answered"), member),
    st.tuples(st.just("meet"), claims),
    st.tuples(st.just("submitted"), numbers, numbers, numbers),
    st.tuples(st.just("give_up"), numbers, of(Cause), of(str), st.booleans()),
    st.tuples(st.just("mark_in_use"), st.integers(0, 5)),
    st.tuples(st.just("fed"), numbers, octets, octets, numbers, st.booleans()),
    st.tuples(st.just("finished"), octets, octets),
    st.tuples(st.just("loaded")),
    st.tuples(st.just("leave")),
    st.tuples(st.just("set_loss"), st.floats()),
    st.tuples(st.just("ask_for_seat"), st.booleans()),
)
events = st.builds(Event, st.sampled_from(DELAYS_S), st.none() | envelopes | envelopes | commands, st.booleans())


def command(peer: Core, now: float, name: str, *arguments: Any) -> list[Effect]:
    """A valid call of a host: it finishes and aborts steps of its view, loads required states, asks unseated."""
    match name:
        case "submitted":
            peer.submitted(*arguments)
            return []
        case "link_answered":
            peer.link_answered(now, *arguments)
            return []
        case "set_loss":
            peer.set_loss(loss=arguments[0])
            return []
        case "fed":
            return peer.fed(*arguments[:-1], is_own=arguments[-1])
        case "finished":
            is_open = peer.phase is Phase.ACTIVE and not peer.has_finished and not peer.ended
            return peer.finished(now, peer.done + 1, *arguments) if is_open and peer.done < 2**62 else []
        case "loaded":
            wanted = peer._steps.wanted_state()
            return [] if wanted is None else peer.loaded(now, *wanted[:2])
        case "ask_for_seat":
            may = peer.view is None and not peer.ended
            return peer.ask_for_seat(now, RUN, follows=arguments[0]) if may else []
        case "mark_in_use":
            peer.mark_in_use(*arguments)
            return []
        case "give_up":
            return peer.give_up(now, *arguments[:-1], is_told=arguments[-1])
    effects: list[Effect] = getattr(peer, name)(now, *arguments)
    return effects


def perform(peer: Core, now: float, event: Event) -> list[Effect]:
    match event.what:
        case None:
            return peer.tick(now)
        case Envelope(sender, stamp, body):
            return peer.receive(now, Envelope(sender, peer.stamp if event.in_view else stamp, body))
    return command(peer, now, *event.what)


def observed(peer: Core) -> tuple[object, ...]:
    return peer.phase, peer.view, peer.done, peer.stamp


def check(peer: Core, effects: Sequence[Effect]) -> None:
    """Check that the host can carry the effects out, and query the core."""
    assert all(isinstance(effect, get_args(Effect)) for effect in effects)
    for effect in effects:
        if isinstance(effect, Send):
            CODEC.encode(Envelope(peer.me, peer.stamp, effect.body))
        elif isinstance(effect, WriteRecord):
            CODEC.encode(effect.record)
    assert peer.next_deadline() == peer.next_deadline()
    assert peer.reason
    assert peer._steps.wanted_state() is None or peer.view is not None


@LAW
@given(st.sampled_from(STARTS), st.lists(events, max_size=24))
def test_nothing_that_arrives_raises_whatever_comes_before_it(start: Callable[[], Core], history: list[Event]) -> None:
    peer, now = start(), 0.0
    for event in history:
        now += event.delay_s
        check(peer, perform(peer, now, event))


Fenced = Prepare | Promise | Accept | Accepted | Nack | Report | Progress | Ready | Beat | StateQuery | Abort
Unseated = Head | LineageQuery | LineageAnswer | ViewQuery | Leave | Refuse


@LAW
@given(
    st.sampled_from(STARTS),
    st.lists(events, max_size=8),
    st.lists(st.builds(Envelope, of(Member), of(Stamp), of(Fenced | Unseated)), max_size=16),
)
def test_what_is_said_in_another_view_or_by_a_stranger_changes_nothing(
    start: Callable[[], Core], history: list[Event], strays: list[Envelope]
) -> None:
    peer, now = start(), 0.0
    for event in history:
        now += event.delay_s
        perform(peer, now, event)
    before = observed(peer)
    for stray in strays:
        if peer.view is not None and stray.stamp == peer.stamp and peer.view.since(stray.sender) is not None:
            stray = replace(stray, sender=STRANGER)
        check(peer, peer.receive(now, stray))
        assert observed(peer) == before


# Retained memory


def weight(*roots: object) -> int:
    """Bytes of all objects that can be reached from `roots`, each counted once; not of code and shared constants."""
    seen: dict[int, object] = {}
    pending: list[object] = list(roots)
    while pending:
        thing = pending.pop()
        if id(thing) in seen or isinstance(thing, Weightless):
            continue
        seen[id(thing)] = thing
        pending += parts_of(thing)
    return sum(map(sys.getsizeof, seen.values()))


Weightless = type | ModuleType | FunctionType | MethodType | BuiltinFunctionType | Enum | Random | None


def parts_of(thing: object) -> Iterator[object]:
    if isinstance(thing, Mapping):
        yield from thing.keys()
        yield from thing.values()
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        yield from thing
    yield from vars(thing).values() if hasattr(thing, "__dict__") else ()
    for cls in type(thing).__mro__:
        for slot in getattr(cls, "__slots__", ()):
            yield getattr(thing, slot, None)


def afresh(event: Event) -> Event:
    """A copy, as after the wire: it shares no object with earlier messages."""
    if not isinstance(event.what, Envelope):
        return event
    arrived = CODEC.decode(CODEC.encode(event.what))
    assert isinstance(arrived, Envelope)
    return replace(event, what=arrived)


@LAW
@given(st.sampled_from(STARTS), st.lists(events, max_size=24))
def test_no_more_is_retained_than_four_times_what_was_received(start: Callable[[], Core], history: list[Event]) -> None:
    peer, now = start(), 0.0
    allowed = weight(peer) + SLACK_BYTES
    for event in map(afresh, history):
        now += event.delay_s
        perform(peer, now, event)
        allowed += 4 * weight(event.what)
    assert weight(peer) <= allowed


SLACK_BYTES = 32_768


def strangers(first: int, last: int) -> Iterator[Member]:
    return (Member(f"stranger {i}", i + 1) for i in range(first, last))


NUMEROUS = (
    NOTHING,
    Beat(NOTHING, Progress(7, b"bits", None)),
    Join(SAME, follows=True),
    Leave(),
    Head(7, b"bits"),
    LineageAnswer(b"another"),
    Report(ReportKind.SILENT, B),
    StateQuery(7),
    Ping(7, ()),
    PingRequest(7, B),
)


@pytest.mark.parametrize("start", [seeded, lambda: joiner(follows=True), lambda: seated(B, C)])
def test_ten_thousand_strangers_leave_no_trace(start: Callable[[], Core]) -> None:
    peer = start()
    stamps = peer.stamp, Stamp(LINEAGE, 99, b"later"), Stamp(b"another", 99, b"later")

    def speak(first: int, last: int) -> int:
        for i, stranger in enumerate(strangers(first, last)):
            say(peer, stranger, NUMEROUS[i % len(NUMEROUS)], stamps[i % len(stamps)])
        return weight(peer)

    early = speak(0, 5_000)  # what has a limit has reached it
    assert speak(5_000, 15_000) <= early + SLACK_BYTES


@pytest.mark.long
@pytest.mark.parametrize("start", some_of([lambda: joiner(C, follows=True), lambda: seated(B, C)], 1))
def test_of_strangers_that_came_and_went_only_the_latest_are_remembered(start: Callable[[], Core]) -> None:
    peer, now = start(), 0.0

    def pass_by(first: int, last: int) -> int:
        nonlocal now
        for batch in range(first, last, 200):
            for stranger in strangers(batch, batch + 200):
                say(peer, B, Gossip((claim(stranger),)), now=now)
                say(peer, stranger, NOTHING, Stamp(LINEAGE, 99, b"later"), now=now)
                peer.link_refused(now, stranger, "gone")
                say(peer, B, Gossip((claim(stranger, State.DEAD),)), now=now)
            now += 121.0  # tombstones do not last so long
            peer.tick(now)
        return weight(peer)

    early = pass_by(0, 4_200)  # what has a limit has reached it
    assert pass_by(4_200, 10_000) <= early + 8 * SLACK_BYTES  # a dict that is full grows by a half


def elsewhere(i: int) -> View:
    """A view of the i-th other swarm."""
    return replace(view_with(A, C), lineage=b"%16d" % i)


@pytest.mark.parametrize(
    "flood",
    [
        lambda i: Report(ReportKind.STALLED, B, i),
        lambda i: Report(ReportKind.PROVEN, C, record=AcceptorRecord(elsewhere(i), Ballot(0, -1), None)),
        lambda i: Decide(elsewhere(i)),
        lambda i: Decide(replace(view_with(A, C), parent=b"%16d" % i)),
        lambda i: Prepare(Ballot(i, 1)),
        lambda i: Sync((b"digest",) * i),
        lambda i: Gossip((claim(Member(f"stranger {i}", 1)),)),
    ],
)  # fmt: skip
def test_a_member_that_floods_the_others_costs_them_no_more_than_it_sends(flood: Callable[[int], Body]) -> None:
    peer = seated(B, C, policy=Policy.LIVE)
    allowed = weight(peer) + SLACK_BYTES
    for i in range(1_000):
        body = flood(i)
        allowed += 4 * weight(body)
        say(peer, B, body)
    assert weight(peer) <= allowed


# Bytes.

frames = st.builds(lambda envelope: bytearray(CODEC.encode(envelope)), envelopes)
edits = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**16), st.sampled_from(["set", "cut", "insert"])))


def edit(frame: bytearray, changes: Sequence[tuple[int, int, str]]) -> bytes:
    for value, where, how in changes:
        place = where % (len(frame) + 1)
        match how:
            case "set":
                frame[place : place + 1] = bytes([value])
            case "cut":
                del frame[place:]
            case _:
                frame[place:place] = bytes([value])
    return bytes(frame)


@pytest.mark.parametrize("body", [Join(SAME, numerics=b"class 16"), Decide(view_with(A, B))])
@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_numerics_class_of_another_length_is_refused(body: Body, size: int) -> None:
    numerics = b"class 16" if isinstance(body, Join) else NO_NUMERICS
    wrong = replaced(msgpack.unpackb(CODEC.encode(Envelope(B, NO_VIEW, body))), numerics, bytes(size))
    with pytest.raises(RemoteProtocolError, match=f"a numerics class has 8 bytes, this one has {size}"):
        WIRE.decode(msgpack.packb(wrong))


def replaced(fields: Any, old: bytes, new: bytes) -> Any:
    """Fields of a frame with some replaced, also within views, which are encoded as bytes."""
    if isinstance(fields, list):
        return [replaced(field, old, new) for field in fields]
    if isinstance(fields, bytes) and len(fields) > 32:
        return msgpack.packb(replaced(msgpack.unpackb(fields), old, new))
    return new if fields == old else fields


@LAW
@given(st.sampled_from(STARTS), st.lists(st.binary(max_size=99) | st.builds(edit, frames, edits), max_size=8))
def test_bytes_are_refused_as_a_whole_or_taken_as_a_message(start: Callable[[], Core], arriving: list[bytes]) -> None:
    peer = start()
    for frame in arriving:
        with suppress(RemoteProtocolError):
            envelope = WIRE.decode(frame)
            assert isinstance(envelope, Envelope)
            check(peer, peer.receive(0.0, envelope))
