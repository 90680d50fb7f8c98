"""The buckets of a step, from traces."""

from pathlib import Path

import pytest

from p2p.benchmark.recorded import bucket_sizes, say_buckets
from p2p.errors import LaunchError
from p2p.telemetry.records import Kind
from p2p.telemetry.trace import Tail, write_trace
from tests.p2p.telemetry.pages import A, identity, page


def trace(folder: Path, *steps: tuple[int, list[int]]) -> Path:
    """The trace of a peer whose steps have these sums, each from the given step on."""
    made, path = page(folder, identity()), folder / "traces" / f"{A}.trace"
    tail = Tail(made.path)
    for step, sizes in steps:
        for size in sizes:
            made.training.note(Kind.BUCKET, step, size=len(sizes), value=size)
        made.training.note(Kind.SUBMITTED, step)
    path.parent.mkdir(exist_ok=True)
    write_trace(path, tail.identity, tail.read())
    return path


def test_the_sums_of_the_last_kind_of_step_are_found_in_a_trace_and_in_its_folder(tmp_path: Path) -> None:
    path = trace(tmp_path, (1, [400]), (5, [800, 1200, 800]), (6, []))
    assert bucket_sizes(path) == bucket_sizes(tmp_path) == [800, 1200, 800]
    assert say_buckets([800, 4096, 800]) == "a step of that run sums 2 of 800, 1 of 4K"


def test_a_step_that_was_submitted_again_counts_once(tmp_path: Path) -> None:
    assert bucket_sizes(trace(tmp_path, (4, [800, 800]), (4, [800, 400]))) == [800, 400]


def test_what_has_none_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = trace(tmp_path, (1, []))
    for where, what in ((path, "does not have"), (tmp_path, "none of the 1 traces in")):
        with pytest.raises(LaunchError, match=f"{what}.*name a trace.*of a run that has trained"):
            bucket_sizes(where)
    with pytest.raises(LaunchError, match="nowhere cannot be read"):
        bucket_sizes(tmp_path / "nowhere")
    path.write_bytes(b"something else")
    with pytest.raises(LaunchError, match=r"cannot be read: .* has magic b'some'"):
        bucket_sizes(path)
    path.write_bytes(b"SHTR\x01\x00\x00\x00\x01\x00\x00\x00{")
    with pytest.raises(LaunchError, match="cannot be read"):
        bucket_sizes(path)
    path.write_bytes(b"SHTR\x01\x00\x00\x00\x05\x00\x00\x00{")  # truncated
    with pytest.raises(LaunchError, match="does not have the buckets of a step"):
        bucket_sizes(path)
