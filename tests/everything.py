"""All tests, as `make test` runs them: `python -m tests.everything`.

First what needs no other process, on all cores; then living peers, one test after the other, so that none of them waits
for a core that another test has. Ends with one line for all, and with 1 if any part failed.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[1]
MOST_WORKERS: Final = 8

PURE: Final = ("gossip", "collectives", "p2p", "simulated")
LIVE: Final = ("live",)


@dataclass(frozen=True, slots=True)
class Part:
    """How the tests of some folders went."""

    folders: tuple[str, ...]
    num_tests: int
    num_failed: int
    num_skipped: int
    time_s: float
    exit_code: int

    def __str__(self) -> str:
        counts = f"{self.num_tests - self.num_failed - self.num_skipped} passed, {self.num_failed} failed"
        skipped = f", {self.num_skipped} skipped" if self.num_skipped else ""
        code = f", pytest ended with {self.exit_code}" if self.exit_code else ""
        return f"{', '.join(self.folders)}: {counts}{skipped} in {self.time_s:.0f} s{code}"


def run(folders: tuple[str, ...], *options: str) -> Part:
    """Run pytest, which writes to our output."""
    began_s = time.monotonic()
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        paths = [f"tests/{folder}" for folder in folders]
        command = [sys.executable, "-m", "pytest", "-q", "--durations", "5", "--junitxml", report.name]
        code = subprocess.run([*command, *options, *paths], cwd=ROOT, check=False).returncode
        text = report.read()
    suites = list(ElementTree.fromstring(text).iter("testsuite")) if text else []
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return Part(folders, tests, failures + errors, skipped, time.monotonic() - began_s, code)


def main() -> int:
    """The exit code."""
    num_workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    parts = [run(PURE, "-n", str(num_workers), "--dist", "loadfile"), run(LIVE)]
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
