"""Verdict on a run in which one peer was killed and another joined, from receipts and flight recorders.

Pure functions over the files of the peers. The verdict is "0 lost" only if every step and every sample is on a receipt;
it names those that are not.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from p2p.step.receipts import Receipt, to_line
from p2p.telemetry.records import Kind, Record

DIGEST_LENGTH = 16
"""Hex digits that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The receipts of one run's peers.

    Attributes:
        receipts: of each peer by peer_id, in the order of its file.
        victim: the founding member that was killed.
        joiner: the peer that came later.
        num_samples: the stream has the positions 0 to num_samples - 1.
    """

    receipts: Mapping[str, Sequence[Receipt]]
    victim: str
    joiner: str
    num_samples: int

    @property
    def survivors(self) -> list[str]:
        """The founding members that were not killed."""
        return [peer_id for peer_id in self.receipts if peer_id not in (self.victim, self.joiner)]

    def committed(self) -> list[Receipt]:
        """One receipt per step that any peer has committed, in order of steps."""
        by_step = {receipt.step: receipt for receipts in self.receipts.values() for receipt in receipts}
        return [by_step[step] for step in sorted(by_step)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a run; `failures` is empty if it lost no step and no sample."""

    num_steps: int
    num_peers: int
    digest: str
    failures: tuple[str, ...]

    def __str__(self) -> str:
        if self.failures:
            return f"FAILED - {'; '.join(self.failures)}"
        return f"OK - {self.num_steps} steps, 0 lost, {self.num_peers} peers, digest {self.digest} equal on all"


def judge(run: Run) -> Verdict:
    """Check everything. Step 0, in which the founders meet, has a receipt but does not count as a step."""
    committed = run.committed()
    if not committed or committed[-1].step < 1:
        return Verdict(0, 0, "", ("no step was committed",))
    last = committed[-1]
    checks = (check_steps, check_bytes, check_digests, check_members, check_samples)
    failures = tuple(failure for check in checks for failure in check(run))
    return Verdict(last.step, len(last.contributions), last.state_digest[:DIGEST_LENGTH], failures)


def check_steps(run: Run) -> Iterator[str]:
    """No receipt is missing: from 0 on, or a joiner's first; to the end, or a victim's last."""
    end = run.committed()[-1].step
    for peer_id, receipts in run.receipts.items():
        steps = [receipt.step for receipt in receipts]
        if not steps:
            yield f"{peer_id} has committed nothing"
            continue
        first = steps[0] if peer_id == run.joiner else 0
        last = steps[-1] if peer_id == run.victim else end
        missing = sorted(set(range(first, last + 1)) - set(steps))
        if missing:
            yield f"{peer_id} has no receipt of step {missing[0]} ({len(missing)} of {first} to {last} are missing)"
        elif steps != list(range(first, last + 1)):
            yield f"the receipts of {peer_id} are not in order"


def check_bytes(run: Run) -> Iterator[str]:
    """All peers that have committed a step have the same receipt of it, including the victim."""
    versions: dict[int, dict[str, str]] = {}
    for peer_id, receipts in run.receipts.items():
        for receipt in receipts:
            versions.setdefault(receipt.step, {}).setdefault(to_line(receipt), peer_id)
    different = sorted(step for step, lines in versions.items() if len(lines) > 1)
    if different:
        step = different[0]
        yield f"{' and '.join(versions[step].values())} have different receipts of step {step}"
    lineages = {receipt.lineage for receipts in run.receipts.values() for receipt in receipts}
    if len(lineages) > 1:
        yield f"there are {len(lineages)} lineages, so somebody trained apart"


def check_digests(run: Run) -> Iterator[str]:
    """Every receipt has digests of the step's results and of the parameters that it was computed with."""
    for name in ("digest", "state_digest"):
        without = [receipt.step for receipt in run.committed() if receipt.step > 0 and not getattr(receipt, name)]
        if without:
            yield f"step {without[0]} has no {name}"


def check_members(run: Run) -> Iterator[str]:
    """Survivors are counted in every step, the victim until its death, the joiner from its entry on."""
    committed = run.committed()
    for peer_id in run.receipts:
        named = [peer_id in member_ids(receipt) for receipt in committed]
        if peer_id == run.victim:
            if not named[0] or named != sorted(named, reverse=True):
                yield f"{peer_id}, which was killed, is not on all receipts until its death"
            elif named[-1]:
                yield f"{peer_id} was killed and is still on the last receipt"
        elif peer_id == run.joiner:
            yield from _check_joiner(run, named)
        elif not all(named):
            yield f"{peer_id} is not on the receipt of step {committed[named.index(False)].step}"


def _check_joiner(run: Run, named: list[bool]) -> Iterator[str]:
    committed = run.committed()
    if not named[-1] or named[0] or named != sorted(named):
        yield f"{run.joiner} joined and is not on all receipts from then on"
        return
    entered = committed[named.index(True)].step
    if (own := run.receipts[run.joiner]) and own[0].step != entered:
        yield f"{run.joiner} is on receipts from step {entered} on, and has them from step {own[0].step} on"
    if not any(
        entry.num_samples for receipt in committed for entry in receipt.contributions if entry.peer_id == run.joiner
    ):
        yield f"{run.joiner} joined and added no sample to any step"


def check_samples(run: Run) -> Iterator[str]:
    """Each position of the stream is counted exactly once."""
    parts = sorted(
        (first, number, receipt.step)
        for receipt in run.committed()
        for entry in receipt.contributions
        for first, number in entry.samples
    )
    for receipt in run.committed():
        for entry in receipt.contributions:
            if entry.num_samples != sum(number for _, number in entry.samples):
                yield f"step {receipt.step} counts samples that nobody handed out"
                return
    beyond = (run.num_samples, 0, run.committed()[-1].step)
    for (first, number, step), (next_first, _, next_step) in pairwise([(0, 0, 0), *parts, beyond]):
        end = first + number
        if next_first > end:
            yield f"samples {end} to {next_first - 1} are counted in no step"
        elif next_first < end and next_first < run.num_samples:
            yield f"sample {next_first} is counted in step {step} and in step {next_step}"
        elif next_first < end:
            yield f"step {step} counts samples {first} to {end - 1}, and there are {run.num_samples}"


def member_ids(receipt: Receipt) -> list[str]:
    """The peer_ids of the members on a receipt, in rank order."""
    return [entry.peer_id for entry in receipt.contributions]


@dataclass(frozen=True, slots=True)
class Figures:
    """The cost of the kill, at the slowest survivor; None: not recorded.

    Attributes:
        next_commit_s: from SIGKILL to the first step committed without the victim.
        median_step_s: from commit to commit, over the whole run.
        detection_s: from SIGKILL to the kernel's proof that the process is gone.
        view_change_s: from there until the view without the victim is active.
    """

    next_commit_s: float | None
    median_step_s: float | None
    detection_s: float | None
    view_change_s: float | None


def measure(run: Run, records: Mapping[str, Sequence[Record]], killed_at_s: float) -> Figures:
    """Figures from the records of the survivors; `killed_at_s` is of the same monotonic clock."""
    after = [receipt for receipt in run.committed() if run.victim not in member_ids(receipt)]
    if not after:
        return Figures(None, None, None, None)
    told = [_times(records.get(peer_id, ())) for peer_id in run.survivors]
    commit, gone = (Kind.COMMITTED, after[0].step), (Kind.GONE, run.victim)
    active = Kind.ACTIVE, after[0].view_number
    steps = [(Kind.COMMITTED, receipt.step) for receipt in run.committed()]
    intervals = [times[b] - times[a] for times in told for a, b in pairwise(steps) if {a, b} <= times.keys()]
    return Figures(
        max((times[commit] - killed_at_s for times in told if commit in times), default=None),
        statistics.median(intervals) if intervals else None,
        max((times[gone] - killed_at_s for times in told if gone in times), default=None),
        max((times[active] - times[gone] for times in told if {active, gone} <= times.keys()), default=None),
    )


def _times(records: Sequence[Record]) -> dict[tuple[int, str | int], float]:
    """The first time, in seconds, of each step that was committed, view that was active, and peer that was gone."""
    times: dict[tuple[int, str | int], float] = {}
    for each in records:
        about = each.peer_id if each.kind == Kind.GONE else each.view if each.kind == Kind.ACTIVE else each.step
        times.setdefault((each.kind, about), each.time_ns / 1e9)
    return times
