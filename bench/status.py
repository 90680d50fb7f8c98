"""How soon does `shoal status` answer, including its imports?

    python -m bench.status [--times 10] [--json FILE]

For a peer that trains, one that is stopped (SIGSTOP), and one that is stuck in a C call that holds the interpreter;
each in a swarm of its own. The command runs until it reports the condition, then `--times` times in turns. Prints the
median and the longest time for each, and the processor time, which other load changes less. Exits with 1 if an answer
took longer than 0.5 s.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.here import environment
from p2p.benchmark.results.machine import commit, machine

MOST_S: Final = 0.5
CONDITIONS: Final = ("running", "stopped", "hangs")
SOON_S: Final = 30.0

TRAIN: Final = """
import ctypes, sys
import numpy as np
import p2p

with p2p.join(swarm=sys.argv[1]) as peer:
    while True:
        peer.all_reduce(np.ones(1000, np.float32))
        if peer.last_step == 20:
            print("ready", flush=True)
            if sys.argv[1] == "hangs":
                ctypes.PyDLL(None).pause()
"""


def ask(home: Path, swarm: str) -> tuple[float, float, str]:
    """Time of an answer and its processor time, in s, and the reported condition of the peer's process."""
    command = [sys.executable, "-m", "p2p", "status", swarm, "--home", str(home)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment())
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = [condition for condition in CONDITIONS if f" {condition} (" in answer.stdout]
    return took_s, spent_s, " ".join(said)


def measure(times: int) -> dict[str, list[tuple[float, float]]]:
    """Time and processor time of each answer, in s, by condition."""
    with TemporaryDirectory(prefix="shoal-status-") as folder, ExitStack() as stack:
        home = Path(folder) / "home"
        environ = {**environment(), "SHOAL_HOME": str(home)}
        for swarm in CONDITIONS:
            peer = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", TRAIN, swarm], stdout=subprocess.PIPE, env=environ)
            )
            stack.callback(peer.kill)
            assert peer.stdout is not None and peer.stdout.readline() == b"ready\n", f"the peer of {swarm} has failed"
            if swarm == "stopped":
                peer.send_signal(signal.SIGSTOP)
        until_s = time.monotonic() + SOON_S
        while (said := [ask(home, swarm)[-1] for swarm in CONDITIONS]) != list(CONDITIONS):
            assert time.monotonic() < until_s, f"{said}, and not {CONDITIONS}"
        found: dict[str, list[tuple[float, float]]] = {swarm: [] for swarm in CONDITIONS}
        for swarm in CONDITIONS * times:
            took_s, spent_s, said_now = ask(home, swarm)
            assert said_now == swarm, (said_now, swarm)
            found[swarm].append((round(took_s, 4), round(spent_s, 4)))
        return found


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    where: dict[str, Any] = {"commit": commit(), "machine": machine()}
    found = measure(args.times)
    longest = {}
    for swarm, answers in found.items():
        took, spent = zip(*answers, strict=True)
        longest[swarm] = max(took)
        print(f"{swarm:8} {median(took):.3f} s, {max(took):.3f} at most; {median(spent):.3f} s of a processor")
    print(f"load {os.getloadavg()[0]:.1f}")
    if args.json:
        args.json.write_text(
            json.dumps({**where, "took_and_spent_s": found, "load_after": os.getloadavg()[0]}, indent=1) + "\n"
        )
    wrong = [
        f"{each}: an answer took {took_s:.3f} s, not {MOST_S}" for each, took_s in longest.items() if took_s > MOST_S
    ]
    for each in wrong:
        print(f"missed: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
