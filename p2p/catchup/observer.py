"""What this peer takes in while it has no seat: a state, then the steps that the members commit. Belongs to the loop.

An observer runs its training loop like everybody else. Where the members commit a step, it is given that step's
results instead, once its own training thread has submitted the same operations; so clipping, schedules and any
optimizer happen to it as to all. A state is offered to the training thread, which loads it when it next waits: what it
has submitted counts for nothing, so it does not matter which parameters that was computed with.
"""

import logging
from collections.abc import Callable

from gossip import Core, Member
from gossip import effects as fx
from gossip.effects import AskForState, Send
from gossip.messages import StateQuery

from ..errors import OperationMismatch, RemoteProtocolError
from ..net.frames import Delivery
from ..net.parcels import Assembly, PackedState, Parcel, StateRecord, StepRecord
from ..step.effects import Leave, Note, StepEffect, Tell
from ..step.notices import StateOffer
from ..step.open_step import OpenStep

logger = logging.getLogger("p2p")

Effect = fx.Effect | StepEffect

MOST_KEPT_BYTES = 1 << 30
"""Committed steps that wait for their turn; further ones are left out, and the state is asked for again."""

FEWEST_KEPT = 8
"""So many steps are kept in any case."""

PATIENCE_S = 2.0
"""While a state comes in, nobody else is asked for it; this long after its last segment somebody is."""

MOST_SOURCES = 256
"""Peers that are listened to."""


class Observer:
    """One peer on its way into a view."""

    def __init__(self, core: Core, open_step: OpenStep, send_taken: Callable[[Member, int, int], None]) -> None:
        """Nothing has come. `send_taken` takes a source, its stream and a number of segments."""
        self._core = core
        self._open_step = open_step
        self._send_taken = send_taken
        self._streams: dict[Member, tuple[int, int]] = {}
        self._assemblies: dict[Member, Assembly] = {}
        self._asked: dict[Member, None] = {}
        self._state_came = -PATIENCE_S
        self._is_offered = False
        self._held: Parcel | None = None
        self._kept: dict[tuple[int, bytes], Parcel] = {}
        self._next: Parcel | None = None

    # What comes.

    def ask(self, now: float, wish: AskForState) -> list[Effect]:
        """STATE?, if there is none to load, and none on its way."""
        if self._is_offered or now - self._state_came < PATIENCE_S:
            return []
        self._asked[wish.donor] = None
        return [Send(wish.donor, StateQuery(wish.step), self._core.stamp)]

    def receive(self, now: float, delivery: Delivery) -> list[Effect]:
        """A segment of a parcel.

        Raises:
            RemoteProtocolError: out of order, or damaged; the parcel is lost.
        """
        source, stream, segment = delivery
        is_first = (segment.part, segment.index) == (0, 0)
        number, count = self._streams.get(source, (0, 0))
        if self._core.seated or stream < number or (stream > number and not is_first):
            return []  # nothing is needed any more, or it began before this peer listened
        self._streams.pop(source, None)
        self._streams[source] = stream, count + 1 if stream == number else 1
        if len(self._streams) > MOST_SOURCES:
            del self._streams[next(iter(self._streams))]
        self._send_taken(source, *self._streams[source])
        if is_first:
            self._assemblies[source] = Assembly(segment.step, is_state=segment.is_state)
        if source not in self._assemblies or (segment.is_state and source not in self._asked):
            return []
        noted: list[Effect] = []
        if segment.is_state:
            self._state_came = now
            if is_first:
                logger.info("the state after step %d comes from %s", segment.step, source)
                noted.append(Note("state", segment.step))
        try:
            parcel = self._assemblies[source].add(segment)
        except RemoteProtocolError:
            del self._assemblies[source]
            raise
        if parcel is None:
            return noted
        del self._assemblies[source]
        return [*noted, *self._take(parcel)]

    def forget(self, source: Member) -> None:
        """It is gone, and what it has sent in part will not be completed."""
        self._streams.pop(source, None)
        if (assembly := self._assemblies.pop(source, None)) is not None and assembly.is_state:
            self._state_came = -PATIENCE_S

    def seated(self) -> None:
        """Nothing is needed any more."""
        self._streams, self._assemblies, self._asked, self._kept = {}, {}, {}, {}
        self._held = self._next = None

    def _take(self, parcel: Parcel) -> list[Effect]:
        record = parcel.record
        if isinstance(record, StateRecord):
            self._held = parcel
            return self._offer()
        enough = len(self._kept) >= FEWEST_KEPT and sum(p.num_bytes for p in self._kept.values()) > MOST_KEPT_BYTES
        if parcel.step <= self._core.done or enough:
            return []
        self._kept[parcel.step, record.digest] = parcel
        return [*self._core.fed(parcel.step, record.previous, record.digest)]

    # States.

    def _offer(self) -> list[Effect]:
        """Let the training thread load the state that has come, unless it has one to load already."""
        if self._held is None or self._is_offered:
            return []
        parcel, self._held = self._held, None
        assert isinstance(parcel.record, StateRecord)
        if not self._fits(parcel.step, parcel.record):
            return []
        self._is_offered = True
        tree, *tensors = parcel.parts
        state = PackedState(bytes(tree), tensors)
        return [Tell(StateOffer(parcel.step, parcel.record.digest, parcel.record.view, state))]

    def _fits(self, step: int, record: StateRecord) -> bool:
        core = self._core
        if core.view is not None and record.view.lineage != core.view.lineage:
            return False
        return core.takes(step, record.digest)

    def loaded(self, now: float, offer: StateOffer) -> list[Effect]:
        """The state that was offered is loaded."""
        self._is_offered = False
        self._asked, self._state_came = {}, -PATIENCE_S
        return [*self._advance(now, offer.step, offer.chain), *self._offer()]

    def _advance(self, now: float, step: int, chain: bytes) -> list[fx.Effect]:
        self._kept = {key: parcel for key, parcel in self._kept.items() if key[0] > step}
        self._next = None
        return self._core.loaded(now, step, chain)

    # Steps.

    def apply(self, step: int, digest: bytes) -> None:
        """The core says that this step is next."""
        self._next = self._kept.get((step, digest))

    def go_on(self, now: float) -> list[Effect]:
        """Hand out the results of the next step, if that is here and the training thread has submitted it."""
        parcel = self._next
        if parcel is None or self._is_offered or self._core.seated:
            return []
        record = parcel.record
        assert isinstance(record, StepRecord)
        try:
            commit = self._open_step.take_over(record, parcel.parts)
        except OperationMismatch as error:
            self._next = None
            return [Tell(error), Leave()]
        return [] if commit is None else [Tell(commit), *self._advance(now, parcel.step, record.digest)]
