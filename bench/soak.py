"""Constant churn for a long time: is anything lost, and do memory and descriptors stay constant?

    python -m bench.soak --minutes 60 --out soak

Peers that train a small transformer join, and the newest one is killed or asked to leave, at moments drawn by a seed;
so the first peers live through all of it. `report.html` and `report.json` are kept in the folder. Exits with 1 if a
step was lost, a sample counted twice, receipts differ, or a peer uses more memory or files in the last quarter of its
life than in the second (tolerance 13 files: those of one more connection; each peer opens 7 once, while others join).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.here import ROOT
from p2p.experiment.command import experiment

PLAN: Final = """
[run]
script = "{script}"
args = ["--steps", 1000000, "--global-batch", 24]
peers = 3
until_s = {until_s}
limit_s = {limit_s}
loss = 'loss (\\d+\\.\\d+)'

[[event]]
random = {{per_minute = {per_minute}}}
do = "kill"
who = "newest"

[[event]]
random = {{per_minute = {per_minute}}}
do = "leave"
who = "newest"

[[event]]
random = {{per_minute = {joins_per_minute}}}
do = "join"

[expect]
steps_lost = 0
samples_twice = 0
memory_growth_mb_max = "< 50"
files_growth_max = "<= 13"
"""
PER_MINUTE: Final = 1.5
MORE_JOINS: Final = 2.5
START_S: Final = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="default 10")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="a new folder; default soak")
    options = parser.parse_args(arguments)
    seconds = options.minutes * 60
    text = PLAN.format(
        script=ROOT / "examples" / "gpt.py",
        until_s=seconds,
        limit_s=seconds + START_S,
        per_minute=PER_MINUTE,
        joins_per_minute=MORE_JOINS,
    )
    with TemporaryDirectory(prefix="shoal-soak-") as folder:
        path = Path(folder) / "soak.toml"
        path.write_text(text)
        return experiment(path, options.out, repeat=1, seed=options.seed, is_dry=False, say=print)


if __name__ == "__main__":
    raise SystemExit(main())
