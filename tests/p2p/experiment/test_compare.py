"""Comparison of two reports: what is slower in the second."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from p2p.errors import ExperimentError
from p2p.experiment.command import compare_reports, report
from p2p.experiment.evaluation.compare import compare, counts, is_worse, notes, table
from p2p.experiment.evaluation.report import Evaluated, evaluate
from p2p.experiment.folder import Run, write_log
from p2p.telemetry.records import Kind
from tests.p2p.experiment.runs import A, B, C, account, event, killed, receipt, record, run


def kill(number: int, late_ms: float) -> Evaluated:
    """A kill whose times are `late_ms` later, with small variations."""
    found = killed()
    delay = round((late_ms + number % 3) * 1e6)
    tracks = {
        peer_id: type(track)(
            peer_id,
            track.receipts,
            [
                r._replace(time_ns=r.time_ns + delay) if r.kind == Kind.GONE or r.view == 2 or r.step > 2 else r
                for r in track.records
            ],
            True,
        )
        for peer_id, track in found.tracks.items()
    }
    return evaluate(Run(tracks, found.log))


def test_what_takes_longer_is_slower_and_the_same_again_is_not() -> None:
    one, again, slow = ([kill(number, late) for number in range(20)] for late in (0, 0, 10))
    rows = {row.name: row for row in compare(one, slow)}
    assert rows["kill resume"].verdict == "slower" and rows["kill detect"].verdict == "slower"
    assert is_worse(list(rows.values()), {})
    assert {row.verdict for row in compare(one, again)} <= {"same", "unclear"}
    assert {row.verdict for row in compare(slow, one) if row.name == "kill resume"} == {"faster"}
    assert {row.verdict for row in compare(one[:4], slow[:4]) if row.name.startswith("kill")} == {"fewer than 5"}


def test_a_time_of_0_hides_no_verdict_and_if_that_is_usual_there_is_no_ratio() -> None:
    one, slow = ([kill(number, late) for number in range(20)] for late in (0, 10))
    one[3].costs[0].times_ms["detected"] = 0.0
    assert {row.verdict for row in compare(one, slow) if row.name == "kill detect"} == {"slower"}
    for each in one:
        each.costs[0].times_ms["detected"] = 0.0  # as in a run made elsewhere, where a kill begins with its first sign
    assert {row.verdict for row in compare(one, slow) if row.name == "kill detect"} == {"no ratio"}


def test_steps_that_are_lost_are_worse_however_fast_the_rest_is() -> None:
    members = [A, B]
    whole = run({A: [receipt(step, members) for step in (1, 2, 3)]}, {})
    hole = run({A: [receipt(step, members) for step in (1, 3)]}, {})
    counted = counts([evaluate(whole)], [evaluate(hole)])
    assert counted["steps_lost"] == (0, 1)
    assert is_worse([], counted) and not is_worse([], counts([evaluate(hole)], [evaluate(whole)]))
    assert not is_worse([], counts([evaluate(hole)], [evaluate(hole)] * 5)), "more repetitions are no worse"
    assert is_worse([], counts([evaluate(whole), evaluate(hole)], [evaluate(hole)])), "one in each, not in every other"
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(table([], counted))
    assert any(line.split() == ["steps", "lost", "0", "1", "worse"] for line in captured.get().splitlines())


def test_other_events_and_other_machines_are_named() -> None:
    one = evaluate(killed())
    other = evaluate(Run(one.run.tracks, account([event("leave", 105, A)], [A, B, C])))
    assert list(notes([one], [one])) == []
    assert list(notes([one], [other])) == ["these are not the same events: what is compared is all of a kind"]


def test_a_report_is_drawn_as_a_file_of_its_own(tmp_path: Path) -> None:
    write_log(tmp_path, account([event("kill", 0, A, why_not="it was over")], [A, B]))
    (tmp_path / "receipts").mkdir()
    assert report(tmp_path, None, print, tmp_path / "plots") == 1
    svg = ElementTree.parse(tmp_path / "plots" / "timeline.svg").getroot()
    assert svg.find("{http://www.w3.org/2000/svg}style") is not None
    (tmp_path / "file").touch()
    with pytest.raises(ExperimentError, match=f"cannot write the report to {tmp_path / 'file'}: File exists"):
        report(tmp_path, None, print, tmp_path / "file")


def test_reports_are_compared_from_their_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, account([], [A, B]))
    assert compare_reports(tmp_path, tmp_path) == 0
    assert "1 runs" in capsys.readouterr().out
    with pytest.raises(ExperimentError, match="there is no folder"):
        compare_reports(tmp_path, tmp_path / "nothing")


def test_a_step_of_many_is_compared_with_its_neighbours() -> None:
    def steps(took_ms: float) -> list[Evaluated]:
        receipts = [receipt(step, [A]) for step in range(1, 101)]
        commits = [record(took_ms * step + step % 2 / 10, Kind.COMMITTED, step) for step in range(1, 101)]
        return [evaluate(run({A: receipts}, {A: commits}))]

    (row,) = compare(steps(10), steps(12))
    assert (row.name, row.verdict, len(row.a)) == ("step", "slower", 99)
