"""Measurements over emulated links, and the figures on the page."""

import json
from functools import cache
from pathlib import Path

from bench import rows
from bench.aa import MOST_CALLED, SLOWED
from bench.rows import NUM_MEMBERS, WITHIN_S, Step
from bench.wan import BEGIN, END, FOURS, PARTS, crossing, figures, price_by_rows, problems, write_page
from p2p.benchmark.results.compare import SAME
from p2p.benchmark.results.files import Report, read_reports

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "ring-or-tree.md"


def newest(name: str) -> Path:
    """The newest result of `make bench-wan` or `make bench-aa`."""
    return max(RESULTS.glob(f"{name}-20*.json"))


@cache
def measured() -> dict[str, Report]:
    return {report["part"]: report for report in read_reports(newest("wan"))}


def test_the_page_has_the_figures_of_the_file_and_what_is_not_as_it_should_be() -> None:
    assert figures([*measured().values()]) in PAGE.read_text()
    assert {*measured()} == {*PARTS}


def test_ring_and_tree_cross_once_within_a_factor_of_two_and_two_runs_agree() -> None:
    found = [crossing(measured()[part]) for part in FOURS]
    assert all(at is not None and at[2] < 2 * at[1] for at in found)
    said = list(problems([measured()[part] for part in FOURS]))
    assert not [each for each in said if "overlap" in each or "is wrong" in each]


def test_over_four_hosts_the_model_is_right_auto_takes_what_is_quickest_and_no_packet_is_dropped() -> None:
    for part in FOURS:
        report = measured()[part]
        config = report["config"]
        assert part == "again" or config["sizes_bytes"][-1] == 16 << 20
        assert not [each for each in problems([report]) if "dropped" in each or "longer than the best" in each]
        prices = [ratio for row in report["results"] if (ratio := price_by_rows(row)) is not None]
        is_learned = "auto" in config["algorithms"]  # otherwise the links were not measured
        assert len(prices) == is_learned * (len(config["algorithms"]) - 1) * len(config["sizes_bytes"])
    assert not [each for each in problems([measured()["best"]]) if "longer than the best" in each]


def test_where_one_line_is_slow_auto_takes_what_is_quickest() -> None:
    assert not list(problems([measured()["slow"]]))


def test_on_one_host_auto_takes_what_is_quickest() -> None:
    reports = read_reports(ROOT / "bench" / "results" / "one-host-2026-11-23.json")
    assert [report["config"]["num_peers"] for report in reports] == [2, 4]
    for report in reports:
        assert report["config"]["sizes_bytes"][-1] == 16 << 20 and report["config"]["net"] is None
        assert max(choice[0] for choice in report["regrets"]["auto"]) < 0.04


def test_what_is_the_same_was_not_called_otherwise_and_what_was_slowed_by_a_tenth_was() -> None:
    run = json.loads(newest("aa").read_text())
    for pair in run["pairs"]:
        assert len(pair["ratios"]) == 44
        assert pair["alike"].get("faster", 0) + pair["alike"].get("slower", 0) <= MOST_CALLED
    slowed = [pair[name]["over_all"] for pair in run["pairs"] for name in SLOWED]
    assert len(slowed) == 10 and sum(low > 1 and value > 1 + SAME for value, low, _ in slowed) >= 9


def test_rows_of_a_joiner_were_there_in_time_and_held_nobody_up() -> None:
    (path,) = RESULTS.glob(f"rows-of-{newest('wan').name}")
    assert not list(rows.problems(json.loads(path.read_text())))


def test_what_is_not_as_it_should_be_is_found() -> None:
    one, other = ({**measured()[part], "results": [], "overheads": {}} for part in FOURS)
    pair = next(pair for pair in other["pairs"] if {pair["a"], pair["b"]} == {"ring", "tree"})
    other["pairs"] = [{**pair, "crossings": [{**pair["crossings"][0], "at_bytes": [4e6, 3e6, 9e6]}]}]
    other["regrets"] = {"auto": [[0.2, 0.1, 0.3]]}
    pairs = [*other["network"]["pairs"][1:], other["network"]["pairs"][0] | {"dropped_queue": 3}]
    other |= {"wall_s": 121.0, "total_s": 1501.0, "network": other["network"] | {"pairs": pairs}}
    said = list(problems([one, other]))[len(list(problems([one]))) :]
    assert said[0] == "again: auto took 20% longer than the best at 4096 bytes"
    assert said[1].startswith("again: ring and tree cross once, and the interval is at most a factor of 2 wide: [4")
    assert said[2:4] == ["again: it took 121 s of the 120 that it may take", "again: 3 packets were dropped"]
    assert said[4] == "all of it took 25.0 minutes of the 25 that it may take"
    assert said[5].startswith("the intervals of two runs do not overlap")


def test_delays_the_share_of_the_line_and_the_gain_of_shares_are_looked_at() -> None:
    times = {"one-shot": 51e3, "one-shot@early": 27e3, "ring": 20e6, "auto": 20e6}

    def slow(part: str) -> Report:
        report = measured()[part]
        rows = [row | {"time_p50_us": times.get(row["algorithm"], 20e6)} for row in report["results"]]
        return report | {"results": rows, "regrets": {}, "overheads": {}}

    assert list(problems([slow("small")])) == [
        "small: one-shot took 2.55 delays of the 2.5 that it may take",
        "small: one-shot@early took 1.35 delays of the 1.3 that it may take",
    ]
    assert list(problems([slow("long")])) == ["long: the best used 10% of the line, 90% expected"]
    (said,) = problems([slow("unequal")])
    assert said.startswith(
        "unequal: direct by shares is 1.00 times as fast as the ring at the largest size, not 1.4; auto took {"
    )


def test_prices_over_measured_links_and_what_asking_auto_costs_are_looked_at_too() -> None:
    report = measured()["four"]
    rows = [{**row, "predicted_by_rows_us": 0.9 * row["time_p50_us"]} for row in report["results"]]
    good = report | {"results": rows, "overheads": {"auto": [None, *[[0.2, -0.1, 0.3]] * 6]}}
    before = list(problems([report]))
    assert list(problems([good])) == before
    assert "Over links as measured: predicted / measured 0.90 to 0.90." in figures([good])
    rows[0] = rows[0] | {"predicted_by_rows_us": 0.7 * rows[0]["time_p50_us"]}
    bad = good | {"overheads": {"auto": [[0.2, 0.11, 0.3], *[None] * 6]}}
    assert [each for each in problems([bad]) if each not in before] == [
        "four: predicted over measured links / measured is 0.70 of ring at 4096 bytes",
        "four: auto took 20% longer than the same by name at 4096 bytes",
    ]


def test_figures_take_the_place_of_older_ones(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nformer figures\n{END}\nafter\n")
    write_page(page, [measured()["four"]])
    text = page.read_text()
    assert text.startswith("before\n" + BEGIN)
    assert text.endswith(END + "\nafter\n")
    assert "former figures" not in text


def stepping(took_s: float, *, knows_from: int) -> list[Step]:
    """Ten steps before a join at 100 s, and forty after it, of which the first waits for the join."""
    steps = [Step(90.0 + number, 90.0 + number + 0.05, NUM_MEMBERS, NUM_MEMBERS, True) for number in range(10)]
    for number in range(40):
        began_s, num_rows = 100 + number / 5, NUM_MEMBERS + (number >= knows_from)
        is_soon = began_s < 100 + WITHIN_S
        steps.append(
            Step(began_s, began_s + (took_s if is_soon else 0.1), NUM_MEMBERS + 1, num_rows, number > knows_from)
        )
    return steps


def test_rows_are_there_when_the_last_member_has_them_and_the_first_seconds_are_held_against_those_that_follow() -> (
    None
):
    members = [stepping(0.1, knows_from=knows_from) for knows_from in (2, 3, 2)]
    found = rows.evaluate(members) | {"codes": [0], "net": "rate=1mbit"}
    assert round(found["rows_s"], 6) == 0.7 and round(found["table_s"], 6) == 0.9
    assert found["num_meanwhile"] == 15 and not list(rows.problems(found)) and "rows 0.7 s" in rows.sentence(found)


def test_rows_that_come_late_or_never_or_that_hold_the_others_up_are_found() -> None:
    slow = rows.evaluate([stepping(0.12, knows_from=16)] * 3) | {"codes": [0, 1]}
    assert [each.split()[1] for each in rows.problems(slow)] == ["rows", "the", "peers"]
    never = rows.evaluate([stepping(0.1, knows_from=99)] * 3) | {"codes": [0], "net": "rate=1mbit"}
    assert never["rows_s"] is None and len(list(rows.problems(never))) == 1 and "rows never" in rows.sentence(never)
