"""`shoal postmortem`, from the files of runs."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from p2p.errors import ExperimentError
from p2p.experiment.evaluation.postmortem import postmortem
from p2p.experiment.folder import write_log
from p2p.launch.traces import ExitRecord
from p2p.telemetry.records import Kind
from p2p.telemetry.trace import Tail, write_trace
from tests.p2p.experiment.runs import account, write_receipts
from tests.p2p.telemetry.pages import A, B, identity, page


def told(folder: Path) -> tuple[int, list[str]]:
    said: list[str] = []
    return postmortem(folder, said.append), said


def leave_traces(tmp_path: Path) -> Path:
    """Traces of A, which computed step 3 when it died, and of B, which saw that; written from their pages."""
    folder = tmp_path / "run"
    (folder / "traces").mkdir(parents=True)
    made = {peer_id: page(tmp_path, identity(peer_id, name=name)) for peer_id, name in ((A, "0"), (B, "1"))}
    for peer_id, each in made.items():
        each.loop.note(Kind.COMMITTED, 2)
        each.training.note(Kind.RECEIVED, 2)
        if peer_id == B:
            each.training.note(Kind.SUBMITTED, 3)
            each.loop.note(Kind.GONE, peer=int(A, 16), how=1)
            each.loop.note(Kind.COMMITTED, 3)
        tail = Tail(each.path)
        write_trace(folder / "traces" / f"{peer_id}.trace", tail.identity, tail.read())
    return folder


def test_what_shoal_run_leaves_says_who_failed_by_what_and_who_waited(tmp_path: Path) -> None:
    folder = leave_traces(tmp_path)
    end = ExitRecord(
        peer_id=A,
        name="0",
        host="f" * 16,
        time_ns=0,
        code=-9,
        how="was killed by SIGKILL",
        has_failed=True,
        last_words="",
    )
    (folder / "ends-1.jsonl").write_text(json.dumps(asdict(end)) + '\n{"cut short')
    code, said = told(folder)
    assert code == 1
    assert said == [
        "run: 2 peers, step 3; 1 failed",
        "  1. peer 0 failed first, in step 3: it was killed by SIGKILL while computing step 3",
        "     0.003 s after the first record, 2001-09-09 01:46:40.003 UTC",
        "     peer 1 waited for it, exchanging step 3 with the others, 1 ms already",
        "     known by the kernel; all that continued had a step after 1 ms",
    ]


def test_pages_of_the_dead_are_enough(tmp_path: Path) -> None:
    leave_traces(tmp_path)
    code, said = told(tmp_path)
    assert code == 1
    assert said[1] == "  1. peer 0 failed first, in step 3: it died while computing step 3"


def test_an_experiment_says_what_it_did_itself(tmp_path: Path) -> None:
    folder = leave_traces(tmp_path)
    known = account([], [A, B])
    killed, other = known.processes
    write_log(folder, replace(known, processes=(replace(killed, code=-9, ended_by_experiment=True), other)))
    assert told(folder)[1][1].endswith("it was killed by SIGKILL (by the experiment) while computing step 3")


def test_who_was_asked_to_leave_and_did_has_not_failed_though_a_second_sigterm_met_it_as_it_ended(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    (folder / "traces").mkdir(parents=True)
    made = page(tmp_path, identity(A, name="0"))
    for kind in (Kind.COMMITTED, Kind.LEAVES, Kind.LEFT):
        made.loop.note(kind, 2)
    tail = Tail(made.path)
    write_trace(folder / "traces" / f"{A}.trace", tail.identity, tail.read())
    write_receipts(folder, "1", A)
    known = account([], [A])
    write_log(folder, replace(known, processes=(replace(known.processes[0], code=-15, ended_by_experiment=True),)))
    assert told(folder) == (0, ["run: 1 peer, step 2; none of them failed"])


def test_a_step_that_was_only_begun_is_not_said_to_be_reached(tmp_path: Path) -> None:
    made = page(tmp_path, identity(A))
    made.loop.note(Kind.COMMITTED, 2)
    made.training.note(Kind.BEGUN, 3)
    assert told(tmp_path)[1][0] == f"{tmp_path.name}: 1 peer, step 2; none of them failed"


def test_peers_are_called_by_their_numbers_in_last_words_too(tmp_path: Path) -> None:
    folder = leave_traces(tmp_path)
    known = account([], [A, B])
    waits = f"step 3 did not commit in 3 s: peer {B} has called no operation of step 3 yet, peer {'c' * 16} neither"
    write_log(
        folder, replace(known, processes=(replace(known.processes[0], code=1, last_line=waits), *known.processes[1:]))
    )
    said = told(folder)[1][1]
    assert said.endswith(
        "(step 3 did not commit in 3 s: peer 1 has called no operation of step 3 yet, peer cccccccc neither)"
    )


def test_where_nobody_failed_it_says_so_and_ends_with_0(tmp_path: Path) -> None:
    write_log(tmp_path, account([], [A, B]))
    assert told(tmp_path) == (0, [f"{tmp_path.name}: 2 peers, no step; none of them failed"])


def test_receipts_say_how_far_a_peer_has_come_that_left_no_records(tmp_path: Path) -> None:
    write_receipts(tmp_path)
    write_log(tmp_path, account([], [A]))
    (tmp_path / "traces").mkdir()
    assert told(tmp_path) == (0, [f"{tmp_path.name}: 1 peer, step 2; none of them failed"])
    (process,) = account([], [A]).processes
    write_log(tmp_path, replace(account([], [A]), processes=(replace(process, code=-9),)))
    (tmp_path / "traces" / f"{A}.trace").touch()
    assert told(tmp_path)[1] == [
        f"{tmp_path.name}: 1 peer, step 2; 1 failed",
        f"  the trace of peer {A} ends before any step, and its receipts at 2: times after that are not known",
        "  1. peer 0 failed first, in step 3: it was killed by SIGKILL",
    ]


def test_a_run_that_began_anew_when_all_had_died_is_read_as_it_is(tmp_path: Path) -> None:
    folder = leave_traces(tmp_path)
    write_receipts(folder, "1", A)
    write_receipts(folder, "2", B)
    code, said = told(folder)
    assert (code, said[:2]) == (
        1,
        ["run: 2 peers, step 3; 1 failed", "  it began 2 times: 11111111 up to step 2, then 22222222 up to step 2"],
    )
    assert said[2].startswith("  1. peer 0 failed first, in step 3")


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="there are no receipts"):
        told(tmp_path)
    (tmp_path / "ends-1.jsonl").write_text('{"peer_id": 1}\n')
    with pytest.raises(ExperimentError, match=r"ends-1.jsonl is not what this version of shoal writes"):
        told(tmp_path)
