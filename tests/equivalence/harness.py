"""Runs cases: in one process, with 2 and 3 peers, and with DDP. All processes are forks of one that has torch."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from p2p.forking.zygote import Zygote
from tests.live.swarm import Process, Swarm

from .compared import Outcome, Result, judge
from .registry import CASES, Case

SOURCE: Final = "from tests.equivalence.peer import main\nmain()\n"

SIZES: Final = (2, 3)
"""Of the swarms."""


@contextmanager
def new_swarm(zygote: Zygote) -> Iterator[Swarm]:
    """In folders of their own; whoever still runs at the end is killed."""
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as home:
        folder = Path(home) / "scripts"
        folder.mkdir()
        swarm = Swarm(Path(home), folder, zygote)
        swarm.leaves_files = True  # who ends by an error of its own is looked at elsewhere
        try:
            yield swarm
        except BaseException:
            with suppress(AssertionError):  # the first failure says more
                swarm.close()
            raise
        swarm.close()


@dataclass(frozen=True, slots=True)
class Runner:
    """A process that runs cases, and where it leaves their results."""

    process: Process
    path: str

    def result(self, name: str) -> Result:
        """As soon as it is there."""
        self.process.expect_line(f"result {name}")
        found: Mapping[str, Any] = json.loads(Path(self.path.format(name)).read_text())
        return found


def start(swarm: Swarm, mode: str, rank: int, size: int, folder: Path, names: Sequence[str]) -> Runner:
    process = swarm.start(SOURCE, mode, str(rank), str(size), str(folder), *names, min_peers=size)
    return Runner(process, str(folder / f"{{}}.{mode}{size}.{rank}.json"))


def run(
    swarm: Swarm, folder: Path, names: Sequence[str], sizes: Sequence[int] = SIZES
) -> Iterator[tuple[Case, Outcome]]:
    """Start all processes, each of which runs all cases, and judge one case after the other."""
    ways = [("alone", 1), ("ddp", 2), *(("peer", size) for size in sizes)]
    groups = [[start(swarm, mode, rank, size, folder, names) for rank in range(size)] for mode, size in ways]
    for name in names:
        (alone,), ddp, *swarms = [[runner.result(name) for runner in group] for group in groups]
        yield CASES[name], judge(CASES[name], alone, swarms, ddp)
    for runner in (runner for group in groups for runner in group):
        assert runner.process.end() == 0, runner.process.report()
