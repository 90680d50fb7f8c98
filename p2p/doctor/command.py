"""`shoal doctor`: runs all checks, and prints each finding at once."""

import json
import time
from collections.abc import Iterable, Iterator
from typing import Final

from ..config import default_arena_bytes
from ..errors import LaunchError
from ..host.memory_left import memory_bytes
from .devices import look_at_devices
from .finding import Finding
from .host import look_at_host
from .rounds import cost_of_exchanges

WIDTH: Final = 15
UNITS: Final = {"K": 10**3, "M": 10**6, "G": 10**9}


def run(parameters: str, *, is_json: bool) -> int:
    """Run `shoal doctor`; returns the exit code.

    Raises:
        LaunchError: `parameters` is not a number.
    """
    findings = _all(parse_count(parameters))
    if is_json:
        print(json.dumps(for_programs(findings), allow_nan=False))
        return 0
    for each in findings:
        print(line(each), flush=True)
    return 0


def _all(count: int) -> Iterator[Finding]:
    yield from look_at_host()
    yield from look_at_devices(time.perf_counter)
    yield from cost_of_exchanges(count, default_arena_bytes(1), memory_bytes())


def line(finding: Finding) -> str:
    """A finding as a line of text, with a `!` if it limits peers."""
    return f"{' ' if finding.is_well else '!'} {finding.name:<{WIDTH}} {finding.says}"


def for_programs(findings: Iterable[Finding]) -> dict[str, object]:
    """The findings as JSON values, by name."""
    return {each.name: {"is_well": each.is_well, "says": each.says, **each.facts} for each in findings}


def parse_count(text: str) -> int:
    """Parse a number of at least 1, with an optional unit.

    Raises:
        LaunchError: `text` is no such number.
    """
    unit = UNITS.get(text[-1:].upper(), 1)
    try:
        found = float(text[:-1] if unit > 1 else text) * unit
    except ValueError:
        found = 0.0
    if not 1 <= found < 10**15:
        raise LaunchError(f"--parameters must be a number such as 124M, got {text!r}")
    return int(found)
