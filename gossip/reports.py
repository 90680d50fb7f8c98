"""Reports of the members of a view about each other, and the members that these cut from the next view.

A report counts as long as its sender repeats it (a lease), so that two members that took each other for dead by
mistake, or whose link recovered, do not block the view. Proof (the kernel's word) counts forever, and one proof or
refused link is enough. Silence needs reports of a majority of the members that could have heard something, and then
some time without changes, so that members that went together leave in one view (Rapid, Suresh et al. 2018, section
4.2). A report outlives a silence that has just ended by its lease, so a member that hears the subject itself waits
longer before it proposes the cut. If only two members cannot hear each other for long, one of them is cut, since a
collective needs every pair. Flapping members count like silent ones if a quorum is left without them: if all flap, the
network is the cause.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .messages import AcceptorRecord, Report, ReportKind
from .view import Member, View, is_quorum

RESTARTS = {
    ReportKind.STALLED: "stalled: frames were lost",
    ReportKind.WITHDRAWN: "withdrawn by",
    ReportKind.ABORTED: "aborted by",
    ReportKind.READABLE: "restarted over shared memory by",
}
UNHEARD = ReportKind.SILENT, ReportKind.FLAPPING


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsConfig:
    """Lifetime of reports, and certainty of silence."""

    silent_s: float = 1.5
    """A member that is silent for this long is reported; times 1 + local health."""

    lease_s: float = 1.5
    """A report that is not repeated is forgotten after this long."""

    stable_s: float = 0.3
    """Silent members are cut when the reports have not changed for this long."""

    force_cut_s: float = 2.25
    """If only one member does not hear another, one of the two is cut after this long. Several silent members are cut
    this long after the first of them, even if reports still change."""

    def __post_init__(self) -> None:
        values = (self.silent_s, self.lease_s, self.stable_s, self.force_cut_s)
        if not all(0 < value < math.inf for value in values) or not self.stable_s <= self.force_cut_s:
            raise ValueError(
                "need silent_s, lease_s, stable_s and force_cut_s positive and finite, "
                f"and stable_s <= force_cut_s, got {values}"
            )


@dataclass(frozen=True, slots=True)
class Cut:
    """Members to be cut, by the present reports.

    Attributes:
        gone: in rank order.
        silent: those of them that are merely silent, by the reports of others or of this member.
        settles_at: when to propose a view without them; reports may change until then.
        forced_at: when a member proposes it that hears one of the `silent` itself.
        redo_reason: why the same members should restart the step; empty: they should not.
    """

    gone: tuple[Member, ...] = ()
    silent: tuple[Member, ...] = ()
    settles_at: float = -math.inf
    forced_at: float = -math.inf
    redo_reason: str = ""

    @property
    def is_urgent(self) -> bool:
        """Whether none of them is merely silent."""
        return not self.silent


@dataclass(slots=True)
class _Lease:
    since: float
    until: float
    is_old: bool
    """The report has been repeated for `force_cut_s`."""


_Leases = Mapping[tuple[ReportKind, Member, Member, int], _Lease]


@dataclass(slots=True)
class Reports:
    """All reports of the members of one view, in that view."""

    config: ReportsConfig
    proven: dict[Member, None] = field(default_factory=dict)
    records: dict[Member, AcceptorRecord] = field(default_factory=dict)
    _view: View | None = None
    _leases: dict[tuple[ReportKind, Member, Member, int], _Lease] = field(default_factory=dict)
    _silent: tuple[Member, ...] = ()
    _silent_since: float = 0.0
    _unsettled_since: float = math.inf
    _last: tuple[int, float, Cut] | None = None
    """The last result of `cut`: for which step, and until when it is valid without new reports."""

    def install(self, view: View) -> None:
        """Start with a new view. Only proofs about its members are kept."""
        self._view = view
        self.proven = {member: None for member in self.proven if member in view.members}
        self.records = {member: record for member, record in self.records.items() if member in view.members}
        self._leases.clear()
        self._last = None
        self._silent, self._unsettled_since = (), math.inf

    def receive(self, now: float, source: Member, report: Report) -> None:
        """Count a report of `source`, a member of the view. Reports about non-members are ignored."""
        assert self._view is not None
        subject = source if report.kind in RESTARTS else report.subject
        if report.subject != subject or self._view.since(subject) is None:
            return
        if report.kind is ReportKind.PROVEN:
            if subject not in self.proven:
                self._last = None
            self.proven[subject] = None
            if report.record is not None:
                self.records.setdefault(subject, report.record)
            return
        if report.kind not in RESTARTS and subject == source:
            return
        key = report.kind, source, subject, report.step
        lease = self._leases.get(key)
        is_new = lease is None or lease.until <= now
        since = now if lease is None or is_new else lease.since
        is_old = now - since >= self.config.force_cut_s
        if lease is None or is_new or lease.is_old != is_old:
            self._last = None
        self._leases[key] = _Lease(since, now + self.config.lease_s, is_old)

    def is_empty(self) -> bool:
        return not self._leases and not self.proven

    def flaps(self, member: Member) -> bool:
        """Whether any member reports that `member` flaps."""
        return any(kind is ReportKind.FLAPPING and subject == member for kind, _, subject, _ in self._leases)

    def has_stalled(self, now: float, step: int) -> bool:
        """Whether any member reports that frames of `step` were lost."""
        leases = self._leases.items()
        return any(key[0] is ReportKind.STALLED and key[3] == step and lease.until > now for key, lease in leases)

    def cut(self, now: float, step: int) -> Cut:
        """Members to be cut at `now`, while `step` is open."""
        assert self._view is not None
        if self._last is not None and self._last[0] == step and now < self._last[1]:
            return self._last[2]
        self._leases = {key: lease for key, lease in self._leases.items() if lease.until > now}
        certain, silent = self._missing()
        self._watch_silence(now, silent)
        gone = tuple(member for member in self._view.members if member in certain or member in silent)
        restart = next((self._restart(key) for key in self._leases if key[0] in RESTARTS and key[3] == step), "")
        times = (self._settles_at(), self._forced_at()) if silent else (-math.inf, -math.inf)
        found = Cut(gone, self._silent, *times, restart)
        self._last = step, min((lease.until for lease in self._leases.values()), default=math.inf), found
        return found

    def _missing(self) -> tuple[set[Member], set[Member]]:
        """Members that are certainly gone, and members that are silent."""
        assert self._view is not None
        certain, silent = self._missing_by(self._leases)
        if is_quorum([m for m in self._view.members if m not in certain and m not in silent], self._view):
            return certain, silent
        heard = {key: lease for key, lease in self._leases.items() if key[0] is not ReportKind.FLAPPING}
        return self._missing_by(heard)  # a slow view of all is better than none

    def _missing_by(self, leases: _Leases) -> tuple[set[Member], set[Member]]:
        certain = {*self.proven}
        certain |= self._apart(certain, leases)
        return certain, self._unheard(certain, leases)

    def _apart(self, certain: Collection[Member], leases: _Leases) -> set[Member]:
        """One member of each pair that cannot talk: the one with more accusers, else the one of greater rank.

        Before that, each member that cannot talk to a quorum: it is cut off, not all the others.
        """
        assert self._view is not None
        unheard: dict[tuple[Member, Member], bool] = {}
        for (kind, reporter, subject, _), lease in leases.items():
            if kind not in RESTARTS and subject not in certain:  # a report about a dead member blames no reporter
                is_for_long = kind is ReportKind.REFUSED or lease.is_old
                unheard[reporter, subject] = unheard.get((reporter, subject), False) or is_for_long
        pairs = {pair for pair, is_for_long in unheard.items() if is_for_long}
        ranks = self._ranks
        apart = {reporter for reporter, _ in pairs if self._is_cut_off(reporter, unheard)}
        while pairs := {p for p in pairs if not any(member in apart or member in certain for member in p)}:
            accused = Counter(subject for _, subject in pairs)
            apart.add(max(self._view.members, key=lambda m: (accused[m], ranks[m])))
        return apart

    def _is_cut_off(self, reporter: Member, pairs: Collection[tuple[Member, Member]]) -> bool:
        assert self._view is not None
        return not is_quorum([member for member in self._view.members if (reporter, member) not in pairs], self._view)

    @property
    def _ranks(self) -> dict[Member, int]:
        assert self._view is not None
        return {member: rank for rank, member in enumerate(self._view.members)}

    def _unheard(self, certain: Collection[Member], leases: _Leases) -> set[Member]:
        """Members that most others that could hear them report as silent or flapping."""
        assert self._view is not None
        accusers: dict[Member, set[Member]] = {}
        for kind, reporter, subject, _ in leases:
            if kind in UNHEARD and reporter not in certain and subject not in certain:
                accusers.setdefault(subject, set()).add(reporter)
        silent: set[Member] = set()
        ranks = self._ranks
        while True:
            others = [m for m in self._view.members if m not in certain and m not in silent]
            more = {
                subject
                for subject, sources in accusers.items()
                if subject in others and 2 * len(sources - silent) > len(others) - 1
            }
            if not more:
                break
            silent.add(max(more, key=lambda m: (len(accusers[m] - silent), ranks[m])))
        awake = [member for member in self._view.members if member not in certain]
        if not is_quorum([member for member in awake if member not in silent], self._view):
            silent = {member for member in silent if 2 * len(accusers[member]) > len(awake) - 1}
        return silent

    def _watch_silence(self, now: float, silent: Collection[Member]) -> None:
        assert self._view is not None
        ordered = tuple(member for member in self._view.members if member in silent)
        if ordered != self._silent:
            self._unsettled_since = min(self._unsettled_since, now) if ordered else math.inf
            self._silent, self._silent_since = ordered, now

    def _settles_at(self) -> float:
        return min(self._forced_at(), self._silent_since + self.config.stable_s)

    def _forced_at(self) -> float:
        return self._unsettled_since + self.config.force_cut_s

    def _restart(self, key: tuple[ReportKind, Member, Member, int]) -> str:
        kind, source, _, step = key
        by = "" if kind is ReportKind.STALLED else f" {source}"
        return f"step {step} is {RESTARTS[kind]}{by}"
