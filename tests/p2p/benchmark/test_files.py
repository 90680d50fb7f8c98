"""Result files: contents, refused files, a full disk, plots, and comparisons of two runs."""

import csv
import importlib.util
import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from collectives.links import Links
from p2p.benchmark.director import predict
from p2p.benchmark.measuring.prediction import links_from, links_of, message_ns, predicted_s, wire_bytes
from p2p.benchmark.plan import Plan
from p2p.benchmark.results.analysis import analyse
from p2p.benchmark.results.bootstrap import Interval
from p2p.benchmark.results.compare import Cell, compare, compare_files, took_turns
from p2p.benchmark.results.files import Report, check_writable, make_report, read_reports, to_csv, to_json, write_all
from p2p.benchmark.results.plotting import check_plot, panels_of, plot
from p2p.benchmark.results.report import print_report, said_to_have_run, warnings_of
from p2p.benchmark.results.result import Measurement, Result
from p2p.errors import LaunchError, ShoalError
from tests.cases import some_of

ROOT = Path(__file__).parents[3]
SIZES = (4096, 65536, 1 << 20, 16 << 20)
COSTS = {"ring": (0.16, 45e6), "tree": (0.06, 20e6), "auto": (0.062, 21e6)}
NET = "rate=200mbit,delay=20ms"
MACHINE = {
    "cpu": "x",
    "cores": 2,
    "memory_bytes": 1,
    "load_1_min": 3.5,
    "system": "Linux",
    "python": "3.11",
    "packages": {"shoal": "0.1.0", "numpy": "2"},
}
PLAN = Plan(num_peers=4, algorithms=tuple(COSTS), baseline=None, sizes_bytes=SIZES, num_iters=20, num_warmup=1, net=NET)
NETWORK = {"net": NET, "said": "no packets", "warnings": ["the lab was late"]}


def results(seed: int = 0, *, slower: float = 1.0) -> list[Result]:
    """Generated results; `slower`: factor of the tree's times."""
    generator = np.random.default_rng(seed)
    found = []
    for size in SIZES:
        for name, (alpha_s, rate) in COSTS.items():
            exact = (alpha_s + size / rate) * (slower if name == "tree" else 1.0)
            times = exact * np.exp(0.02 * generator.standard_normal((4, 20)))
            ran = "tree" if name == "auto" else name
            ranks = tuple(
                Measurement(
                    algorithm=name, ran=ran, size_bytes=size, times_s=list(row), cpu_times_s=list(row / 9), digest="d"
                )
                for row in times
            )
            sent, links = wire_bytes(PLAN, ran, size), links_of(NET, 4, 1_000_000)
            found.append(
                Result(
                    algorithm=name,
                    ran=ran,
                    size_bytes=size,
                    wrong=0,
                    ranks=ranks,
                    wire_bytes=sent,
                    predicted_s=predicted_s(PLAN, name, ran, size, links),
                )
            )
    return found


def report(seed: int = 0, *, slower: float = 1.0, **machine: Any) -> Report:
    found = results(seed, slower=slower)
    described = {**MACHINE, **machine}
    warnings = warnings_of(PLAN, described, NETWORK)
    made = make_report(PLAN, found, analyse(PLAN, found), described, NETWORK, warnings)
    again: Report = json.loads(to_json(made))
    return again


# JSON and CSV


def described_keys(heading: str) -> set[str]:
    """Keys in a table of docs/benchmark.md."""
    page = (ROOT / "docs" / "benchmark.md").read_text()
    table = page.partition(f"**{heading}**")[2].partition("\n\n|")[2].partition("\n\n")[0]
    return {
        key
        for line in table.splitlines()
        for key in re.findall(r"`(\w+)`", line.split("|")[0 if line[0] != "|" else 1])
    }


def test_the_page_names_each_key_of_the_file() -> None:
    made = report()
    assert set(made) == described_keys("The file")
    assert {key for row in made["results"] for key in row} == described_keys("Of each result")
    assert {key for row in made["pairs"] for key in row} == described_keys("Of each pair")
    assert {key for row in made["fits"] for key in row} == described_keys("Of each fit")
    assert set(made["config"]) == described_keys("The settings")


def test_every_sample_is_kept() -> None:
    made = report()
    assert made["version"] == 2
    row = made["results"][0]
    assert np.array(row["times_us"]).shape == (4, 20)
    assert np.array(row["times_us"]) == pytest.approx(
        1e6 * np.array([each.times_s for each in results()[0].ranks]), abs=0.06
    )
    assert row["iters"] == 20
    assert row["time_p50_interval_us"][0] < row["time_p50_us"] < row["time_p50_interval_us"][1]
    assert row["wire_bytes_per_peer"] == 6144
    assert 0.9 < row["predicted_to_measured"] < 1.2
    assert sum(row["last_peers"].values()) == 20


def test_each_round_says_what_ran_and_what_auto_took_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    rans = ["tree"] * 15 + ["ring"] * 5
    found = []
    for each in results():
        its = [replace(rank, rans=rans if each.algorithm == "auto" else [each.ran] * 20) for rank in each.ranks]
        found.append(replace(each, ranks=tuple(its)))
    analysis = analyse(PLAN, found)
    made = json.loads(to_json(make_report(PLAN, found, analysis, MACHINE, NETWORK, [])))
    told = {row["algorithm"]: row["rans"] for row in made["results"]}
    assert told == {"ring": None, "tree": None, "auto": rans}
    assert made["took"] == {"auto": [{"tree": 15, "ring": 5}] * len(SIZES)}
    assert [len(each) for each in made["regrets"]["auto"] + made["overheads"]["auto"]] == [3] * 2 * len(SIZES)
    print_report(PLAN, found, analysis, MACHINE, NETWORK, [])
    assert capsys.readouterr().out.count(" tree (75%) ") == len(SIZES)


def test_the_overhead_of_what_nobody_was_asked_for_is_null() -> None:
    found = [replace(each, ran="one-shot") if each.algorithm == "auto" else each for each in results()]
    made = json.loads(to_json(make_report(PLAN, found, analyse(PLAN, found), MACHINE, NETWORK, [])))
    assert made["overheads"] == {"auto": [None] * len(SIZES)}
    assert made["sentence"].endswith("; it took one-shot at 4 of 4 sizes, not measured by name.")


def test_what_is_to_be_known_is_said_in_words() -> None:
    assert report()["warnings"] == [
        "4 peers share 2 cores: times include waiting for a core",
        "other processes used this machine: its load was 3.5 before the run, and it has 2 cores",
        "the lab was late",
    ]
    assert warnings_of(PLAN, {**MACHINE, "cores": 8}, None) == []
    sentence = report()["sentence"]
    assert re.fullmatch(
        r"tree is faster than ring below [\d.]+ MiB \(95 %: [\d.]+ to [\d.]+ MiB\), ring above; "
        r"auto cost 0 to \d+ % more than the best, by what it took \(95 % where it is most: \d+ to \d+ %\), "
        r"and -?\d+ to \d+ % more than the same by name \(95 % where it is most: \d+ to \d+ %\)\.",
        sentence,
    )


def test_the_table_has_a_row_for_each_and_says_what_its_intervals_are(capsys: pytest.CaptureFixture[str]) -> None:
    found = results()
    print_report(PLAN, found, analyse(PLAN, found), MACHINE, NETWORK, ["the lab was late"])
    printed = capsys.readouterr().out
    assert sum(" equal " in line for line in printed.splitlines()) == len(found)
    for word in ("95% of 2,000 resamples", "Warning: the lab was late", "network lab, rate=200mbit", "tree is faster"):
        assert word in printed


def test_a_row_of_csv_is_one_algorithm_at_one_size() -> None:
    rows = list(csv.DictReader(to_csv(report()).splitlines()))
    assert [(row["algorithm"], row["size_bytes"]) for row in rows[:4]] == [
        *((name, "4096") for name in COSTS),
        ("ring", "65536"),
    ]
    assert (rows[0]["net"], rows[0]["dtype"], rows[0]["world_size"]) == (NET, "float32", "4")
    assert float(rows[0]["time_p50_low_us"]) < float(rows[0]["time_p50_us"]) < float(rows[0]["time_p50_high_us"])
    assert "times_us" not in rows[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 2, "machine"', "is no JSON, or is cut short"),
        ('{"version": 1}', "has version 1, and this shoal reads version 2"),
        ("[1]", "has no version"),
        ('{"version": 2, "machine": {}}', "lacks config, results"),
        ("[]", "has no runs"),
        ('{"version": 2, "machine": {}, "config": {}, "results": []}', "does not say on which machine"),
    ],
)
def test_what_is_no_result_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(LaunchError, match=said):
        read_reports(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot read .*none\.json: No such file"):
        read_reports(tmp_path / "none.json")
    with pytest.raises(LaunchError, match="--csv is a file in a folder that can be written"):
        check_writable("--csv", tmp_path / "no" / "a.csv")


@contextmanager
def files_up_to(num_bytes: int) -> Iterator[None]:
    """Limits files to `num_bytes`, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("old")
    with (
        files_up_to(1000),
        pytest.raises(ShoalError, match=r"results above .* to .*a\.json \(File too large\), .*there"),
    ):
        write_all({tmp_path / "a.json": "x" * 2000, there: "y" * 2000, tmp_path / "b.csv": "short"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.csv", "there.csv"]


# Plots


def test_four_panels_show_all_that_was_asked_for() -> None:
    panels = list(panels_of(report()))
    assert [panel.title.split(",")[0] for panel in panels] == [
        "time: p50",
        "bus bandwidth",
        "speed-up over ring",
        "predicted against measured",
    ]
    assert [each.name for each in panels[2].series] == ["tree"]
    speed_up = panels[2].series[0]
    assert all(low <= y <= high for low, y, high in zip(speed_up.lows, speed_up.ys, speed_up.highs, strict=True))
    assert speed_up.ys[0] > 2 > 1 > speed_up.ys[-1]


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_a_drawing_needs_no_library(suffix: str) -> None:
    text = plot(report(), suffix)
    assert isinstance(text, str)
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    names = {"polyline": 3 + 3 + 1 + 3, "polygon": 3 + 1}
    assert {name: len(list(svg.iter(f"{{http://www.w3.org/2000/svg}}{name}"))) for name in names} == names
    assert ("tree is faster than ring" in text) == (suffix == ".html")


def test_a_format_that_cannot_be_drawn_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(LaunchError, match=r"ends with \.svg, \.png, \.html, got a\.pdf"):
        check_plot(Path("a.pdf"))
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(LaunchError, match=r"needs matplotlib: pip install 'shoal\[report\]'"):
            check_plot(Path("a.png"))
    else:
        assert plot(report(), ".png")[:4] == b"\x89PNG"


# Two runs


def test_a_run_is_the_same_as_itself_measured_again() -> None:
    assert {cell.verdict for cell in compare(report(1), report(2))} <= {"same", "unclear"}


def test_what_has_become_slower_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(to_json(report(1)))
    b.write_text(to_json(report(2, slower=1.1, load_1_min=8.5)))
    assert compare_files(a, b) == 1
    printed = capsys.readouterr().out
    assert "0 faster, 5 slower" in printed, "at four sizes, and over all"
    assert "Warning, of the second run: the lab was late" in printed
    assert "(load 3.5 and 8.5 before them), which may explain a difference" in printed
    assert compare_files(b, a) == 0
    assert "5 faster, 0 slower" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.1, 1.001, 1.2, "slower"),
        (1.1, 0.999, 1.2, "unclear"),
        (1.029, 1.01, 1.05, "unclear"),
        (1.02, 1.01, 1.03, "same"),
        (0.95, 0.9, 0.999, "faster"),
        (0.95, 0.9, 1.001, "unclear"),
        (0.98, 0.96, 0.99, "unclear"),
        (1.0, 0.98, 1.02, "same"),
        (1.0, 0.5, 2.0, "unclear"),
    ],
)
def test_a_verdict_needs_the_whole_interval_and_more_than_a_small_difference(
    value: float, low: float, high: float, verdict: str
) -> None:
    assert Cell("ring", 4, 2, Interval(value, low, high)).verdict == verdict


def test_other_machines_and_settings_are_refused_by_name() -> None:
    with pytest.raises(LaunchError, match="cpu is 'x' and 'y'; numpy is 2 and 3"):
        compare(report(), report(cpu="y", packages={"shoal": "0.2.0", "numpy": "3"}))
    other = report()
    other["config"]["net"] = None
    with pytest.raises(LaunchError, match=f"net is '{NET}' and None"):
        compare(report(), other)


def test_runs_with_other_results_are_no_slower_code() -> None:
    shorter = report()
    del shorter["results"][-1]
    with pytest.raises(LaunchError, match=r"one of them alone has \[\('\w+', \d+\)\]"):
        compare(report(), shorter)


def drifting(seed: int, place: int, *, slower: float = 1.0) -> Report:
    """A run during which the machine became three times as slow, in the same rounds for all."""
    made = report(seed, slower=slower)
    made["turns"] = {"id": "one meeting", "place": place}
    for row in made["results"]:
        row["times_us"] = (np.array(row["times_us"]) * np.geomspace(1, 3, 20)).tolist()
    return made


def test_runs_that_took_turns_are_compared_round_by_round() -> None:
    alike, slower = (compare(drifting(1, 0), drifting(2, 1, slower=by)) for by in (1.0, 1.1))
    apart = drifting(1, 0)
    apart["turns"] = None
    assert {cell.verdict for cell in compare(apart, drifting(2, 1))} == {"unclear"}
    widths = {
        name: [cell.ratio.high / cell.ratio.low for cell in cells if cell.size_bytes == SIZES[0]]
        for name, cells in (("turns", alike), ("apart", compare(apart, drifting(2, 1))))
    }
    assert max(widths["turns"]) < min(widths["apart"]), "what all rounds met is in none of them"
    assert {cell.algorithm for cell in slower if cell.verdict == "slower"} == {"tree"}


def otherwise(seed: int, place: int, *, slower: float = 1.0) -> Report:
    """A run whose process is a little faster or slower than others at each size and algorithm, throughout."""
    made, generator = drifting(seed, place, slower=slower), np.random.default_rng(seed)
    for row in made["results"]:
        row["times_us"] = (np.array(row["times_us"]) * np.exp(0.06 * generator.standard_normal())).tolist()
    return made


@pytest.mark.long
@pytest.mark.parametrize("num_runs", some_of([3, 10], 0))
def test_what_differs_between_processes_by_chance_is_hardly_ever_called_anything(
    monkeypatch: pytest.MonkeyPatch, num_runs: int
) -> None:
    def num_called() -> int:
        runs = [compare(otherwise(seed, 0), otherwise(seed + 1, 1)) for seed in range(10, 10 + 2 * num_runs, 2)]
        return sum(any(cell.verdict in ("faster", "slower") for cell in cells) for cells in runs)

    assert num_called() <= num_runs // 5, "one in ten is what the intervals are for"
    with monkeypatch.context() as patch:
        patch.setattr("p2p.benchmark.results.compare.unexplained_stddev", lambda found: 0.0)
        assert num_called() == num_runs, "by the rounds alone"
    cells = compare(otherwise(1, 0), otherwise(2, 1, slower=1.4))
    assert {(cell.algorithm, cell.size_bytes) for cell in cells if cell.verdict == "slower"} >= {("tree", None)}
    assert {cell.algorithm for cell in cells if cell.verdict == "slower"} == {"tree"}


def of_two_minds(seed: int, place: int, *, slower: float = 1.0) -> Report:
    """A run with bimodal rounds: half of them take twice as long as the others."""
    made, generator = drifting(seed, place), np.random.default_rng(seed)
    for row in made["results"]:
        exact = slower if row["algorithm"] == "tree" else 1.0
        logs = 0.1 * generator.standard_normal((1, 400)) + np.log(2) * generator.integers(2, size=(1, 400))
        row["times_us"] = (1000 * exact * np.exp(logs)).tolist()
    return made


@pytest.mark.long
def test_a_tenth_is_found_over_all_sizes_where_half_of_the_rounds_take_twice_as_long() -> None:
    found = []
    for seed in range(0, 10, 2):
        cells = compare(of_two_minds(seed, 0), of_two_minds(seed + 1, 1, slower=1.1))
        (over_all,) = (cell for cell in cells if cell.algorithm == "tree" and cell.size_bytes is None)
        p50s = [cell.ratio for cell in cells if cell.algorithm == "tree" and cell.size_bytes is not None]
        found.append(over_all)
        assert not [cell for cell in cells if cell.algorithm != "tree" and cell.verdict in ("faster", "slower")]
        widths = [each.high / each.low - 1 for each in (over_all.ratio, *p50s)]
        assert widths[0] < max(widths[1:]) / 3
    assert [cell.verdict for cell in found].count("slower") == len(found)


def test_who_is_compared_with_itself_or_a_run_of_another_meeting_took_no_turns() -> None:
    one, other = drifting(1, 0), drifting(2, 1)
    assert took_turns(one, other) and took_turns(other, one)
    assert not took_turns(one, one)
    other["turns"]["id"] = "another meeting"
    assert not took_turns(one, other)
    assert not took_turns(report(), report()), "older files do not say"


def test_a_file_with_fewer_settings_was_measured_on_one_host(tmp_path: Path) -> None:
    older, newer = report(), report()
    for name in ("dtype", "net", "duration_s", "until"):
        del older["config"][name]
    newer["config"]["net"] = None
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([older, newer]))
    first, second = read_reports(path)
    assert {cell.ratio.value for cell in compare(first, second)} == {1.0}


# Predictions of the model


def test_the_cost_of_a_message_is_what_a_sum_of_one_number_takes_beyond_the_delay() -> None:
    cost_ns = message_ns(NET, 4, [0.023, 0.026, 0.9])
    assert cost_ns == 2_000_000
    price_s = predicted_s(PLAN, "one-shot@early", "one-shot", 4, links_of(NET, 4, cost_ns))
    assert price_s == pytest.approx(0.026, rel=1e-3)
    committed_s = predicted_s(PLAN, "one-shot", "one-shot", 4, links_of(NET, 4, cost_ns))
    assert committed_s == pytest.approx(0.026 + 0.020 + 0.002, rel=1e-3)
    assert message_ns(NET, 4, [0.01]) == 0
    assert message_ns(NET, 1, [0.5]) == 0


def test_links_that_were_measured_come_back_from_a_file_and_say_who_shares_a_host() -> None:
    delays = ((0, 100, 9), (100, 0, 9), (9, 9, 0))
    links = Links((5, 5, 7), (5, 5, 8), delays, 1000, 1 << 18, (0, 0, 2))
    assert links_from(json.loads(json.dumps(asdict(links)))) == links and links_from(None) is None
    plan = replace(PLAN, num_peers=3, net=None, algorithms=("ring", "auto"), swarm="pond")
    apart, together = (wire_bytes(plan, "hierarchical", 4092, each) for each in (None, links))
    assert (apart, together) == (2 * 2 * 1364, 4092 // 2 + 4092), "half to the other host, and all to its own one"


def test_what_is_measured_of_links_predicts_beside_the_links_that_are_given() -> None:
    (found, *_), given = results(), links_of(NET, 4, 1_000_000)
    measured = replace(given, delay_ns=tuple(tuple(2 * each for each in row) for row in given.delay_ns))
    both, swarm, neither = (predict(PLAN, found, *each) for each in ((given, measured), (None, measured), (None, None)))
    assert both.predicted_s is not None and both.predicted_by_rows_s is not None
    assert 1.9 * both.predicted_s < both.predicted_by_rows_s < 2 * both.predicted_s
    assert swarm.predicted_s == swarm.predicted_by_rows_s == both.predicted_by_rows_s
    assert neither.predicted_s is neither.predicted_by_rows_s is None and neither.wire_bytes == 6144
    told = [each.to_json()["predicted_by_rows_us"] for each in (both, neither)]
    assert told == [round(both.predicted_by_rows_s * 1e6, 1), None]


def test_bytes_and_predictions_are_of_the_algorithm_that_is_said_to_have_run_not_of_the_last_one() -> None:
    (found, *_), given = results(), links_of(NET, 4, 1_000_000)
    rans = ["ring"] * (len(found.times_s) - 1) + ["one-shot"]
    ranks = tuple(replace(rank, ran="one-shot", rans=rans) for rank in found.ranks)
    mixed = predict(PLAN, replace(found, algorithm="auto", ran="one-shot", ranks=ranks), given, None)
    assert said_to_have_run(mixed).startswith("ring (")
    assert mixed.wire_bytes == wire_bytes(PLAN, "ring", found.size_bytes)
    assert mixed.predicted_s == predicted_s(PLAN, "auto", "ring", found.size_bytes, given)


def test_bytes_are_those_of_who_sends_most() -> None:
    assert wire_bytes(PLAN, "ring", 4096) == 2 * 3 * 1024
    assert wire_bytes(PLAN, "one-shot", 4096) == 3 * 4096
    assert wire_bytes(PLAN, "gloo", 4096) is None
    assert predicted_s(PLAN, "gloo", "gloo", 4096, links_of(NET, 4, 0)) is None
