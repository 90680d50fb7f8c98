"""Heir election: which peer without a seat continues after all members have died, on several hosts. R29 of PROTOCOL.md.

All members are dead if each member of the last view in the records of dead peers is proven dead, with a record of its
own. A proof (DIED, or the word of a peer's own kernel) is passed on to peers that may lack it. Then each peer says
which step's state it holds (HELD), and the first of them, by the rank of its host in that view, chooses the heir. It
writes the choice into its acceptor record before it announces it, so that a peer that decides after its death finds the
choice there. No peer replaces a decider that is only silent.

Leaves out: peers of a single host, among which the registry decides (p2p/loop/seat_request.py).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .acceptor import NO_BALLOT
from .claim import Claim, State
from .commit import StepMachine
from .config import CoreConfig
from .effects import Effect, Explain, Send, WriteRecord
from .known_views import KnownViews
from .messages import AcceptorRecord, Choice, Held, Report, ReportKind
from .observing import Observing
from .swim import Swim
from .view import Member, View

MOST_HELD = 1024
"""Limit of the peers whose HELD is kept."""


@dataclass(frozen=True, slots=True)
class ElectionStatus:
    """Fate of a swarm whose members have all died.

    Attributes:
        view: the last one.
        heir: the peer that continues; None: not decided, or not known here.
        is_lost: no peer holds a state of the members.
        waits_for: peers, with their hosts, whose word has been missing for too long; empty: not too long yet.
    """

    view: View
    heir: Member | None
    is_lost: bool
    waits_for: str = ""


class HeirElection:
    """Knowledge of one peer without a seat about the death of all members. Without other hosts, it does nothing."""

    def __init__(
        self,
        swim: Swim,
        steps: StepMachine,
        observing: Observing,
        views: KnownViews,
        dead: Mapping[Member, AcceptorRecord | None],
        *,
        config: CoreConfig,
    ) -> None:
        """`dead`: peers proven dead, with the records read after their deaths; updated by the caller."""
        self._me = swim.me.member
        self._swim = swim
        self._steps = steps
        self._observing = observing
        self._views = views
        self._dead = dead
        self._config = config
        self._last: View | None = None
        self._since = math.inf
        self._held: dict[Member, Held] = {}
        self._met: dict[Member, None] = {}
        self._written: Choice | None = None
        self._word: Held | None = None
        self._num_passed_on = 0

    # Knowledge

    def _records(self) -> dict[Member, AcceptorRecord]:
        return {member: record for member, record in self._dead.items() if record is not None}

    def _last_view(self) -> View | None:
        """Last view of this peer's lineage, if all its members are proven dead. None: some may continue."""
        own, records = self._observing.lineage, self._records()
        if not records or self._views.lives(self._swim, own):
            return None
        views = [record.view for record in records.values() if record.view is not None]
        for lineage in (own,) if own else dict.fromkeys(view.lineage for view in views):
            numbers = {view.number: view for view in views if view.lineage == lineage}
            last = numbers[max(numbers)] if numbers else None
            is_latest = last is not None and last.number >= self._views.number_of(lineage)
            if last is not None and is_latest and all(member in records for member in last.members):
                return last
        return None

    def _waiting(self, last: View) -> list[Claim]:
        """All other peers that may be without a seat, heard or not, in the order in which they decide."""
        claims = [claim for claim in self._swim.known_claims() if last.since(claim.member) is None]
        return sorted(claims, key=lambda claim: _place(last, claim))

    def _said(self, last: View) -> dict[Member, int]:
        """Steps whose states others hold, as they have said."""
        return {member: held.step for member, held in self._held.items() if held.lineage == last.lineage}

    def _heir(self, last: View) -> Member | None:
        """The chosen heir, unless it is known that it has not begun to continue and never will."""
        own = [] if self._written is None else [self._written]
        choices = [*own, *(record.choice for record in self._records().values() if record.choice is not None)]
        choices += [Choice(held.lineage, held.heir) for held in self._held.values() if held.heir is not None]
        chosen = (choice.heir for choice in choices if choice.lineage == last.lineage)
        return next((heir for heir in chosen if not self._is_void(heir)), None)

    def _is_void(self, heir: Member) -> bool:
        claim, record = self._swim.claim_of(heir), self._dead.get(heir)
        is_over = claim is not None and claim.state is State.DEAD and record is not None and record.choice is None
        return is_over or (claim is not None and claim.state is State.LEFT)

    def _missing(self, last: View) -> list[Claim]:
        """Peers without whose word this peer must not choose: those that decide before it, and those that it can hear.

        Also peers that have waited and died, with their records not read, or restarted: such a peer may know the heir.
        """
        said, own = self._said(last), _place(last, self._swim.me)
        waiting = self._waiting(last)
        before = [claim for claim in waiting if _place(last, claim) < own and said.get(claim.member) != 0]
        silent = [claim for claim in waiting if self._swim.is_alive(claim.member) and claim.member not in said]
        latest = [(member, claim) for member in self._met if (claim := self._swim.latest(member)) is not None]
        elsewhere = [claim for member, claim in latest if claim.member != member]
        unread = [c for member, c in latest if c.state is State.DEAD and self._dead.get(member) is None]
        return list(dict.fromkeys((*before, *silent, *elsewhere, *unread)))

    @property
    def _holds(self) -> int:
        return max(self._observing.held, 0)

    def _choose(self, now: float, last: View) -> Member | None:
        """The holder of the newest state among the peers that are heard, if this peer is to choose."""
        settled_s = 2 * self._config.beat_s  # peers that are not known yet introduce themselves meanwhile
        if not self._holds or now - self._since < settled_s or self._missing(last):
            return None
        here = {member: step for member, step in self._said(last).items() if self._swim.is_alive(member)}
        here[self._me] = self._holds
        return min(here, key=lambda member: (-here[member], member.incarnation, member.peer_id))

    def status(self, now: float) -> ElectionStatus | None:
        """Fate of the swarm; None: the members are not all proven dead."""
        last = self._last
        if last is None:
            return None
        heir, said = self._heir(last), self._said(last)
        is_lost = not self._holds and all(said.get(claim.member) == 0 for claim in self._waiting(last))
        is_late = now - self._since >= self._config.heir_s and heir != self._me
        if not is_late or (heir is not None and self._swim.is_alive(heir)):
            return ElectionStatus(last, heir, is_lost)
        if heir is not None:
            return ElectionStatus(last, heir, is_lost, f"peer {heir}, which was to continue the run")
        missing = self._missing(last) or [claim for claim in self._waiting(last) if said.get(claim.member) != 0]
        names = ", ".join(f"peer {claim.member} of host {claim.contact.host}" for claim in missing)
        return ElectionStatus(last, None, is_lost, names or "peers that no peer here has met")

    # Messages

    def hear(self, source: Member, held: Held) -> None:
        """HELD of `source`, which has no seat, and knows that its members are dead."""
        if source in self._held or len(self._held) < MOST_HELD:
            self._held[source] = held

    def advance(self, now: float, *, repeat: bool = False) -> list[Effect]:
        """Pass on proofs, choose an heir if possible, and send what is new; all of it again to `repeat` it."""
        if self._steps.view is not None or not self._swim.me.contact.remote_control:
            return []
        last = self._last = self._last_view()
        effects: list[Effect] = [*self._pass_on(repeat=repeat)]
        if last is None:
            self._since, self._met = math.inf, {}
            return effects
        self._met.update(dict.fromkeys(claim.member for claim in self._waiting(last)))
        if self._since == math.inf:
            self._since = now
            effects.append(Explain(f"all members of view {last.number} have died"))
        heir = self._heir(last)
        if heir is None and (heir := self._choose(now, last)) is not None:
            effects += self._write(Choice(last.lineage, heir))
        if heir == self._me:
            effects += self._write(Choice(last.lineage, heir))
        before, self._word = self._word, Held(last.lineage, self._holds, heir)
        if repeat or before != self._word:
            effects += [Send(member, self._word) for member in self._swim.neighbours() if last.since(member) is None]
        return effects

    def _write(self, choice: Choice) -> list[Effect]:
        """Write the choice, before it is announced or followed."""
        if choice == self._written:
            return []
        self._written = choice
        return [
            WriteRecord(AcceptorRecord(None, NO_BALLOT, None, choice)),
            Explain(f"{choice.heir} continues the run: it holds the newest state"),
        ]

    def withdraw(self) -> list[Effect]:
        """This peer leaves. If it is the heir, withdraw the choice: it has not begun to continue."""
        if self._written is None or self._written.heir != self._me:
            return []
        self._written = None
        return [WriteRecord(AcceptorRecord(None, NO_BALLOT, None))]

    def _pass_on(self, *, repeat: bool) -> list[Effect]:
        """Send proofs about members to peers that may not know them, and proofs about waiting peers to all.

        Not where members live, which continue by them.
        """
        records = self._records()
        is_new, self._num_passed_on = len(records) != self._num_passed_on, len(records)
        if not (repeat or is_new) or self._views.lives(self._swim, self._observing.lineage):
            return []
        views = [record.view for record in records.values() if record.view is not None]
        latest = {view.lineage: view for view in sorted(views, key=lambda view: view.number)}
        members = {member for view in latest.values() for member in view.members}
        others = [member for member in self._swim.neighbours() if member not in members]
        return [
            Send(other, Report(ReportKind.PROVEN, member, record=record))
            for other in others
            for member, record in records.items()
            if (member in members and other not in self._held) or (record.view is None and self._last is not None)
        ]


def _place(last: View, claim: Claim) -> tuple[int, str, int, str]:
    """Sort key of deciders: the rank of their host in the last view, then the time they have waited there."""
    hosts = list(dict.fromkeys(seat.contact.host for seat in last.seats))
    host = claim.contact.host
    rank = hosts.index(host) if host in hosts else len(hosts)
    return rank, host, claim.member.incarnation, claim.member.peer_id
