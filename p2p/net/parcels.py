"""Parcels to a peer without a seat: a state or a committed step, cut into segments and reassembled.

A *parcel* has parts: part 0 is its record, which describes it, the others are raw bytes. Each segment carries the
xxh3-128 of its bytes, and flags for the last of a part and of the parcel; a link delivers in order. If several donors
send a state, the parcel of the first has what only that one sends, and each sends its *share* of the other parts: some
of their segments (catchup/shares.py). donor.py decides when parcels are sent, observer.py what becomes of them. Leaves
out: resuming, rate limits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import xxhash

from gossip import Member, View
from gossip.progress import Finish
from gossip.view import NO_NUMERICS

from ..errors import RemoteProtocolError
from .wire import Codec

Raw = bytes | memoryview
"""Bytes of a tensor, or of a part of one."""

RunInBackground = Callable[[Callable[[], None], Callable[[], None]], Callable[[], bool]]
"""Starts a thread that calls two functions in turn; the result tells whether both have returned."""


@dataclass(frozen=True, slots=True)
class PackedState:
    """State of a replica: `tree` describes the bytes of `tensors`.

    Attributes:
        is_whole: whether the copy in `tensors` is complete. Raises MemoryShort or FrozenDiffer if it never will be.
            None: the tensors are lent, and complete.
        replicated: indices of tensors that are equal on all members of a numerics class.
        run_in_background: runs two functions in a thread; lent tensors are not changed before the first has returned.
            None: they are lent until the borrower returns.
        frozen: indices of the larger frozen parameters (catchup/frozen.py).
        known: digest of the frozen parameters that the receiver already has. A copy leaves them out, and fails if they
            differ; empty: the copy has all.
    """

    tree: bytes
    tensors: Sequence[Raw]
    is_whole: Callable[[], bool] | None = None
    replicated: Sequence[int] = ()
    run_in_background: RunInBackground | None = None
    frozen: Sequence[int] = ()
    known: bytes = b""


@dataclass(frozen=True, slots=True)
class StateRecord:
    """Record of a state: the digest of the chain of steps up to its own step, and the view in which that was committed.

    Part 1 is the tree, part i the (i-2)-th tensor. `numerics`: class of the donor; `is_due`: rows of measured links are
    due in the next training step (step/agreed_rows.py).

    If several `donors` send it, of which the sender is the first: `shared` lists the parts that are cut into shares,
    with their lengths (`shares.pack_parts`), in chunks of `chunk_bytes`, each with 16 bytes of digest. The parcel does
    not contain these parts.

    `frozen`: digest of the frozen parameters that are left out, since the requester has them: their parts are empty.
    """

    digest: bytes
    view: View
    numerics: bytes = NO_NUMERICS
    is_due: bool = False
    donors: tuple[Member, ...] = ()
    shared: bytes = b""
    chunk_bytes: int = 0
    chunk_digests: bytes = b""
    frozen: bytes = b""


class Chunk(NamedTuple):
    """A segment of a part of a state; part i is tensor i - 2."""

    part: int
    segment: int


SOON: Final = -2
"""In place of a step: to be named later."""


class ShareRequest(NamedTuple):
    """SHARE?: `first` asks for share `number` of `num_shares` of the state after `step`, to be sent to `observer`.

    That is every `num_shares`-th chunk, from that number on. A chunk has `chunk_bytes`, or fewer at a tensor's end.
    `frozen`: as in STATE?; if the observer has sent it, frozen parameters have no chunks. `SOON` in place of a step
    announces the request, so that memory can be prepared (catchup/rooms.py).
    """

    first: Member
    observer: Member
    step: int
    number: int
    num_shares: int
    chunk_bytes: int
    frozen: bytes = b""


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """Record of a share of the state that `first` was asked for; segments of parts of that state follow."""

    first: Member


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Record of a committed step. Part i has the result of its (i-1)-th operation.

    Attributes:
        previous: digest of the chain before the step; `digest` is of the chain up to it.
        finish: of any member; all are equal.
        view: the view in which the step was finished.
        counts: first sample, number and weight of the samples of each member of `view` (step/receipts.py).
        algorithms: of the operations, without the counts.
        fingerprints: of the operations, in order.
        shown: what the sender's replica is compared by; empty if the step is not one of a model.
        numerics: class of the sender.
        path: position in the sender's script that called the step (step/call_path.py), if it is not one of a model.
    """

    previous: bytes
    digest: bytes
    finish: Finish
    view: View
    counts: tuple[tuple[int, int, int], ...]
    algorithms: tuple[str, ...]
    fingerprints: tuple[bytes, ...]
    shown: bytes = b""
    numerics: bytes = NO_NUMERICS
    path: bytes = b""


Record = StateRecord | StepRecord | ShareRecord
_CODEC = Codec([StateRecord, StepRecord, ShareRecord])


@dataclass(frozen=True, slots=True)
class Parcel:
    """The state after `step`, or that step; `parts` are as described by the record, once `is_whole`, if given, is true.

    Attributes:
        seal: creates the record, once the parts are complete.
        chunks: for a share: which chunk each of `parts` is.
    """

    step: int
    record: Record
    parts: Sequence[Raw]
    is_whole: Callable[[], bool] | None = None
    seal: Callable[[], Record] | None = None
    chunks: Sequence[Chunk] = ()

    @property
    def num_bytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class ParcelSegment:
    """One frame of a parcel: segment `index` of its part; whether the last of the part, and of the parcel.

    `is_share`: the parcel is a share of a state.
    """

    step: int
    is_state: bool
    part: int
    index: int
    is_last: bool
    is_final: bool
    digest: bytes
    payload: Raw
    is_share: bool = False


def cut(parcel: Parcel, segment_bytes: int) -> Iterator[ParcelSegment]:
    """All segments in order; each part has at least one, so that an empty part arrives too."""
    if isinstance(parcel.record, ShareRecord):
        yield from _cut_share(parcel, _CODEC.encode(parcel.record))
        return
    is_state = isinstance(parcel.record, StateRecord)
    record = parcel.record if parcel.seal is None else parcel.seal()
    for part, buffer in enumerate((_CODEC.encode(record), *parcel.parts)):
        is_final_part = part == len(parcel.parts)
        view = memoryview(buffer).cast("B")
        starts = range(0, len(view), segment_bytes) or range(1)
        for index, start in enumerate(starts):
            payload = view[start : start + segment_bytes]
            is_last = start + segment_bytes >= len(view)
            digest = xxhash.xxh3_128_digest(payload)
            yield ParcelSegment(parcel.step, is_state, part, index, is_last, is_last and is_final_part, digest, payload)


def _cut_share(parcel: Parcel, record: bytes) -> Iterator[ParcelSegment]:
    """The record, followed by the share's segments of parts of a state."""
    num_left = len(parcel.chunks)
    for (part, index), payload in zip((Chunk(0, 0), *parcel.chunks), (record, *parcel.parts), strict=True):
        digest = xxhash.xxh3_128_digest(payload)
        yield ParcelSegment(parcel.step, True, part, index, True, num_left == 0, digest, payload, is_share=True)
        num_left -= 1


def read_share(segment: ParcelSegment) -> ShareRecord:
    """The record in the first segment of a share.

    Raises:
        RemoteProtocolError: the segment is damaged, or has no such record.
    """
    check(segment)
    record = _CODEC.decode(bytes(segment.payload))
    if not isinstance(record, ShareRecord):
        raise RemoteProtocolError(f"share of the state of step {segment.step}: a record of something else")
    return record


def check(segment: ParcelSegment) -> None:
    """Verify the digest of a segment.

    Raises:
        RemoteProtocolError: the bytes differ from those that were sent.
    """
    if xxhash.xxh3_128_digest(segment.payload) != segment.digest:
        kind = "state of " if segment.is_state else ""
        raise RemoteProtocolError(f"{kind}step {segment.step}: part {segment.part} was damaged on the way")


class Assembly:
    """Reassembly of one parcel. A wrong segment leaves it unchanged."""

    def __init__(self, step: int, *, is_state: bool) -> None:
        self.step, self.is_state = step, is_state
        self.num_bytes = 0
        self._parts: list[bytes] = []
        self._open: list[bytes] = []

    def add(self, segment: ParcelSegment) -> Parcel | None:
        """The parcel, if `segment` was its last.

        Raises:
            RemoteProtocolError: segment of another parcel, out of order, or damaged; or a wrong record.
        """
        name = f"{'state of' if self.is_state else ''} step {self.step}".strip()
        expected = self.step, self.is_state, len(self._parts), len(self._open)
        if (segment.step, segment.is_state, segment.part, segment.index) != expected:
            raise RemoteProtocolError(
                f"{name}: step {segment.step}, part {segment.part}, segment {segment.index} came instead of "
                f"part {len(self._parts)}, segment {len(self._open)}"
            )
        check(segment)
        payload = bytes(memoryview(segment.payload))
        self._open.append(payload)
        self.num_bytes += len(payload)
        if not segment.is_last:
            return None
        self._parts.append(b"".join(self._open))
        self._open = []
        return self._unpack() if segment.is_final else None

    def _unpack(self) -> Parcel:
        record, *parts = self._parts
        decoded = _CODEC.decode(record)
        fits = isinstance(decoded, StateRecord) and bool(parts) if self.is_state else _is_whole(decoded, parts)
        if not fits or (isinstance(decoded, StepRecord) and decoded.finish.step != self.step):
            raise RemoteProtocolError(f"step {self.step}: a record that does not fit its {len(parts)} parts")
        assert isinstance(decoded, StateRecord | StepRecord)
        return Parcel(self.step, decoded, parts)


def _is_whole(record: object, parts: Sequence[bytes]) -> bool:
    if not isinstance(record, StepRecord):
        return False
    return len(record.fingerprints) == len(parts) and len(record.counts) == len(record.view.members)
