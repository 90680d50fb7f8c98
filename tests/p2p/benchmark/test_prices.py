"""`bench.prices` says whether prices are right: for measured results, and for generated ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.prices import FORMULA, SHARED, main, missed, over_measured
from p2p.benchmark.results.files import read_reports
from tests.p2p.benchmark.test_wan import newest


def test_what_was_measured_over_four_hosts_is_within_a_fifth_of_its_price_at_every_size() -> None:
    rows = over_measured(read_reports(newest("wan")))
    assert len([row for row in rows if row["part"] == "four" and row["by_rows"] is not None]) == 3 * 7
    assert list(missed({"tables": [], "formulas": [], "measured": rows})) == []


def test_formulas_and_tables_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their processor time is not tested: it needs a quiet machine."""
    path = tmp_path / "prices.json"
    code = main(["--ranks", "2,9", "--json", str(path)])
    found = json.loads(path.read_text())
    assert code == bool(found["missed"])
    assert not [each for each in found["missed"] if "formula" in each]
    assert [each["table"] for each in found["tables"]] == ["2 ranks", "9 ranks", "9 ranks on two hosts"]
    assert {each["links"]: tuple(each["limits"]) for each in found["formulas"]} == {
        "9 ranks": FORMULA,
        "9 ranks on two hosts": SHARED,
    }
    assert ("hierarchical", "9 ranks on two hosts") in {
        (each["algorithm"], each["links"]) for each in found["formulas"]
    }
    assert capsys.readouterr().out.count("formula over play") == 2


@pytest.mark.parametrize(
    ("where", "row", "said"),
    [
        ("tables", {"table": "9 ranks", "took_ms": 101.0, "slice_p99_ms": 0.1}, "takes 101.0 ms, more than 100"),
        ("tables", {"table": "9 ranks", "took_ms": 1.0, "slice_p99_ms": 1.1}, "take 1.10 ms (p99), not 1"),
        (
            "formulas",
            {"links": "9 ranks", "algorithm": "ring", "low": 0.9, "high": 1.31, "limits": FORMULA},
            "1.31 (ring, 9",
        ),
        (
            "measured",
            {"part": "four", "algorithm": "ring", "size_bytes": 4, "by_net": 1.0, "by_rows": 0.79},
            "price over measured is 0.79 (ring at 4 bytes, four, by_rows), not (0.8, 1.25)",
        ),
    ],
)
def test_what_is_not_as_it_should_be_is_said(where: str, row: dict[str, Any], said: str) -> None:
    (only,) = missed({"tables": [], "formulas": [], "measured": []} | {where: [row]})
    assert said in only
