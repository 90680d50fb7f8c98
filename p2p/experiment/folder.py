"""The folder of a run: receipts, traces, output, and the director's account (run.json); written and read here.

Folders of `shoal run --receipts` are read, too; these have no account of events.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import ExperimentError, RemoteProtocolError
from ..launch.traces import ENDS
from ..step.receipts import Continued, Receipt, read_continued, read_receipts
from ..telemetry.records import Kind, Record
from ..telemetry.snapshot import Identity
from ..telemetry.trace import SUFFIX as TRACE
from ..telemetry.trace import TRACES, read_trace, trace_path
from .clocks import Clocks, ClocksDisagree, Moments, fit, merge, moments
from .run_log import EventOutcome, Process, RunLog
from .usage import Usage

ACCOUNT: Final = "run.json"
RECEIPTS: Final = ".receipts.jsonl"


class Gap(NamedTuple):
    """Records of one half that are missing between two times."""

    since_ns: int
    until_ns: int
    num_records: int


@dataclass(frozen=True, slots=True)
class PeerHistory:
    """The receipts and the trace of one peer.

    Attributes:
        receipts: of the steps that the peer has committed as a member, in order.
        records: in the order of their times.
        has_trace: whether a trace exists.
        identity: identity in the trace; None: there is no trace, or it is cut off before that.
        continued: by lineage: the lineage it continues, for those that were begun after the death of all members of
            another lineage.
    """

    peer_id: str
    receipts: Sequence[Receipt]
    records: Sequence[Record]
    has_trace: bool
    identity: Identity | None = None
    continued: Mapping[str, Continued] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """The step of the last receipt; -1: there is none."""
        return self.receipts[-1].step if self.receipts else -1

    def missed(self) -> list[Gap]:
        """Gaps in the numbers of each half, which count from 1: records overwritten before they were read. In order."""
        last, found = [(0, 0), (0, 0)], list[Gap]()
        for record in self.records:
            half = Kind.FINISHED <= record.kind < Kind.LOGGED
            number, time_ns = last[half]
            if (num_records := record.number - number - 1) > 0:
                found.append(Gap(time_ns, record.time_ns, num_records))
            last[half] = record.number, record.time_ns
        return sorted(found)

    def lineages(self, steps: Iterable[int]) -> list[tuple[str, int]]:
        """Each step with its lineage; the receipt of the last one may be missing, if the peer ended right then."""
        known = {receipt.step: receipt.lineage for receipt in self.receipts}
        last = self.receipts[-1] if self.receipts else None
        found = []
        for step in steps:
            lineage = known.get(step, last.lineage if last is not None and step > last.step else "")
            found.append((lineage, step))
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """All data of one run.

    Attributes:
        log: None: the run has none.
        clocks: of the hosts, if there are several; all times are then by the reference clock.
    """

    tracks: dict[str, PeerHistory]
    log: RunLog | None
    clocks: Clocks | None = None

    @property
    def num_missed(self) -> int:
        """The number of records that were overwritten before they were read."""
        return sum(gap.num_records for track in self.tracks.values() for gap in track.missed())

    def cut_short(self) -> list[str]:
        """In words, which traces end before the receipts of their peers do."""
        lines = []
        for peer_id, track in self.tracks.items():
            last = max((record.step for record in track.records if record.kind == Kind.COMMITTED), default=-1)
            if track.has_trace and last < track.last_step:
                until = f"at step {last}" if last >= 0 else "before any step"
                lines.append(
                    f"the trace of peer {peer_id} ends {until}, and its receipts at {track.last_step}: "
                    "times after that are not known"
                )
        return lines

    def receipts(self) -> list[Receipt]:
        """One per step of each lineage, in the order of their commits."""
        known: dict[tuple[str, int], Receipt] = {}
        for track in self.tracks.values():
            for receipt in track.receipts:
                known.setdefault((receipt.lineage, receipt.step), receipt)
        order = {lineage: at for at, lineage in enumerate(self.lineages())}
        return sorted(known.values(), key=lambda receipt: (order[receipt.lineage], receipt.step))

    def lineages(self) -> list[str]:
        """All lineages, in the order in which they began."""
        first: dict[str, int] = {}
        for track in self.tracks.values():
            begins = track.records[0].time_ns if track.records else 0
            for receipt in track.receipts:
                first[receipt.lineage] = min(begins, first.get(receipt.lineage, begins))
        return sorted(first, key=lambda lineage: first[lineage])

    def starts(self) -> list[str]:
        """Lineages that continue no other one, in order: each is a separate run, unless there is an account."""
        return [each for each in self.lineages() if all(each not in track.continued for track in self.tracks.values())]

    def last_step(self, lineage: str) -> int:
        """The last step of `lineage` with a receipt."""
        return max(each.step for track in self.tracks.values() for each in track.receipts if each.lineage == lineage)


def write_log(folder: Path, account: RunLog) -> None:
    """Write run.json. OSError: it could not be written, and does not exist."""
    write_whole(folder / ACCOUNT, json.dumps(asdict(account), indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: after an error the previous content remains. OSError names the file."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def has_begun(folder: Path) -> bool:
    """Whether a step was committed in any repetition of an experiment."""
    return any(_read_log(path).first_step_ns for path in folder.glob(f"run-*/{ACCOUNT}"))


def runs_in(folder: Path) -> list[Path]:
    """The folders of runs in `folder`: repetitions of an experiment, or `folder` itself.

    Repetitions without run.json are included only if none has one.

    Raises:
        ExperimentError: no run is found.
    """
    if not folder.is_dir():
        raise ExperimentError(f"there is no folder {folder}")
    repetitions = _repetitions(folder)
    if found := [each for each in repetitions if (each / ACCOUNT).is_file()]:
        return found
    if (folder / ACCOUNT).is_file() or any(ends_in(folder)) or any(_receipt_files(folder)):
        return [folder]
    if found := [each for each in repetitions if any(_receipt_files(each))]:
        return found
    raise ExperimentError(
        f"there are no receipts in {folder}: give the folder of `shoal experiment --out`, or of `shoal run --receipts`"
    )


def unfinished_in(folder: Path) -> list[Path]:
    """Repetitions of an experiment without run.json, for example because the disk was full."""
    if folder in runs_in(folder):
        return []
    return [each for each in _repetitions(folder) if not (each / ACCOUNT).is_file()]


def _repetitions(folder: Path) -> list[Path]:
    """All folders of repetitions, by number."""
    found = (each for each in folder.glob("run-*") if each.is_dir())
    return sorted(found, key=lambda path: (len(path.name), path.name))


def read_run(folder: Path, *, is_one: bool = True) -> Run:
    """Read the folder of one run.

    Args:
        folder: of the run.
        is_one: refuse receipts of several runs, as left by peers that all died and began anew.

    Raises:
        ExperimentError: a file cannot be read, the receipts are of several runs, or clocks cannot be compared.
    """
    account = _read_log(folder / ACCOUNT) if (folder / ACCOUNT).is_file() else None
    tracks: dict[str, PeerHistory] = {}
    files = {path.name.removesuffix(RECEIPTS): path for path in _receipt_files(folder)}
    for peer_id in sorted({*files, *(path.name.removesuffix(TRACE) for path in (folder / TRACES).glob(f"*{TRACE}"))}):
        try:
            tracks[peer_id] = _read_track(folder, peer_id, files.get(peer_id))
        except (OSError, ValueError, KeyError, TypeError, RemoteProtocolError) as error:
            raise ExperimentError(f"cannot read what peer {peer_id} left in {folder}: {error}") from error
    run = Run(tracks, account)
    starts = run.starts()
    if is_one and account is None and len(starts) > 1:
        where = next(iter(files.values())).parent
        raise ExperimentError(
            f"{folder} has receipts of {len(starts)} runs ({', '.join(each[:8] for each in starts)}): to report on "
            f"the last one, move those of the others elsewhere (`grep -L {starts[-1][:8]} {where}/*{RECEIPTS}` lists "
            "them); `shoal postmortem` reads all of them as they are"
        )
    _refuse_strangers(run, folder)
    _refuse_other_clocks(run, folder)
    return run if account is not None else _by_one_clock(run, folder)


def _refuse_other_clocks(run: Run, folder: Path) -> None:
    """ExperimentError: two peers of one host ran in time namespaces with different clocks."""
    first: dict[str, Identity] = {}
    for who in (track.identity for track in run.tracks.values() if track.identity is not None):
        other = first.setdefault(who.host, who)
        if other.offsets != who.offsets:
            raise ExperimentError(
                f"{folder} has traces of one host by two clocks: peer {other.peer_id} ({other.offsets}) and peer "
                f"{who.peer_id} ({who.offsets}) were in different time namespaces; run it again with all in one"
            )


def _refuse_strangers(run: Run, folder: Path) -> None:
    """ExperimentError: there are receipts of a lineage that no peer started by this run was in."""
    own = set() if run.log is None else {each.peer_id for each in run.log.processes if each.peer_id}
    known = {each.lineage for peer_id in own & run.tracks.keys() for each in run.tracks[peer_id].receipts}
    for peer_id in sorted(run.tracks.keys() - own):
        other = {each.lineage for each in run.tracks[peer_id].receipts} - known
        if known and other:
            raise ExperimentError(
                f"{folder} has receipts of peer {peer_id}, in lineage {min(other)[:8]}, which this run did not start: "
                "they are of another run; give each run a folder"
            )


def hosts_of(run: Run) -> dict[str, str]:
    """The host of each peer that has a trace, by peer_id."""
    return {peer_id: track.identity.host for peer_id, track in run.tracks.items() if track.identity is not None}


def host_steps(run: Run) -> list[dict[str, Moments]]:
    """For steps that members on two or more hosts have committed: when each host had finished and committed them."""
    order = [(receipt.lineage, receipt.step) for receipt in run.receipts()]
    peers = []
    for peer_id, host in hosts_of(run).items():
        lineages = {each.step: each.lineage for each in run.tracks[peer_id].receipts}
        peers.append((host, moments(run.tracks[peer_id].records, lineages)))
    return merge(peers, order)


def _by_one_clock(run: Run, folder: Path) -> Run:
    """Convert records of several hosts to the clock of one. For runs without an account; the others have one clock."""
    hosts = hosts_of(run)
    if len(set(hosts.values())) < 2:
        return run
    try:
        clocks = fit(host_steps(run))
    except ClocksDisagree:
        raise ExperimentError(
            f"the clocks of {len(set(hosts.values()))} hosts in {folder} cannot be compared: whatever they are, a step "
            "was committed before it was finished; are these traces and receipts of one run?"
        ) from None
    tracks = {
        peer_id: replace(
            track, records=[r._replace(time_ns=clocks.to_reference(hosts[peer_id], r.time_ns)) for r in track.records]
        )
        if peer_id in hosts
        else track
        for peer_id, track in run.tracks.items()
    }
    return replace(run, tracks=tracks, clocks=clocks)


def _read_track(folder: Path, peer_id: str, path: Path | None) -> PeerHistory:
    """Read one peer's receipts and trace. `path`: its receipts; None: it has none."""
    receipts = [] if path is None else read_receipts(path)
    continued = {} if path is None else read_continued(path)
    traces = [trace_path(each, peer_id) for each in (folder, *(() if path is None else (path.parent,)))]
    if path is None or any(trace.is_file() for trace in traces):
        who, records = read_trace(next((trace for trace in traces if trace.is_file()), traces[0]))
        return PeerHistory(peer_id, receipts, records, True, who, continued)
    old = path.with_name(f"{peer_id}.timings.jsonl")
    if old.is_file():
        raise ValueError(
            f"{old.name} is of an older version of shoal, and there is no trace: report on it with that version"
        )
    return PeerHistory(peer_id, receipts, [], False, continued=continued)


def ends_in(folder: Path) -> list[Path]:
    """The files in which launchers list ended processes, one per host."""
    return sorted(folder.glob(ENDS.format(host="*")))


def _receipt_files(folder: Path) -> Iterator[Path]:
    within = folder / "receipts"
    return (within if within.is_dir() else folder).glob(f"*{RECEIPTS}")


def _read_log(path: Path) -> RunLog:
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        values["processes"] = tuple(Process(**each) for each in values["processes"])
        values["events"] = tuple(EventOutcome(**each) for each in values["events"])
        values["losses"] = tuple((int(time_ns), int(index), float(loss)) for time_ns, index, loss in values["losses"])
        values["usage"] = tuple(Usage(*map(int, each)) for each in values.get("usage", ()))
        return RunLog(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"{path} is not what this version of shoal writes: {error}") from error
