import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bench import rounds, rounds_plot
from bench.simulated_workers import Setting, run

NUM_PARAMETERS = 137_216
NUM_BYTES = 4 * NUM_PARAMETERS


@pytest.mark.parametrize("is_replaced", [False, True])
def test_workers_learn_in_rounds_and_say_what_they_have_sent(is_replaced: bool) -> None:
    outcome = run(Setting(codec="int4", inner_steps=2, steps=6, dense_steps=2, is_replaced=is_replaced))
    steps, sent, losses = zip(*outcome.curve, strict=True)
    assert steps == (2, 4, 6)
    assert sent == (3 * NUM_BYTES, 3 * NUM_BYTES + 3 * 69_680, 3 * NUM_BYTES + 6 * 69_680)
    assert outcome.loss == losses[-1] < losses[0]
    assert (outcome.bytes_per_exchange, outcome.sent_per_token) == (69_680, sent[-1] / (6 * 8 * 64))


def test_every_setting_is_measured_once() -> None:
    settings = [Setting(seed=seed) for seed in range(7)]

    def work(setting: Setting) -> rounds.Row:
        return {"seed": setting.seed}

    for jobs in (1, 2, 9):
        with ThreadPoolExecutor(jobs) as pool:
            found = [row["seed"] for row in rounds.measured(pool, settings, jobs, 1e6, work)]
            begun = [row["seed"] for row in rounds.measured(pool, settings, jobs, 0.0, work)]
        assert sorted(found) == [*range(7)]
        assert sorted(begun) == [*range(min(jobs, 7))]


def row(loss: float, **how: Any) -> rounds.Row:
    return {
        "setting": asdict(Setting(**how)),
        "loss": loss,
        "bytes_per_exchange": 10,
        "sent_per_token": 1.5,
        "curve": [],
        "cpu_s": 1.0,
    }


def test_losses_are_compared_seed_by_seed() -> None:
    rows = [row(2.0 + seed, inner_steps=0, seed=seed) for seed in range(2)]
    rows += [row(2.2 + 1.1 * seed, seed=seed) for seed in range(3)]
    rows += [row(2.31, codec="sign", seed=0), row(2.0, codec="sign", seed=0, has_residual=False)]
    page = StringIO()
    Console(width=200, file=page).print(rounds.table(rows, rows))
    lines = [line.replace("│", " ").split() for line in page.getvalue().splitlines() if "│" in line]
    assert lines[1][-2:] == ["+10.00", "%"]  # only two of three seeds have a run without rounds
    assert lines[2][-5:] == ["2.3100", "+15.50", "%", "+5.00", "%"]
    assert lines[3][-5:] == ["2.0000", "+0.00", "%", "-9.09", "%"]
    assert rounds.table(rows[-1:], rows).row_count == 1


def test_losses_are_drawn_against_bytes_and_against_time_where_that_is_known(tmp_path: Path) -> None:
    curve = [[60, 2e6, 2.5], [120, 4e6, 2.0]]
    rows = [row(2.0, inner_steps=0), row(2.0, codec="int4"), row(2.0, codec="sign"), row(2.0, codec="sign", seed=1)]
    runs = tmp_path / "rounds.json"
    runs.write_text(json.dumps({"runs": [each | {"curve": curve} for each in rows]}))
    rates = [{"strategy": name, "tokens_per_s": 2048.0} for name in ("parallel", "rounds-30", "rounds-10")]
    links = tmp_path / "wan.json"
    links.write_text(json.dumps({"config": {"net": "rate=50mbit", "codec": "int4"}, "results": rates}))
    picture = tmp_path / "rounds.svg"
    for options, names in (([], 3), (["--links", str(links)], 5)):
        assert rounds_plot.main([str(runs), str(picture), *options]) == 0
        found = ElementTree.fromstring(picture.read_text())
        words = [each.text for each in found.iter("{http://www.w3.org/2000/svg}text")]
        assert sum(word in ("DataParallel", "int4", "sign") for word in words) == names
        assert ("the same, where 4 live peers have rate=50mbit" in words) == bool(options)


def test_runs_of_another_text_are_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    told = {"text": "a", "python": "3.11"}
    assert rounds.read(None, told) == rounds.read(path, told) == []
    path.write_text(json.dumps({**told, "runs": [row(1.0)]}))
    assert rounds.read(path, told) == [row(1.0)]
    with pytest.raises(SystemExit, match=r"has runs of another kind \(text a, here b\): name another file"):
        rounds.read(path, told | {"text": "b"})


def test_steps_that_are_no_whole_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="605 steps are no whole number of rounds of 10"):
        Setting(steps=605)
    assert len(set(rounds.quick())) == 15
    assert set(rounds.quick()) < set(rounds.whole())
