"""`shoal postmortem FOLDER`: which peers failed, in order of causes, from the files that a run has left.

The folder is one of `shoal experiment`; one of `shoal run --receipts`, with traces and the ends of processes beside the
receipts; or a registry folder, with the pages of dead peers.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import ExperimentError, RemoteProtocolError
from ...launch.peer_slots import ExitOutcome
from ...launch.traces import ExitRecord
from ...telemetry.failures import Failure, ProcessTrace, consequences, failures, sentence, shortened
from ...telemetry.page import SUFFIX as PAGE
from ...telemetry.page import PageContent, read_page
from ...telemetry.records import ADVANCES, Kind
from ...telemetry.snapshot import SHORT, Identity, renamed
from ..clocks import Clocks
from ..folder import Run, ends_in, read_run, runs_in
from ..run_log import Process

BY_HAND: Final = " (by the experiment)"


def postmortem(folder: Path, say: Callable[[str], None]) -> int:
    """Print the post-mortem of each run in `folder`; 1 if any peer has failed.

    Raises:
        ExperimentError: the folder holds no run, or cannot be read.
    """
    pages = sorted(folder.glob(f"*{PAGE}")) if folder.is_dir() else []
    if pages:
        seen = [page for path in pages if (page := _read(path)) is not None]
        return _tell(folder.name, [trail_of_page(each) for each in seen], [each.identity for each in seen], say)
    code = 0
    for each in runs_in(folder):
        run = read_run(each, is_one=False)
        who = [track.identity for track in run.tracks.values() if track.identity is not None]
        if run.clocks is not None:
            who = [each for each in who if each.host == run.clocks.reference]
        code |= _tell(each.name, trails(run, each), who, say, run)
    return code


def _read(path: Path) -> PageContent | None:
    try:
        return read_page(path)
    except (OSError, RemoteProtocolError):
        return None


def trail_of_page(seen: PageContent) -> ProcessTrace:
    return ProcessTrace(peer_id=seen.identity.peer_id, name=seen.identity.name, records=seen.records)


def trails(run: Run, folder: Path) -> list[ProcessTrace]:
    """The trails of all peers of a run, and of processes that never joined."""
    ended = _by_experiment(run) if run.log is not None else _by_launchers(folder, run.clocks)
    known = {trail.peer_id for trail in ended}
    found = ended + [
        ProcessTrace(peer_id=peer_id, name=peer_id[:SHORT] if track.identity is None else track.identity.name)
        for peer_id, track in run.tracks.items()
        if peer_id not in known
    ]
    tracks = [run.tracks.get(trail.peer_id) for trail in found]
    found = [
        trail if track is None else replace(trail, records=track.records, last_step=track.last_step)
        for trail, track in zip(found, tracks, strict=True)
    ]
    names = Counter(trail.name for trail in found)
    return [
        replace(trail, name=f"{trail.name} ({trail.peer_id[:SHORT] or 'never joined'})")
        if names[trail.name] > 1
        else trail
        for trail in found
    ]


def _by_experiment(run: Run) -> list[ProcessTrace]:
    assert run.log is not None
    return [_of_process(process, run) for process in run.log.processes]


def _of_process(process: Process, run: Run) -> ProcessTrace:
    trail = ProcessTrace(peer_id=process.peer_id, name=str(process.index), ended_ns=process.ended_ns, code=process.code)
    if process.code is None:
        return trail
    track = run.tracks.get(process.peer_id)
    kinds = set() if track is None else {record.kind for record in track.records}
    ending = ExitOutcome.of(
        process.code,
        has_begun=track is not None and bool(track.receipts),
        is_through=Kind.LEFT in kinds,  # a second SIGTERM may meet it as its interpreter ends
        is_removed=Kind.REMOVED in kinds,
    )
    return replace(
        trail,
        how=ending.words + (BY_HAND if process.ended_by_experiment and ending.exit_code else ""),
        has_failed=bool(ending.exit_code),
        last_words=shortened(process.last_line),
    )


def _by_launchers(folder: Path, clocks: Clocks | None) -> list[ProcessTrace]:
    """Trails from the launchers of all hosts that wrote to this folder."""
    ends: list[ExitRecord] = []
    for path in ends_in(folder):
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            ends += [ExitRecord(**json.loads(line)) for line in lines if line.endswith("\n")]
        except (OSError, ValueError, TypeError) as error:
            raise ExperimentError(f"{path} is not what this version of shoal writes: {error}") from error
    return [
        ProcessTrace(
            peer_id=end.peer_id,
            name=end.name,
            ended_ns=end.time_ns if clocks is None else clocks.to_reference(end.host, end.time_ns),
            code=end.code,
            how=end.how,
            has_failed=end.has_failed,
            last_words=shortened(end.last_words),
        )
        for end in ends
    ]


def _tell(
    name: str,
    found: Sequence[ProcessTrace],
    who: Sequence[Identity],
    say: Callable[[str], None],
    run: Run | None = None,
) -> int:
    """Print the post-mortem of one run. `run`: None: only its pages are known."""
    names = {trail.peer_id: trail.name for trail in found}
    found = [
        replace(trail, last_words=renamed(trail.last_words, lambda peer_id: names.get(peer_id, peer_id[:SHORT])))
        for trail in found
    ]
    failed = failures(found)
    done = [record.step for trail in found for record in trail.records if record.kind in ADVANCES]
    newest = max([*(trail.last_step for trail in found), *done], default=-1)
    begin_ns = min((trail.records[0].time_ns for trail in found if trail.records), default=None)
    step = f"step {newest}" if newest >= 0 else "no step"
    say(f"{name}: {len(found)} peer{'s' if len(found) != 1 else ''}, {step}; {len(failed) or 'none of them'} failed")
    if run is not None and run.log is None and len(starts := run.starts()) > 1:
        words = ", then ".join(f"{each[:SHORT]} up to step {run.last_step(each)}" for each in starts)
        say(f"  it began {len(starts)} times: {words}")
    for line in [] if run is None else run.cut_short():
        say(f"  {line}")
    if run is not None and run.clocks is not None and run.clocks.plus_minus_ms:
        say(f"  times between hosts are right to ± {run.clocks.plus_minus_ms:g} ms")
    if not failed and not any(trail.has_failed is False for trail in found):
        say("  no record says how any of them ended: they still run, or all ended at once")
    for number, failure in enumerate(failed, 1):
        say(f"{number:3}. {sentence(failure, is_first=number == 1)}")
        if begin_ns is None:
            continue  # no record of any peer, so no time to count from, and no consequences
        say(f"     {(failure.time_ns - begin_ns) / 1e9:.3f} s after the first record{_wall(failure, who)}")
        for line in consequences(failure):
            say(f"     {line}")
    return 1 if failed else 0


def _wall(failure: Failure, who: Sequence[Identity]) -> str:
    """The wall-clock time of a failure; empty if no trace has the offset."""
    if not who:
        return ""
    offset_ns = who[0].wall_ns - who[0].joined_ns
    at = np.datetime64((failure.time_ns + offset_ns) // 10**6, "ms")
    return f", {str(at).replace('T', ' ')} UTC"
