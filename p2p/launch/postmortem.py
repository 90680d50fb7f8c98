"""Why a run has failed: the peer that failed first, its step, the kind of failure, and its last activity."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..errors import RemoteProtocolError
from ..telemetry.failures import ProcessTrace, failures, sentence, shortened
from ..telemetry.page import PageContent, page_path, read_page
from ..telemetry.records import ADVANCES, Kind, Record
from ..telemetry.snapshot import Counted
from .peer_slots import PeerSlot

MOST_OTHERS: Final = 16
"""Peers whose pages are read, to find those that waited for the first failed one."""


class Postmortem:
    """Finds the first failure of one run.

    Attributes:
        first: the first failure, in words; empty: there is none.
        is_news: whether `first` says more than the line about that end: the peer had joined, or others failed, too.
        folder: of the registry, with the pages of dead peers.
    """

    def __init__(self, folder: Path) -> None:
        """No peer has failed yet; `folder` as above."""
        self.first, self.is_news = "", False
        self.folder = folder

    def examine(self, place: PeerSlot) -> PageContent | None:
        """Read the page of the last process in `place`, which has ended and is not reaped.

        Updates the step and contributions of `place` from the page, which may be newer than the last report.

        Returns:
            The page; None: the peer has left in order, or never joined.
        """
        standing = place.snapshot
        seen = None if standing is None else self._read(standing.identity.peer_id)
        if standing is None or seen is None:
            return None
        done = max((record.step for record in seen.records if record.kind in ADVANCES), default=-1)
        place.snapshot = replace(
            standing,
            step=max(done, standing.step),
            has_begun=standing.has_begun or done >= 0,
            counted=_counted(standing.counted, seen.records),
        )
        return seen

    def last_ns(self, place: PeerSlot) -> int:
        """When the last process in `place` was last active, by its page or its last report; 0: it had not joined."""
        standing = place.snapshot
        seen = None if standing is None else self._read(standing.identity.peer_id)
        known = 0 if standing is None else standing.time_ns
        return known if seen is None or not seen.records else seen.records[-1].time_ns

    def conclude(
        self,
        place: PeerSlot,
        seen: PageContent | None,
        last_words: str,
        now_ns: int = 0,
        others: Iterable[PeerSlot] = (),
    ) -> None:
        """Note a failure; if it is the first, describe it in `first`.

        Args:
            place: of the failed peer.
            seen: its page.
            last_words: its last line on stderr.
            now_ns: by the clock of its records.
            others: places of peers that still run.
        """
        assert place.exit_outcome is not None
        if self.first:
            self.is_news = True
            return
        own = ProcessTrace(
            peer_id="" if place.snapshot is None else place.snapshot.identity.peer_id,
            name=place.name,
            records=() if seen is None else seen.records,
            ended_ns=now_ns,
            code=place.exit_outcome.code,
            how=place.exit_outcome.words,
            has_failed=True,
            last_words=shortened(last_words),
        )
        self.is_news = place.snapshot is not None
        (failure,) = failures([own, *self._trails(others if seen is not None else ())])
        failure = replace(failure, step=place.step + 1 if place.step >= 0 else -1)
        waiting = [each.name for each in failure.others if each.waits]
        self.first = sentence(failure) + (f"; peer {', '.join(waiting)} waited for it" if waiting else "")
        if failure.waited_for:
            self.first += f"; it waited for peer {', '.join(failure.waited_for)}"

    def _trails(self, others: Iterable[PeerSlot]) -> list[ProcessTrace]:
        """The trails of peers that have not failed."""
        trails = []
        for other in [other for other in others if other.snapshot is not None][:MOST_OTHERS]:
            assert other.snapshot is not None
            peer_id = other.snapshot.identity.peer_id
            if (seen := self._read(peer_id)) is not None:
                trails.append(ProcessTrace(peer_id=peer_id, name=other.name, records=seen.records, has_failed=False))
        return trails

    def _read(self, peer_id: str) -> PageContent | None:
        try:
            return read_page(page_path(self.folder, peer_id))
        except (OSError, RemoteProtocolError):
            return None


def _counted(told: Counted, records: Sequence[Record]) -> Counted:
    """What receipts have of a peer that has `told` so much last: what its script knew, and what it has not heard of."""
    behind = next((index for index in reversed(range(len(records))) if records[index].kind == Kind.RECEIVED), -1)
    if behind >= 0:
        told = replace(told, steps=records[behind].size, samples=int(records[behind].value))
    elif told.steps:
        return told
    since = [each for each in records[behind + 1 :] if each.kind == Kind.COMMITTED and each.step > 0]
    return replace(told, steps=told.steps + len(since), samples=told.samples + sum(int(each.value) for each in since))
