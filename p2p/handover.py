"""The state after a step on its way to a joiner: cut into segments, checked, put together again.

A packed state is a tree of plain values (`wire.pack_tree`) and the raw bytes of its tensors. Part 0 is the tree, part
i the (i-1)-th tensor. Every segment carries the xxh3-128 of its bytes, and the last of each part, and of all, says
so; a link delivers in order. Leaves out: several donors, resuming, rate limits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from gossip import Member

from .errors import RemoteProtocolError


@dataclass(frozen=True, slots=True)
class PackedState:
    """What a joiner receives: `tree` tells what the bytes of `tensors` are."""

    tree: bytes
    tensors: Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class StateSegment:
    """One frame of a packed state: the `index`-th of its part, whether the last of it, and of everything."""

    part: int
    index: int
    is_last: bool
    is_final: bool
    digest: bytes
    payload: bytes | memoryview


Packer = Callable[[], PackedState]


def cut(state: PackedState, segment_bytes: int) -> Iterator[StateSegment]:
    """All segments in order; every part has at least one, so that an empty tensor arrives too."""
    for part, buffer in enumerate((state.tree, *state.tensors)):
        is_final_part = part == len(state.tensors)
        view = memoryview(buffer).cast("B")
        starts = range(0, len(view), segment_bytes) or range(1)
        for index, start in enumerate(starts):
            payload = view[start : start + segment_bytes]
            is_last = start + segment_bytes >= len(view)
            digest = xxhash.xxh3_128_digest(payload)
            yield StateSegment(part, index, is_last, is_last and is_final_part, digest, payload)


class Assembly:
    """Puts the segments of one state together. A wrong one changes nothing."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._parts: list[bytes] = []
        self._open: list[bytes] = []

    def add(self, segment: StateSegment) -> PackedState | None:
        """The state, if `segment` was its last.

        Raises:
            RemoteProtocolError: out of order, or not the bytes that were sent.
        """
        if (segment.part, segment.index) != (len(self._parts), len(self._open)):
            raise RemoteProtocolError(
                f"state of step {self.step}: part {segment.part}, segment {segment.index} came instead of "
                f"{len(self._parts)}, {len(self._open)}"
            )
        payload = bytes(memoryview(segment.payload))
        if xxhash.xxh3_128_digest(payload) != segment.digest:
            raise RemoteProtocolError(f"state of step {self.step}: part {segment.part} was damaged on the way")
        self._open.append(payload)
        if not segment.is_last:
            return None
        self._parts.append(b"".join(self._open))
        self._open = []
        return PackedState(self._parts[0], self._parts[1:]) if segment.is_final else None


class Handover:
    """Who waits for this peer's state, when it may be copied, and the state that this peer receives."""

    def __init__(self) -> None:
        self._assembly: Assembly | None = None
        self._packer: tuple[int, Packer] | None = None
        self._withheld: int | None = None
        self._waiting: dict[Member, int | None] = {}

    def install(self) -> None:
        """Another view: whoever still needs a state asks again."""
        self._waiting = {}
        self._assembly = None

    def take(self, step: int, segment: StateSegment) -> PackedState | None:
        """The state after `step` that this peer asked for, if `segment` was the last of it."""
        if self._assembly is None:
            self._assembly = Assembly(step)
        return self._assembly.add(segment)

    def complete(self, step: int, packer: Packer) -> None:
        """The state after `step` is complete, and `packer` copies it."""
        self._packer = step, packer

    def withhold(self, step: int) -> None:
        """The state after `step` may be incomplete, and stays so until another step is committed."""
        self._withheld = step

    def ask(self, member: Member, step: int) -> None:
        """`member` needs the state after `step`; it is given one once in a view."""
        self._waiting.setdefault(member, step)

    def serve(self, done: int, send: Callable[[Member, PackedState], None]) -> Iterator[tuple[Member, str]]:
        """Send the state to whoever waits for it, if it may be copied now, with `done` the last committed step.

        Yields:
            Whom it cannot be sent to, and why.
        """
        is_complete = self._packer is not None and self._packer[0] == done
        if not is_complete and self._withheld != done:
            return
        for member in [member for member, step in self._waiting.items() if step == done]:
            self._waiting[member] = None
            if not is_complete:
                yield member, "it came between a backward pass and the next, where an operation waits for all members"
                continue
            assert self._packer is not None
            try:
                state = self._packer[1]()
            except (TypeError, ValueError) as error:
                yield member, f"the state cannot be sent to it: {error}"
            else:
                send(member, state)


@dataclass(frozen=True, slots=True)
class Replica:
    """What a peer trains, for those who give and receive it.

    Attributes:
        layout: hash and description of the state; a swarm admits only who has the same hash.
        pack: copies the state, in the loop thread, while nothing changes it.
        load: takes over a member's state, in the training thread.
        compare: says in words how a swarm's description differs from this one.
    """

    layout: tuple[str, bytes]
    pack: Packer
    load: Callable[[PackedState], None]
    compare: Callable[[bytes], str]


def compare_with_nothing(layout: bytes) -> str:
    """`Replica.compare` of a peer that trains no model."""
    return "the swarm trains a model, and this peer has none: construct p2p.DataParallel before the first operation"
