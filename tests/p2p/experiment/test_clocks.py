"""Clocks of several hosts, from when they finished and committed steps."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import ExperimentError
from p2p.experiment.clocks import MOST_DRIFT, ClocksDisagree, Moments, fit
from p2p.experiment.command import report
from p2p.experiment.evaluation.postmortem import postmortem
from p2p.experiment.folder import read_run
from p2p.step.receipts import Receipt
from p2p.telemetry.records import Kind, RecordRing
from p2p.telemetry.trace import write_trace
from tests.p2p.experiment.runs import A, B, receipt
from tests.p2p.telemetry.pages import identity

MS = 10**6
HOUR_NS = 3600 * 10**9
HOSTS = ("x", "y", "z")


Case = tuple[list[dict[str, Moments]], dict[str, tuple[int, float]]]


@st.composite
def recorded(draw: st.DrawFn) -> Case:
    """Recorded steps of several hosts, with offset and drift of each host's clock."""
    clocks = {host: (draw(st.integers(-HOUR_NS, HOUR_NS)), draw(st.floats(0, MOST_DRIFT))) for host in HOSTS}
    delay_ns = draw(st.integers(0, 50)) * MS
    random = draw(st.randoms(use_true_random=False))
    steps, now_ns = [], 10**12
    for _ in range(draw(st.integers(1, 300))):
        there = random.sample(HOSTS, random.choice((2, 3)))
        finished = {host: now_ns + random.randrange(20 * MS) for host in there}
        known = {
            host: max(finished[other] + (delay_ns if other != host else 0) for other in there) + random.randrange(MS)
            for host in there
        }
        steps.append(
            {host: Moments(read(clocks[host], finished[host]), read(clocks[host], known[host])) for host in there}
        )
        now_ns = max(known.values()) + random.randrange(20 * MS)
    return steps, clocks


def read(clock: tuple[int, float], time_ns: int) -> int:
    """The reading of a clock at `time_ns`."""
    offset_ns, drift = clock
    return time_ns + offset_ns + round(drift * (time_ns - 10**12))


@given(recorded())
def test_bounds_hold_how_far_a_clock_is_ahead_whatever_the_links_and_drifts(case: Case) -> None:
    steps, clocks = case
    found = fit(steps)
    assert set(found.bounds) | {found.reference} == {host for step in steps for host in step}
    for host, bounds in found.bounds.items():
        for each in bounds:
            true_ns = 10**12 + round((each.at_ns - clocks[host][0] - 10**12) / (1 + clocks[host][1]))
            ahead_ns = read(clocks[host], true_ns) - read(clocks[found.reference], true_ns)
            slack = 2 + MOST_DRIFT * 300 * 120 * MS  # the instant differs for hosts that are not in the middle step
            assert each.low_ns - slack <= ahead_ns <= each.high_ns + slack


def test_hosts_whose_middles_are_in_other_steps_may_have_drifted_between_them() -> None:
    at, one, other = (Moments(ns, ns) for ns in (10**12, 10**12 + 6997, 10**12 + 6998))
    clocks = fit([{"x": at, "y": at}, {"y": at, "z": at}, {"x": one, "y": other}])
    assert clocks.reference == "y" and all(each.low_ns <= 0 <= each.high_ns for each in clocks.bounds["z"])


def test_a_clock_is_known_by_that_of_another_host_where_the_reference_is_not() -> None:
    ahead = {"w": 5 * HOUR_NS, "x": 0, "y": HOUR_NS, "z": 3 * HOUR_NS}
    steps: list[dict[str, Moments]] = []
    for hosts, number in (("wx", 600), ("xy", 200), ("yz", 400)):
        for _ in range(number):
            now_ns = len(steps) * 20 * MS
            steps.append({host: Moments(now_ns + ahead[host], now_ns + 2 * MS + ahead[host]) for host in hosts})
    clocks = fit(steps)
    assert clocks.reference == "x" and {host: len(own) for host, own in clocks.bounds.items()} == {
        "w": 3,
        "y": 3,
        "z": 2,
    }
    for host, bounds in clocks.bounds.items():
        assert all(each.low_ns <= ahead[host] <= each.high_ns for each in bounds)
    assert clocks.to_reference("z", 3 * HOUR_NS + 20_000 * MS) == pytest.approx(20_000 * MS, abs=2 * MS)


def test_bounds_are_two_delays_wide_and_a_time_is_shown_within_them() -> None:
    steps = []
    for number in range(250):
        now_ns = number * 20 * MS
        late = {"x": number % 3 * MS, "y": (number + 1) % 3 * MS}
        at = {host: now_ns + ns for host, ns in late.items()}
        steps.append(
            {
                "x": Moments(at["x"], max(at["x"], at["y"] + 2 * MS)),
                "y": Moments(at["y"] + HOUR_NS, max(at["y"], at["x"] + 2 * MS) + HOUR_NS),
            }
        )
    clocks = fit(steps)
    assert clocks.reference == "y" and clocks.plus_minus_ms == pytest.approx(2.0, abs=0.01)
    assert len(clocks.bounds["x"]) == 2 and abs(clocks.drift_ppm("x") or 0.0) < 1
    assert clocks.to_reference("x", 10**9) == pytest.approx(10**9 + HOUR_NS, abs=2 * MS)
    assert clocks.to_reference("y", 7) == 7


def test_drift_is_followed_from_window_to_window() -> None:
    steps = []
    for number in range(2000):
        now_ns = number * 50 * MS
        fast = now_ns + round(now_ns * 1e-4)
        steps.append({"x": Moments(fast, fast + MS), "y": Moments(now_ns, now_ns + MS)})
    clocks = fit(steps)
    (other,) = clocks.bounds
    assert abs(clocks.drift_ppm(other) or 0.0) == pytest.approx(100, abs=5)
    at_ns = 60 * 10**9
    times = {"x": at_ns + round(at_ns * 1e-4), "y": at_ns}
    assert clocks.to_reference(other, times[other]) == pytest.approx(times[clocks.reference], abs=1.2 * MS)


def test_records_that_no_clocks_could_have_made_are_refused() -> None:
    before = {"x": Moments(0, 5 * MS), "y": Moments(0, 5 * MS)}
    jumped = {"x": Moments(10 * MS, 15 * MS), "y": Moments(10 * MS + HOUR_NS, 15 * MS + HOUR_NS)}
    with pytest.raises(ClocksDisagree):
        fit([before, jumped])


def left(folder: Path, shift_ns: int) -> Path:
    """Two hosts, the clock of the second one shifted; the second one's peer dies in step 4."""
    (folder / "traces").mkdir(parents=True)
    for peer_id, host, ahead_ns in ((A, "a" * 16, 0), (B, "b" * 16, shift_ns)):
        raw = []
        memory = memoryview(bytearray(2048 * 64))
        times = []
        for step in (1, 2, 3):
            times += [
                (Kind.SUBMITTED, step, 100 * step),
                (Kind.FINISHED, step, 100 * step + 5),
                (Kind.COMMITTED, step, 100 * step + 10),
            ]
        if peer_id == A:
            times += [
                (Kind.SUBMITTED, 4, 405),
                (Kind.INSTALLED, 3, 3399),
                (Kind.OUT, -1, 3400),
                (Kind.COMMITTED, 4, 3410),
            ]
        else:
            times.append((Kind.RECEIVED, 3, 312))
        clock = iter([time_ms * MS + 10**12 + ahead_ns for *_, time_ms in times])
        half = RecordRing(memory, clock.__next__)
        for number, (kind, step, _) in enumerate(times, 1):
            half.note(kind, step, view=2, peer=int(B, 16) if kind is Kind.OUT else 0)
            raw.append(bytes(memory[number * 64 : number * 64 + 64]))
        write_trace(folder / "traces" / f"{peer_id}.trace", identity(peer_id, host=host, name="0"), raw)
        receipts: list[Receipt] = [receipt(step, [A, B]) for step in (1, 2, 3)]
        receipts += [receipt(4, [A], view=2)] if peer_id == A else []
        text = "".join(json.dumps(asdict(each)) + "\n" for each in receipts)
        (folder / f"{peer_id}.receipts.jsonl").write_text(text)
    return folder


def test_a_clock_that_is_an_hour_ahead_changes_no_report(tmp_path: Path) -> None:
    runs = [read_run(left(tmp_path / name, shift)) for name, shift in (("one", 0), ("other", HOUR_NS))]
    one, other = (found.clocks for found in runs)
    assert one is not None and other is not None
    assert one.plus_minus_ms == other.plus_minus_ms == pytest.approx(5.0, abs=0.1)
    for peer_id in (A, B):
        records = [found.tracks[peer_id].records for found in runs]
        origin = [found.tracks[A].records[0].time_ns for found in runs]
        for before, after in zip(*records, strict=True):
            assert before.time_ns - origin[0] == pytest.approx(after.time_ns - origin[1], abs=1000)
    said: list[str] = []
    assert postmortem(tmp_path / "other", said.append) == 1
    assert said[1] == f"  times between hosts are right to ± {other.plus_minus_ms:g} ms"
    assert "peer 0 (bbbbbbbb) failed first, in step 4: it fell silent" in said[2]
    assert report(tmp_path / "other", None, print) == 0
    found = json.loads((tmp_path / "other" / "report.json").read_text())["runs"][0]["clocks"]
    assert found["plus_minus_ms"] == other.plus_minus_ms
    assert f"± {other.plus_minus_ms:.1f} ms" in (tmp_path / "other" / "report.html").read_text()


def test_traces_of_other_receipts_are_one_line(tmp_path: Path) -> None:
    folder = left(tmp_path / "one", 0)
    other = left(tmp_path / "other", 0)
    path = folder / "traces" / f"{B}.trace"
    content = bytearray((other / "traces" / f"{B}.trace").read_bytes())
    records = len(content) - 10 * 64
    for index in range(3):  # its first step, an hour later
        at = records + index * 64 + 8
        content[at : at + 8] = (int.from_bytes(content[at : at + 8], "little") + HOUR_NS).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(ExperimentError, match=r"the clocks of 2 hosts in .* cannot be compared"):
        read_run(folder)


def test_traces_of_one_host_by_two_clocks_are_one_line_with_both(tmp_path: Path) -> None:
    folder = left(tmp_path / "one", 0)
    raw: list[bytes] = []
    for peer_id, offset in ((A, 0), (B, HOUR_NS)):
        path = folder / "traces" / f"{peer_id}.trace"
        path.unlink()
        write_trace(path, identity(peer_id, monotonic_offset_ns=offset), raw)
    with pytest.raises(
        ExperimentError,
        match=rf"of one host by two clocks: peer {A} \(monotonic \+0 s.* peer {B} \(monotonic \+3600 s, .*run it again",
    ):
        read_run(folder)
