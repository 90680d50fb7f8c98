"""The buckets of a real step, from the trace of a peer that has trained (p2p/telemetry/trace.py)."""

from collections import Counter
from pathlib import Path

from p2p.errors import LaunchError, RemoteProtocolError

from ..telemetry.records import Kind
from ..telemetry.trace import SUFFIX, read_trace
from .plan import format_size


def bucket_sizes(path: Path) -> list[int]:
    """Bytes of the sums of a trace's last kind of step, in order; of a folder, the first trace that has any.

    Raises:
        LaunchError: there is no trace, or it is of another version, or contains no training step.
    """
    traces = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
    for each in traces:
        if sizes := _sizes_in(each):
            return sizes
    what = f"none of the {len(traces)} traces in {path} has" if path.is_dir() else f"{path} does not have"
    raise LaunchError(
        f"--sizes-from: {what} the buckets of a step: name a trace, or the folder, of a run that has trained with "
        "`shoal run --receipts FOLDER` or `shoal experiment`"
    )


def _sizes_in(path: Path) -> list[int]:
    try:
        _, records = read_trace(path)
    except (OSError, ValueError, KeyError, RemoteProtocolError) as error:
        raise LaunchError(f"--sizes-from: {path} cannot be read: {error}") from None
    noted = [(each.step, each.size, int(each.value)) for each in records if each.kind == Kind.BUCKET]
    last = noted[-1][0] if noted else -1
    sizes = [num_bytes for step, _, num_bytes in noted if step == last]
    return sizes[-noted[-1][1] :] if noted else []  # a step may have been submitted twice


def say_buckets(sizes: list[int]) -> str:
    """In one line: `a step has 3 sums of 12M and 1 of 4M`."""
    counts = [f"{number} of {format_size(size)}" for size, number in sorted(Counter(sizes).items())]
    return f"a step of that run sums {', '.join(counts)}"
