"""Copies of a state in memory of the host, whole or a share of it, while the script is about to change it."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from torch import Tensor

from p2p.catchup.frozen import FrozenDiffer, digest_of
from p2p.catchup.state_copy import StateCopy, share_of
from p2p.net.parcels import Parcel, ShareRequest, StateRecord
from p2p.training.state.replica_state import FlatState, lent
from p2p.training.state.state_copies import StateCopies
from tests.p2p.net.parcels import A, B, view_of

T = TypeVar("T")

LATE_S: Final = 0.02
"""Time for which a copy waits for an update that would wrongly come before it."""

CHUNK_BYTES: Final = 1 << 16


class LateCopies:
    """Lets a thread that copies a state be late: it waits for an update, if that does not wait for the copy."""

    def __init__(self) -> None:
        self.is_updated = threading.Event()

    def wait(self) -> None:
        """Wait for the update, or, once for each update, until it is clear that it waits for us."""
        if not self.is_updated.wait(LATE_S):
            self.is_updated.set()

    def delaying(self, call: Callable[..., T]) -> Callable[..., T]:
        """`call`, late."""

        def late(*given: object) -> T:
            self.wait()
            return call(*given)

        return late


def copy_lent_states(copies: StateCopies, tensors: Sequence[Tensor], drawn: random.Random) -> None:
    """Make three updates of `tensors`, the last of which donors share; after each begin copies that are late."""
    expected: list[list[bytes]] = []
    given: list[Parcel] = []
    for step in range(3):
        for tensor in tensors:
            tensor.fill_(step + 1)  # an update
        late_copies = LateCopies()
        for _ in range(drawn.choice([0, 1, 1, 2])):
            late = partial(_aside_late, copies, late_copies)
            frozen = drawn.choice([[], [0, 2], [len(tensors) - 1]])
            state = replace(lent(FlatState(b"a tree", tensors, [len(tensors) - 1], frozen)), run_in_background=late)
            now = [bytes(part) for part in state.tensors]
            digest = digest_of([(number, len(now[number])) for number in frozen], [now[number] for number in frozen])
            state = replace(state, known=drawn.choice([b"", bytes(16), digest]))
            kept = {*frozen} if state.known else set()
            if drawn.random() < 0.5:
                wish = ShareRequest(A, B, step, drawn.randrange(2), 2, CHUNK_BYTES)
                given.append(share_of(state, wish))
                shared = b"" if len(tensors) - 1 in kept else now[-1]
                chunks = [shared[at : at + CHUNK_BYTES] for at in range(0, len(shared), CHUNK_BYTES)]
                expected.append(chunks[wish.number :: 2])
            else:
                copy = StateCopy(step, state, CHUNK_BYTES, is_shared=drawn.random() < 0.5)
                given.append(copy.whole(StateRecord(b"", view_of(A))))
                is_unlike = bool(frozen) and state.known == bytes(16)
                left_out = [b"" if number in kept else part for number, part in enumerate(now)]
                expected.append([] if is_unlike else [b"a tree", *left_out])
        copies.order_after_copies()
        for tensor in tensors:
            tensor.fill_(-1 if tensor.dtype.is_signed else 99)
        late_copies.is_updated.set()
    copies.end()
    for parcel, wanted in zip(given, expected, strict=True):
        assert parcel.is_whole is not None
        try:
            assert parcel.is_whole() and [bytes(part) for part in parcel.parts] == wanted
        except FrozenDiffer:
            assert wanted == []


def _aside_late(
    copies: StateCopies, late: LateCopies, copy: Callable[[], None], then: Callable[[], None]
) -> Callable[[], bool]:
    return copies.aside(lambda: None, late.delaying(copy), then)
