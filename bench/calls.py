"""How many Python function calls does one committed all-reduce take, and how many the death of a peer?

    python -m bench.calls [--rounds 20] [--deaths 5] [--json FILE]

Counts an all-reduce of 4 KB between two peers over shared memory, and of 4 KB and 64 MB without, after warm-up, in the
calling thread; and the death of one of three peers, in all threads, from the moment at which a survivor learns of it to
the commit of the operation in which it waited. Functions of this repository are counted, except those that poll for a
late peer. Counts still vary with whether a peer sleeps meanwhile, which of its timers are due, and which of two
survivors learns of the death first.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.calls_peer import ALL_REDUCE, BY_SOCKETS, DEATH
from p2p.benchmark.results.machine import commit, machine
from p2p.launch.config import LaunchConfig
from p2p.launch.launcher import Launcher
from p2p.launch.target import Target

ROOT: Final = Path(__file__).parents[1]


def main() -> int:
    """Count, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="all-reduces that are counted")
    parser.add_argument("--deaths", type=int, default=5, help="each with a swarm of its own")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    if min(options.rounds, options.deaths) < 1:
        parser.error("--rounds and --deaths must be at least 1")
    found = {
        **{what: run(2, what, options.rounds) for what in (ALL_REDUCE, *BY_SOCKETS)},
        DEATH: [round for _ in range(options.deaths) for round in run(3, DEATH, 1)],
    }
    rows = [summarize(what, rounds) for what, rounds in found.items()]
    columns = {"always": 8, "least": 8, "p50": 8, "most": 8, "functions": 12, "files": 8}
    print(f"{'':12}{''.join(f'{name:>{width}}' for name, width in columns.items())}  by folder, where it is least")
    for row in rows:
        numbers = "".join(f"{row[name]:>{width}.0f}" for name, width in columns.items())
        print(f"{row['what']:12}{numbers}  {', '.join(f'{name} {number}' for name, number in row['folders'].items())}")
    if options.json is not None:
        everything = {"version": 1, "commit": commit(), "machine": machine(), "rows": rows, "calls": found}
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0


def run(num_peers: int, what: str, num_rounds: int) -> list[dict[str, int]]:
    """Calls by function, for each round of each surviving peer."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        script = ROOT / "bench" / "calls_peer.py"
        arguments = name, what, str(num_rounds)
        config = LaunchConfig(
            target=Target.script(script, arguments),
            num_peers=num_peers,
            swarm="calls",
            home=Path(name),
            verbosity=-1,
        )
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        Launcher(config, environ=environ, stdout=sys.stdout.fileno(), stderr=sys.stderr.fileno()).run()
        written = [json.loads(path.read_text()) for path in Path(name).glob("*.json")]
    if len(written) != num_peers - (what == DEATH):
        raise RuntimeError(f"{len(written)} of {num_peers} peers counted the calls of {what}")
    return [round for peer in written for round in peer]


def summarize(what: str, rounds: list[dict[str, int]]) -> dict[str, Any]:
    """Summary of all rounds; `functions`, `files` and `folders` are of the round with the fewest calls.

    `always` sums each function's fewest calls: timers and sleeps that do not occur in every round add nothing to it.
    """
    totals = [sum(round.values()) for round in rounds]
    least = min(rounds, key=lambda round: sum(round.values()))
    folders = Counter[str]()
    for function, number in least.items():
        folders[os.path.dirname(function)] += number
    return {
        "what": what,
        "least": min(totals),
        "p50": median(totals),
        "most": max(totals),
        "always": sum(min(round.get(name, 0) for round in rounds) for name in least),
        "functions": len(least),
        "files": len({function.partition(":")[0] for function in least}),
        "folders": dict(folders.most_common()),
    }


if __name__ == "__main__":
    sys.exit(main())
