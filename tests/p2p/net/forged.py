"""Forged frames: well formed, but each field may have any value of its type on the wire.

Encoded with msgpack, since the production encoder would refuse most of them. Some values are those of this swarm: its
lineage, its members, its views.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack
from xxhash import xxh3_128_digest

from gossip import NO_VIEW, Member, Stamp, View
from gossip.messages import Body
from p2p.net.headers import (
    ChunksHeader,
    FinishedHeader,
    Header,
    ParcelHeader,
    SegmentHeader,
    ShareHeader,
    TakenHeader,
    pack_stamp,
)
from p2p.version import VERSION

NUMBERS = (-(2**63), -2, -1, 0, 1, 2, 3, 2**16, 2**24 - 1, 2**24, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**64 - 1)
TEXTS = (
    "",
    "a",
    "../../etc/passwd",
    "\0",
    "f" * 16,
    "F" * 16,
    "f" * 1000,
    "ü" * 512,
    "ipc:///nowhere/x",
    "tcp://127.0.0.1:1",
)
OCTETS = (b"", b"\0", bytes(8), bytes(16), b"d" * 16, b"\xff" * 3000)
NEARBY = 0.7
"""Share of names, numbers and views that peers of this swarm might send."""


@dataclass(frozen=True, slots=True)
class Forger:
    """Creates random frames about a swarm whose installed view is `view`; None: there is none."""

    random: Random
    view: View | None
    step: int = 0

    def frames(self, number: int, senders: Sequence[Member], stamps: Sequence[Stamp]) -> list[bytes]:
        """Random frames, each from one of `senders`, with one of `stamps`."""
        return [self.frame(self.random.choice(senders), self.random.choice(stamps)) for _ in range(number)]

    def data_frame(self, sender: Member) -> tuple[bytes, bytes]:
        """A header of any kind, and a payload."""
        draw, octets = self.random.choice, self.random.randbytes
        view = octets(40) if self.view is None or draw((False, False, True)) else pack_stamp(self.view.stamp)
        name, numbers = bytes.fromhex(sender.peer_id), (0, 1, 2, 7, 2**16 - 1, 2**31, 2**32 - 1)
        digest = draw((bytes(16), octets(16)))
        payload = draw((b"", bytes(8), octets(13), octets(4096)))
        wide = draw((*numbers, 2**63 - 1))
        header: Header = draw(
            (
                SegmentHeader(draw(numbers[:5]), view, wide, draw(numbers), draw(numbers), digest),
                FinishedHeader(
                    draw(numbers[:5]), draw(numbers), view, self.step + draw((0, 1, 2)), digest, digest, digest
                ),
                FinishedHeader(draw(numbers[:5]), draw(numbers), view, draw((0, 2**64 - 1)), digest, digest, digest),
                ParcelHeader(
                    is_state=draw((True, False)),
                    is_last=draw((True, False)),
                    is_final=draw((True, False)),
                    part=draw((0, 0, 1, 2**32 - 1)),
                    peer_id=name,
                    incarnation=sender.incarnation,
                    stream=wide,
                    step=draw((-(2**63), -1, self.step, 2**63 - 1)),
                    segment=draw((0, 0, 1)),
                    is_share=draw((True, False)),
                    digest=draw((digest, xxh3_128_digest(payload))),
                ),
                TakenHeader(name, sender.incarnation, wide, draw(numbers)),
                ShareHeader(
                    name,
                    sender.incarnation,
                    name,
                    draw((1, sender.incarnation)),
                    self.step + draw((-1, 0, 1)),
                    draw((0, 1, 2**20)),
                    draw((0, 1)),
                    draw((0, 2, 2**16 - 1)),
                ),
                ChunksHeader(name, sender.incarnation, self.step + draw((-1, 0))),
            )
        )
        return header.pack(), draw((b"", payload))

    def frame(self, sender: Member, stamp: Stamp = NO_VIEW) -> bytes:
        kinds = get_args(Body)
        number = self.random.randrange(len(kinds))
        body = [number, *self._fields(kinds[number])]
        envelope = [sender.peer_id, sender.incarnation], [stamp.lineage, stamp.number, stamp.hash], body
        packed: bytes = msgpack.packb([VERSION, 0, *envelope])
        return packed

    def _fields(self, cls: type) -> list[Any]:
        hints = get_type_hints(cls)
        return [self._value(hints[field.name], f"{cls.__name__}.{field.name}") for field in fields(cls)]

    def _value(self, annotation: Any, where: str) -> Any:
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is tuple:
            count = self.random.choice((0, 1, 2, 3, 40)) if args[-1] is ... else len(args)
            return [self._value(args[0] if args[-1] is ... else args[i], where) for i in range(count)]
        if origin in (Union, UnionType):
            return self._value(self.random.choice(args), where)
        if annotation is NoneType:
            return None
        if issubclass(annotation, Enum):
            return self.random.choice([member.value for member in annotation] + [99])
        if annotation is View:
            return self._view()
        if annotation is Member:
            return self._member()
        if isinstance(annotation, type) and is_dataclass(annotation):
            return self._fields(annotation)
        return self._plain(annotation, where)

    def _plain(self, kind: type, where: str) -> Any:
        is_near = self.random.random() < NEARBY
        if kind is int and is_near:
            near = self.step if "step" in where or "done" in where else self.view.number if self.view else 0
            return near + self.random.choice((-1, 0, 1, 2))
        if kind is str and is_near:
            return self.random.choice((f"{self.random.getrandbits(64):016x}", "ipc:///nowhere/x", "ipc:///nowhere/y"))
        if kind is bytes and is_near and "numerics" in where:
            return bytes(8)
        choices: dict[type, Sequence[Any]] = {
            int: NUMBERS,
            str: TEXTS,
            bytes: OCTETS,
            bool: (True, False),
            float: (0.0, -1.0, 1e308, float("inf"), float("nan")),
        }
        return self.random.choice(choices[kind])

    def _member(self) -> list[Any]:
        if self.view is not None and self.random.random() < NEARBY:
            member = self.random.choice(self.view.members)
            return [member.peer_id, member.incarnation + self.random.choice((0, 0, 0, 1, -1))]
        return [self._plain(str, "peer_id"), self._plain(int, "incarnation")]

    def _view(self) -> bytes:
        """A view that follows the installed one, or any value with the fields of a view."""
        view = self._fields(View)
        if self.view is not None and self.random.random() < NEARBY:
            seats = [
                [[s.member.peer_id, s.member.incarnation], s.since, self._fields(type(s.contact)), bytes(8)]
                for s in self.view.seats
            ]
            head = self.view.lineage, self.random.choice((self.view.number + 1, *NUMBERS)), self.view.founding_size
            parent = self.random.choice((self.view.hash, b"", b"another"))
            view = [*head, seats[self.random.randrange(2) :], parent, self.view.policy.value, self.view.founder]
        packed: bytes = msgpack.packb(view)
        return packed
