import json
import math
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import ExperimentError
from p2p.experiment.command import report
from p2p.experiment.evaluation.drawing import INNER, thin
from p2p.experiment.evaluation.page import About, page
from p2p.experiment.evaluation.report import evaluate, failures, to_json
from p2p.experiment.evaluation.statistics import describe
from p2p.experiment.evaluation.steps import StepBreakdown
from p2p.experiment.folder import read_run, runs_in, write_log
from p2p.telemetry.records import Kind, Record
from p2p.telemetry.trace import trace_path, write_trace
from tests.p2p.experiment.runs import A, B, account, event, killed, receipt, record, run, write_receipts
from tests.p2p.telemetry.pages import identity, pack_record


class Checked(HTMLParser):
    """Checks that all tags are closed, and that no resource is external."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag not in ("script", "link", "img", "iframe")
        assert "src" not in values
        if "id" in values:
            self.ids.add(values["id"] or "")
        if "href" in values:
            self.links.add((values["href"] or "").removeprefix("#"))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Checked:
    found = Checked()
    found.feed(text)
    assert found.open == []
    assert found.links <= found.ids
    assert "url(" not in text and "@import" not in text
    return found


def test_the_page_is_whole_needs_nothing_else_and_links_table_and_picture() -> None:
    found = checked(page(About("<b>", 'script = "<x>"', {}), [evaluate(killed())]))
    assert {"e1", "row1"} <= found.links
    assert "&lt;b&gt;" in page(About("<b>", "", {}), [evaluate(killed())])


@pytest.mark.long
def test_ten_thousand_steps_are_less_than_300_kb() -> None:
    number = 10_000
    receipts = [receipt(step, [A, B], [(32 * step, 16), (32 * step + 16, 16)]) for step in range(1, number + 1)]
    commits = [record(20.0 * step + 5 * math.sin(step * step), Kind.COMMITTED, step) for step in range(1, number + 1)]
    long = run({A: receipts, B: receipts}, {A: commits, B: commits}, [event("kill", 5000, A)])
    assert len(page(About("long", "", {}), [evaluate(long)] * 3)) < 300_000


def test_over_repetitions_there_are_medians_and_intervals() -> None:
    text = page(About("x", "", {}), [evaluate(killed())] * 3)
    assert "Over 3 runs" in text
    assert "25.0 (25.0 to 25.0)" in text


def test_events_of_one_number_are_one_event_over_repetitions_only_if_the_same_is_done() -> None:
    """A seed has drawn a join as the first event of the second run."""
    one, other = evaluate(killed()), evaluate(killed())
    other.costs[0].event.do, other.costs[0].event.who = "join", "1 peer joins"
    other.costs[0].times_ms = {"resumed": 5000.0}
    rows = to_json("x", [one, one, other], {})["events"]
    assert [(row["who"], row["times_ms"]["resumed"]["p50"]) for row in rows] == [("1 peer joins", 5000), ("kill", 25)]
    text = page(About("x", "", {}), [one, one, other])
    assert "25.0</td>" in text and text.index("1 peer joins</td><td>–") < text.index('<td class="l">kill</td><td>5.0')


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), max_size=300))
def test_thinned_lines_keep_least_and_largest(points: list[tuple[float, float]]) -> None:
    points.sort()
    found = thin(points, 100.0, 20)
    assert len(found) <= 2 * 21
    assert set(found) <= set(points)
    for choose in (min, max):
        wanted = choose((value for _, value in points), default=None)
        assert choose((value for _, value in found), default=None) == wanted
    assert thin(found, 100.0, 20) == found
    assert len(thin(points, 100.0, INNER)) <= len(points)


def test_a_step_of_which_nobody_knows_the_parts_is_seen_and_a_time_without_steps_is_none() -> None:
    times = [(1, 100), (2, 200), (3, 300), (7, 5000), (8, 5100)]  # out after step 3, and back with a state
    records = [
        each
        for step, time_ms in times
        for each in (record(time_ms - 50, Kind.SUBMITTED, step), record(time_ms, Kind.COMMITTED, step))
    ]
    receipts = [receipt(step, [A, B]) for step, _ in times]
    whole = evaluate(run({A: receipts}, {A: records}))
    assert whole.splits[A].step == 100.0 and whole.splits[A].error == 0.0
    missed = [each for each in records if (each.kind, each.step) != (Kind.SUBMITTED, 8)]
    lacking = evaluate(run({A: receipts}, {A: missed}))
    assert lacking.splits[A].error == pytest.approx(1 / 3, abs=1e-4)
    assert "split_error_max is 0.33333, expected <= 0.02" in failures([lacking], {})[-1]


def test_steps_of_which_records_were_overwritten_before_they_were_read_are_not_held_against_their_parts() -> None:
    """A busy machine reads a page of short steps too late; the records themselves are correct."""
    commits = [record(100.0 * step, Kind.COMMITTED, step)._replace(number=step) for step in range(1, 7)]
    submits = [record(100.0 * step - 50, Kind.SUBMITTED, step)._replace(number=step) for step in (1, 2, 5, 6)]
    receipts = [receipt(step, [A, B]) for step in range(1, 7)]
    found = evaluate(run({A: receipts}, {A: sorted([*commits, *submits], key=lambda each: each.time_ns)}))
    assert found.splits[A].error == 0.0 and found.splits[A].compute == 50.0
    known = [each._replace(number=0) for each in found.run.tracks[A].records]
    assert evaluate(run({A: receipts}, {A: known})).splits[A].error == pytest.approx(2 / 5, abs=1e-4)


def test_the_parts_of_a_step_add_up_to_it_and_who_submits_last_is_named() -> None:
    def steps(*submitted: float) -> list[Record]:
        found = []
        for step, at in enumerate(submitted, 1):
            kinds = ((at, Kind.SUBMITTED), (100.0 * step - 20, Kind.FINISHED), (100.0 * step, Kind.COMMITTED))
            found += [record(time_ms, kind, step) for time_ms, kind in kinds]
        return found

    receipts = [receipt(step, [A, B]) for step in (1, 2, 3)]
    splits = evaluate(run({A: receipts, B: receipts}, {A: steps(10, 130, 230), B: steps(20, 170, 210)})).splits
    assert splits[A] == StepBreakdown(step=100.0, compute=30.0, exchange=50.0, wait=20.0, last=0.5, error=0.0)
    assert splits[B] == StepBreakdown(step=100.0, compute=40.0, exchange=40.0, wait=20.0, last=0.5, error=0.0)


def test_the_page_says_who_knew_last_how_fast_a_state_came_and_for_whom_others_waited() -> None:
    text = page(About("x", "", {}), [evaluate(killed())])
    assert "known by the kernel, to the last after 8.0 ms" in text
    kinds = [(20, Kind.ASKED), (30, Kind.STATE), (50, Kind.SUBMITTED), (70, Kind.COMMITTED)]
    whole = record(40, Kind.WHOLE)._replace(value=5e6, size=2)
    submitted = [record(at, Kind.SUBMITTED, step) for at, step in ((55, 2), (82, 3))]
    commits = [record(at, Kind.COMMITTED, step) for at, step in ((50, 1), (70, 2), (90, 3))]
    joiner = [*(record(at, kind, 2) for at, kind in kinds), whole, record(85, Kind.SUBMITTED, 3), commits[2]]
    both = [receipt(step, [A, B], view=2) for step in (2, 3)]
    found = run(
        {A: [receipt(1, [A]), *both], B: both},
        {A: in_order([*submitted, *commits]), B: in_order(joiner)},
        [event("join", 0, peers=[1])],
    )
    text = page(About("x", "", {}), [evaluate(found)])
    assert "was given a state of 5.0 MB by 2 donors, at 500.0 MB/s" in text
    assert "The others waited for peer 1 most often: in 100% of its steps" in text


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda each: each.time_ns)


def test_intervals_are_the_same_for_the_same_values_and_hold_the_median() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    described = describe(values)
    assert described == describe(values)
    low, high = described["interval"]
    assert low <= described["p50"] <= high
    assert described["max"] == 9.0
    assert "interval" not in describe(values[:2])
    assert describe([]) == {"number": 0}


def test_of_a_run_that_was_no_experiment_it_is_not_said_that_no_peer_has_failed(tmp_path: Path) -> None:
    """Receipts do not say it; `shoal postmortem` knows from the launchers how peers have ended."""
    write_receipts(tmp_path)
    assert report(tmp_path, None, print) == 0
    said = json.loads((tmp_path / "report.json").read_text())
    assert "peers_failed" not in said["metrics"] and [run["failed"] for run in said["runs"]] == [None]


def test_a_run_made_elsewhere_is_read_from_its_receipts(tmp_path: Path) -> None:
    write_receipts(tmp_path)
    (folder,) = runs_in(tmp_path / "receipts")
    evaluated = evaluate(read_run(folder))
    assert evaluated.chain.num_samples == 20
    assert evaluated.splits == {} and evaluated.steps == []
    json.dumps(to_json("x", [evaluated], {}))
    assert "only traces say when a step was submitted" in page(About("x", "", {}), [evaluated])


@pytest.mark.parametrize("place", ["receipts", "."])
def test_a_trace_says_more_than_receipts_and_is_beside_them_or_their_folder(tmp_path: Path, place: str) -> None:
    write_receipts(tmp_path)
    path = trace_path(tmp_path / place, A)
    path.parent.mkdir()
    raw = [pack_record(record(100 * step, Kind.COMMITTED, step)) for step in (1, 2)]
    write_trace(path, identity(), raw)
    read = read_run(tmp_path)
    assert read.tracks[A].has_trace and evaluate(read).steps[1].took_ms == pytest.approx(100)


def test_times_of_an_older_version_are_named(tmp_path: Path) -> None:
    write_receipts(tmp_path)
    (tmp_path / "receipts" / f"{A}.timings.jsonl").touch()
    with pytest.raises(ExperimentError, match=rf"peer {A} left in .*: {A}\.timings\.jsonl is of an older version"):
        read_run(tmp_path)


def test_folders_that_hold_no_run_or_two_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="there is no folder"):
        runs_in(tmp_path / "nowhere")
    with pytest.raises(ExperimentError, match="there are no receipts in"):
        runs_in(tmp_path)
    write_receipts(tmp_path)
    write_receipts(tmp_path, "2", B)
    with pytest.raises(ExperimentError, match="receipts of 2 runs") as refused:
        read_run(tmp_path)
    said = re.search("`(grep -L .*)` lists", str(refused.value))
    assert said is not None
    others = subprocess.run(said[1], shell=True, capture_output=True, text=True, check=True).stdout.split()
    for path in others:
        Path(path).unlink()
    assert read_run(tmp_path).lineages() == ["2" * 32]


def test_half_a_receipt_or_trace_is_left_out_and_nonsense_is_named(tmp_path: Path) -> None:
    write_receipts(tmp_path)
    path = tmp_path / "receipts" / f"{A}.receipts.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert len(read_run(tmp_path).tracks[A].receipts) == 1
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / f"{A}.trace").write_bytes(b"nonsense")
    with pytest.raises(ExperimentError, match=f"cannot read what peer {A} left"):
        read_run(tmp_path)


def test_receipts_of_another_run_beside_those_of_an_experiment_are_refused(tmp_path: Path) -> None:
    write_receipts(tmp_path)
    write_log(tmp_path, account([event("kill", 5, A)], [A]))
    assert read_run(tmp_path).tracks.keys() == {A}
    write_receipts(tmp_path, "2", B)
    with pytest.raises(ExperimentError, match=f"receipts of peer {B}, in lineage 22222222, which this run did not"):
        read_run(tmp_path)


def test_a_trace_that_ends_before_the_receipts_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run-1"
    folder.mkdir()
    write_receipts(folder)
    write_log(folder, account([], [A]))
    (folder / "traces").mkdir()
    write_trace(folder / "traces" / f"{A}.trace", identity(A), [])
    said: list[str] = []
    report(tmp_path, None, said.append)
    last = read_run(folder).tracks[A].receipts[-1].step
    assert (
        f"the trace of peer {A} ends before any step, and its receipts at {last}: times after that are not known"
        in said
    )


def test_a_trace_that_a_full_disk_has_left_empty_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    for peer_id in (A, B):
        write_receipts(tmp_path, peer_id=peer_id)
    write_log(tmp_path, account([], [A, B]))
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / f"{A}.trace").touch()
    said: list[str] = []
    report(tmp_path, None, said.append)
    assert f"the trace of peer {A} ends before any step, and its receipts at 2: times after that are not known" in said
    assert json.loads((tmp_path / "report.json").read_text())["metrics"]["steps"] == 2


def test_an_account_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_receipts(tmp_path)
    write_log(tmp_path, account([event("kill", 5, A)], [A]))
    assert read_run(tmp_path).log == account([event("kill", 5, A)], [A])
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ExperimentError, match="is not what this version of shoal writes"):
        read_run(tmp_path)


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    write_log(tmp_path / "run-1", account([], [A, B]))
    (tmp_path / "experiment.toml").write_text("[run]\nscript = \"a.py\"\nloss = 'loss (.)'\n")
    said: list[str] = []
    assert report(tmp_path, None, said.append) == 0
    assert said[1:] == ["loss = 'loss (.)' matches no line that the peers printed"]


def test_a_run_that_was_ended_before_its_account_was_written_is_read_from_what_it_has_left(tmp_path: Path) -> None:
    """If another run has an account, it is left out."""
    write_receipts(tmp_path / "run-1")
    (tmp_path / "run-2").mkdir()
    said: list[str] = []
    assert report(tmp_path, None, said.append) == 1
    end = "it ended before that was written"
    assert said[1:] == [
        f"{tmp_path}/run-1 has no run.json, so it is read from its receipts and traces: {end}",
        f"{tmp_path}/run-2 has no run.json, so it is left out: {end}",
    ]
    assert json.loads((tmp_path / "report.json").read_text())["metrics"]["steps"] == 2
    write_log(tmp_path / "run-2", account([], [A]))
    assert runs_in(tmp_path) == [tmp_path / "run-2"]


def test_runs_that_cannot_be_read_are_named_and_the_others_are_reported(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"run-{number}").mkdir()
    write_log(tmp_path / "run-1", account([], [A, B]))
    (tmp_path / "run-2" / "run.json").write_text('{"name": "x", ')
    said: list[str] = []
    assert report(tmp_path, None, said.append) == 1
    assert len(json.loads((tmp_path / "report.json").read_text())["runs"]) == 1
    assert said[1].startswith(f"left out: {tmp_path}/run-2/run.json is not what this version of shoal writes")
    assert said[2:] == [f"{tmp_path}/run-3 has no run.json, so it is left out: it ended before that was written"]
