"""All-reduce of shoal against Gloo, in one run: `shoal bench all-reduce` with the sizes that matter.

    python -m bench.all_reduce --json out.json

For each number of peers, arrays of 4 KB to 64 MB are summed in four ways, in turns with Gloo, every result verified:
arrays in the arena (`auto@arena`, into another array), arrays in any memory, replaced by the sum (`auto`), the same
with results before their commit, as in Gloo, which has no commit (`auto@early`), and without shared memory
(`auto@sockets`). `--algos auto@tcp,auto@curve` measures the transport between hosts, without a key and with one, over
the loopback interface. Exits with 1 if a result was wrong.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from p2p.benchmark.director import Outputs, run_bench
from p2p.benchmark.plan import Plan, parse_size, split_names

ALGORITHMS = ("auto@arena", "auto", "auto@early", "auto@sockets")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table per number of peers, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="2,4", help="numbers of peers, with commas")
    parser.add_argument("--algos", default=",".join(ALGORITHMS), help="as of `shoal bench all-reduce`")
    parser.add_argument("--sizes", default="4K,16K,64K,256K,1M,4M,16M,64M", help="with commas")
    parser.add_argument("--iters", type=int, default=40, help="timed iterations per size")
    parser.add_argument("--json", type=Path, help="also write the results here")
    given = parser.parse_args(arguments)
    reports, codes = [], []
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        for num_peers in (int(number) for number in given.peers.split(",")):
            plan = Plan(
                num_peers=num_peers,
                algorithms=split_names(given.algos),
                baseline="gloo",
                sizes_bytes=tuple(map(parse_size, given.sizes.split(","))),
                num_iters=given.iters,
                num_warmup=5,
            )
            path = Path(folder) / f"{num_peers}.json"
            codes.append(run_bench(plan, os.environ, Outputs(json=path)))
            reports += [json.loads(path.read_text())] if path.exists() else []
    if given.json is not None:
        given.json.write_text(json.dumps(reports, indent=1) + "\n")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
