"""Fast path for the common arguments of `shoal status`: loading the full parser takes longer than the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusArguments:
    """The arguments of `p2p.status.screen.show`."""

    home: Path | None
    swarm: str
    is_json: bool
    watches: bool


def parse_arguments(arguments: Sequence[str], environ: Mapping[str, str]) -> StatusArguments | None:
    """Parse the arguments of `shoal status`; None: leave them to the full parser (help, another host, a mistake)."""
    home, swarm, flags = environ.get("SHOAL_HOME", ""), "", set()
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--json", "--watch"):
            flags.add(argument)
        elif argument == "--home":
            home = next(rest, "")
            if not home or home.startswith("-"):
                return None
        elif argument.startswith("-") or not argument or swarm:
            return None
        else:
            swarm = argument
    return StatusArguments(
        home=Path(home) if home else None, swarm=swarm, is_json="--json" in flags, watches="--watch" in flags
    )
