"""All tests but the long ones, as `make test` runs them: `python -m tests.everything`; the long ones with `--long`.

A test is `long` if it takes more than a few seconds of processor time and repeats at length what shorter tests show; so
are the cases of a test beyond one of each kind (cases.py).

Tests with real processes run in the foreground: first those that need at most one core (`light`), three at a time,
since they also wait; then the others one after the other, so that they do not compete for cores. Tests without other
processes run beside these at a lower priority (`nice`); their output comes at the end. Prints one line for each part
and one for all; exits with 1 if any part failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[1]
MOST_WORKERS: Final = 8

PURE: Final = ("gossip", "collectives", "p2p", "simulated")
LIVE: Final = ("live", "equivalence")
AT_ONCE: Final = 3
"""Number of light tests that run at the same time, whatever the number of cores."""
NICE: Final = ("nice", "-n", "19")


@dataclass(frozen=True, slots=True)
class Part:
    """The outcome of a part of the tests."""

    name: str
    num_tests: int
    num_failed: int
    num_skipped: int
    time_s: float
    exit_code: int

    def __str__(self) -> str:
        counts = f"{self.num_tests - self.num_failed - self.num_skipped} passed, {self.num_failed} failed"
        skipped = f", {self.num_skipped} skipped" if self.num_skipped else ""
        code = f", pytest ended with {self.exit_code}" if self.exit_code else ""
        return f"{self.name}: {counts}{skipped} in {self.time_s:.0f} s{code}"


def run(name: str, folders: tuple[str, ...], *options: str, yields: bool = False) -> Part:
    """Run pytest with this process's output. `yields`: at a lower priority, with the output at its end."""
    # The tests start hundreds of programs, each of which would compile everything again.
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began_s = time.monotonic()
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        paths = [f"tests/{folder}" for folder in folders]
        command = [sys.executable, "-m", "pytest", "-q", "--durations", "25", "--junitxml", report.name]
        done = subprocess.run(
            [*(NICE if yields else ()), *command, *options, *paths],
            cwd=ROOT,
            env=environ,
            check=False,
            stdout=subprocess.PIPE if yields else None,
        )
        text = report.read()
    if yields:
        print(done.stdout.decode(errors="replace"), flush=True)
    suites = list(ElementTree.fromstring(text).iter("testsuite")) if text else []
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return Part(name, tests, failures + errors, skipped, time.monotonic() - began_s, done.returncode)


def main() -> int:
    """Run the tests; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="those that are long, and no others")
    is_long = parser.parse_args().long
    kind = "long" if is_long else "not long"
    limit = ("--timeout", "300") if is_long else ()
    num_workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    three = ("-n", str(AT_ONCE), "--dist", "worksteal")
    with ThreadPoolExecutor(1) as beside:
        # The timeout is longer, since tests at a lower priority may wait for long.
        workers = ("-m", kind, "-n", str(num_workers), "--dist", "loadfile", "--timeout", "300")
        pure = beside.submit(run, ", ".join(PURE), PURE, *workers, yields=True)
        light = run(f"live, {AT_ONCE} at a time", LIVE, "-m", f"light and {kind}", *three, *limit)
        single = run("live, one at a time", LIVE, "-m", f"not light and {kind}", *limit)
        parts = [light, single, pure.result()]
    print()
    for part in parts:
        print(part)
    passed = sum(part.num_tests - part.num_failed - part.num_skipped for part in parts)
    skipped = sum(part.num_skipped for part in parts)
    failed = sum(part.num_failed for part in parts)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if any(part.exit_code for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
