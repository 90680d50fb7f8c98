"""`shoal bench all-reduce --draw`: a picture of an algorithm's transfers over given links. Measures nothing."""

from pathlib import Path
from typing import Final

from collectives import ALGORITHMS
from collectives.drawing import draw_simulation
from collectives.pricing import simulate

from ..errors import LaunchError
from .measuring.prediction import links_of
from .plan import PEERS_MAX, format_size

MESSAGE_NS: Final = 100_000
"""Approximate cost of a message in Python, at either end."""


def draw_all_reduce(algorithm: str, num_peers: int, size_bytes: int, net: str, per_host: int = 1) -> str:
    """Write `ALGORITHM-N.svg` into the current folder; returns a line about it. `per_host`: peers on each host.

    Raises:
        LaunchError, LabError: no such algorithm, number or link, or the folder cannot be written.
    """
    if algorithm not in ALGORITHMS:
        raise LaunchError(f"--draw names one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if not 1 <= num_peers <= PEERS_MAX:
        raise LaunchError(f"-n is the number of peers and must be 1 to {PEERS_MAX}, got {num_peers}")
    if per_host < 1 or num_peers % per_host:
        raise LaunchError(f"--per-host is a divisor of -n, which is {num_peers}, got {per_host}")
    schedules = [ALGORITHMS[algorithm](rank, num_peers) for rank in range(num_peers)]
    played = simulate(schedules, size_bytes, links_of(net, num_peers, MESSAGE_NS, per_host))
    what = f"{algorithm}, {num_peers} peers, {format_size(size_bytes)}, {net}: {played.time_ns / 1e6:.2f} ms"
    path = Path(f"{algorithm}-{num_peers}.svg")
    try:
        path.write_text(draw_simulation(played, what))
    except OSError as error:
        raise LaunchError(f"{path} cannot be written here: {error.strerror}") from None
    return f"{what} by the model; drawn in {path}"
