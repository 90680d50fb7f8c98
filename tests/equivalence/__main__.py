"""All cases, or those that are named: `python -m tests.equivalence [NAME ...] [--jobs 2] [--json FILE]`.

Each runs in one process, with 2 and 3 peers, and with DDP; some again with a kill and a join. Prints a line for each,
and what is not as expected. Rewrites results.json and docs/training-code.md, or what they say of the cases that it ran.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from bench.here import environment
from p2p.benchmark.results.machine import commit, machine
from p2p.forking.zygote import WITH_TORCH, Zygote

from .compared import Outcome, problems
from .elastic import Replayed, elastic_problems, run_elastic
from .harness import new_swarm, run
from .page import PAGE, render
from .registry import FAMILIES, Case, Verdict, load
from .results import FILE, Found, about, read, write

MODULES: Final = (*WITH_TORCH, "tests.equivalence.peer", *(f"tests.equivalence.families.{name}" for name in FAMILIES))
AT_ONCE: Final = 24
"""Cases that processes run before they are replaced."""


class Campaign:
    """Cases, and what was found so far. Its methods are for several threads."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.replayed: dict[str, Replayed] = {}
        self.problems: list[str] = []
        self._began_s = time.monotonic()
        self._jobs: SimpleQueue[tuple[bool, list[str]]] = SimpleQueue()
        self._cases = {case.name: case for case in cases}
        names = [case.name for case in cases]
        for start in range(0, len(names), AT_ONCE):
            self._jobs.put((False, names[start : start + AT_ONCE]))
        for case in cases:
            if case.elastic:
                self._jobs.put((True, [case.name]))

    def work(self) -> None:
        """Take jobs until there are none."""
        with Zygote(environment(), MODULES) as zygote:
            while True:
                try:
                    is_elastic, names = self._jobs.get_nowait()
                except Empty:
                    return
                try:
                    self._run(zygote, is_elastic, names)
                except (AssertionError, RuntimeError) as error:
                    self.problems.append(f"{names} did not run to the end: {error}")

    def _run(self, zygote: Zygote, is_elastic: bool, names: list[str]) -> None:
        with new_swarm(zygote) as swarm, tempfile.TemporaryDirectory() as folder:
            if is_elastic:
                case = self._cases[names[0]]
                self.replayed[case.name] = found = run_elastic(swarm, Path(folder), case)
                self.problems += elastic_problems(case, found)
                self._say(case, f"{found.verdict}, {found.num_steps} steps with a kill and a join", found.largest)
                return
            for case, outcome in run(swarm, Path(folder), names):
                self.outcomes[case.name] = outcome
                self.problems += problems(case, outcome)
                self._say(case, f"{outcome.verdict}; DDP: {outcome.ddp}", outcome.largest)

    def _say(self, case: Case, what: str, largest: float) -> None:
        print(f"{time.monotonic() - self._began_s:6.1f} s  {case.name:62} {largest:7.0e}  {what}", flush=True)

    def found(self) -> Iterator[tuple[str, Found]]:
        for name, outcome in self.outcomes.items():
            yield name, Found(outcome, self.replayed.get(name))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases, or families of them; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time")
    parser.add_argument("--json", type=Path, help="write the results here, and neither results.json nor the page")
    return parser.parse_args()


def main() -> int:
    """The exit code."""
    options, cases = parse(), load()
    chosen = [each for each in cases.values() if not options.names or {each.name, each.family} & {*options.names}]
    began_s = time.monotonic()
    campaign = Campaign(chosen)
    workers = [threading.Thread(target=campaign.work) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wall_s = time.monotonic() - began_s
    report(campaign, wall_s)
    ran = dict(campaign.found()) if options.json else read() | dict(campaign.found())
    found = {name: ran[name] for name in cases if name in ran}
    this = {"commit": commit(), "machine": machine(), "wall_s": round(wall_s), "jobs": options.jobs}
    last = this if options.json or not options.names else about()
    write(options.json or FILE, found, last)
    if not options.json:
        PAGE.write_text(render(cases, found), encoding="utf-8")
    return 1 if campaign.problems else 0


def report(campaign: Campaign, wall_s: float) -> None:
    for problem in campaign.problems:
        print(f"\n{problem}")
    counts = Counter(outcome.verdict for outcome in campaign.outcomes.values())
    of_ddp = Counter(outcome.ddp for outcome in campaign.outcomes.values())
    replayed = Counter(each.verdict for each in campaign.replayed.values())
    print(f"\n{len(campaign.outcomes)} cases in {wall_s:.0f} s: {words(counts)}. DDP: {words(of_ddp)}")
    print(f"{len(campaign.replayed)} with a kill and a join: {words(replayed)}")
    print(f"{len(campaign.problems)} are not as expected")


def words(counts: "Counter[Verdict] | Counter[str]") -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
