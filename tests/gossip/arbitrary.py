"""Arbitrary messages: all that their annotations allow, as any holder of the swarm's key may send them."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from gossip import NO_VIEW, Claim, Contact, Envelope, Member, Policy, Seat, Stamp, View
from gossip.acceptor import MAX_ROUND
from gossip.messages import Body
from gossip.view import NO_NUMERICS

from .cores import NOTHING, after, first_view
from .members import A2, LINEAGE, A, B, C, D, E, claim

NUMBERS = (-1, 0, 1, 2, 3, 7, 64, 2**31, MAX_ROUND, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -2, -(2**63))
TEXTS = ("", "a", "b", "c", "control a", "hash", "ü" * 7, "x" * 1024, "\x00", "\U0010ffff")
BYTES = (b"", b"\x00", NOTHING.digest, LINEAGE, b"bits", b"\xff" * 16, b"long" * 4096)
FLOATS = (0.0, -1.0, 0.5, 1e308, -1e308, 5e-324)
MEMBERS = (A, B, C, D, E, A2, Member("b", 2), Member("a", 0), Member("", -1), Member("z" * 1000, 2**63))


def _lineages() -> Iterator[View]:
    """Views that the cores under test know, and possible successors."""
    for policy in Policy:
        first = first_view(policy=policy)
        second = after(first, A, B, C)
        yield from (first, second, after(first, A, B), after(first, A, D), replace(first, lineage=b"another"))
        yield from (
            after(second, A, B),
            after(second, B, A, C),
            after(second, B, C),
            after(after(second, A, B, C), A, D),
        )
        yield replace(after(second, C, A), number=2**64 - 1)
        yield replace(second, parent=b"a fork")


VIEWS = tuple(_lineages())
STAMPS = (NO_VIEW, *(view.stamp for view in VIEWS), Stamp(LINEAGE, 2**64 - 1, b""), Stamp(b"", 9, b""))

numerics = st.sampled_from((NO_NUMERICS, b"class 16"))


@st.composite
def _views(draw: st.DrawFn) -> View:
    seated = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=6, unique_by=lambda m: m.peer_id))
    number = draw(st.sampled_from([number for number in NUMBERS if number > 0]))
    sinces = st.sampled_from([since for since in NUMBERS if 1 <= since <= number])
    seats = tuple(Seat(member, draw(sinces), draw(of(Contact)), draw(numerics)) for member in seated)
    lineage, parent, founder = draw(of(bytes)), draw(of(bytes)), draw(of(str))
    return View(lineage, number, draw(of(int)), seats, parent, draw(of(Policy)), founder)


_STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.sampled_from(NUMBERS),
    bool: st.booleans(),
    float: st.sampled_from(FLOATS),
    str: st.sampled_from(TEXTS),
    bytes: st.sampled_from(BYTES),
    Member: st.sampled_from(MEMBERS),
    Stamp: st.sampled_from(STAMPS),
    View: st.sampled_from(VIEWS) | st.deferred(_views),
}


def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of `annotation` that the codec lets through."""
    if annotation not in _STRATEGIES:
        _STRATEGIES[annotation] = _build(annotation)
    return _STRATEGIES[annotation]


def _build(annotation: Any) -> st.SearchStrategy[Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return st.none()
    if origin is tuple:
        return st.lists(of(args[0]), max_size=3).map(tuple)
    if origin in (Union, UnionType):
        return st.one_of([of(arg) for arg in args])
    if issubclass(annotation, Enum):
        return st.sampled_from(list(annotation))
    assert isinstance(annotation, type) and is_dataclass(annotation), f"no rule for {annotation}"
    hints = get_type_hints(annotation)
    values = (numerics if field.name == "numerics" else of(hints[field.name]) for field in fields(annotation))
    return st.builds(annotation, *values)


envelopes = st.builds(Envelope, of(Member), of(Stamp), of(Body))
known_claims = st.sampled_from([claim(member) for member in MEMBERS])
claims = known_claims | of(Claim)
