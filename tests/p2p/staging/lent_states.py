"""A state in memory of the host is copied for joiners, whole or a share of it, while the script would change it."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from torch import Tensor

from p2p.catchup.state_copy import StateCopy, share_of
from p2p.net.parcels import Parcel, StateRecord, Wish
from p2p.training.replica_state import lent
from p2p.training.state_copies import StateCopies
from tests.p2p.net.parcels import A, B, view_of

LATE_S: Final = 0.02
"""So long a copy waits for an update that does not come before it."""

CHUNK_BYTES: Final = 1 << 16


def copy_lent_states(copies: StateCopies, tensors: Sequence[Tensor], drawn: random.Random) -> None:
    """Three updates of `tensors`, the last of which donors share; after each, copies are begun that are late."""
    expected: list[list[bytes]] = []
    given: list[Parcel] = []
    for step in range(3):
        for tensor in tensors:
            tensor.fill_(step + 1)  # an update
        is_updated = threading.Event()
        for _ in range(drawn.choice([0, 1, 1, 2])):
            late = partial(_aside_late, copies, is_updated)
            state = replace(lent(b"a tree", tensors, [len(tensors) - 1]), aside=late)
            now = [bytes(part) for part in state.tensors]
            if drawn.random() < 0.5:
                wish = Wish(A, B, step, drawn.randrange(2), 2, CHUNK_BYTES)
                given.append(share_of(state, wish))
                chunks = [now[-1][at : at + CHUNK_BYTES] for at in range(0, len(now[-1]), CHUNK_BYTES)]
                expected.append(chunks[wish.number :: 2])
            else:
                copy = StateCopy(step, state, CHUNK_BYTES, is_shared=drawn.random() < 0.5)
                given.append(copy.whole(StateRecord(b"", view_of(A))))
                expected.append([b"a tree", *now])
        copies.hold()
        for tensor in tensors:
            tensor.fill_(-1 if tensor.dtype.is_signed else 99)
        is_updated.set()
    copies.end()
    for parcel, wanted in zip(given, expected, strict=True):
        assert parcel.is_whole is not None and parcel.is_whole()
        assert [bytes(part) for part in parcel.parts] == wanted


def _aside_late(
    copies: StateCopies, is_updated: threading.Event, copy: Callable[[], None], then: Callable[[], None]
) -> Callable[[], bool]:
    """The thread begins late: after the update, if that does not wait for it."""

    def begin() -> None:
        is_updated.wait(LATE_S)
        copy()

    return copies.aside(lambda: None, begin, then)
