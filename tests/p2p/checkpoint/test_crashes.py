"""A writer is killed before each change that it makes of its folder, one after the other."""

import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any, Final

from p2p.checkpoint import Checkpoint
from p2p.checkpoint.folder import checkpoints, read_state, remove_leftovers
from p2p.checkpoint.manifest import Ancestry, read_manifest
from p2p.checkpoint.writer import Writer
from p2p.net.parcels import PackedState
from tests.p2p.checkpoint.states import RUN, make_state, manifest, written

CHANGES: Final = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
"""Audit events before what changes a folder, and before some things that do not."""

WRITTEN: Final = ((1, 10), (1, 20), (1, 30), (2, 20), (2, 25))
"""Start and step of the checkpoints of a run, which goes on from its first one in between."""

KEPT: Final = 3


def write_all(folder: Path, state: PackedState, dies_before: int, told: int) -> None:
    """Tell of each when it is whole. Dies before change number `dies_before`."""
    writer, changes = Writer(Checkpoint(folder, every=1, keep=KEPT), "peer"), count()

    def look(event: str, _: tuple[Any, ...]) -> None:
        if event in CHANGES and next(changes) == dies_before:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    for number, (start, step) in enumerate(WRITTEN, start=1):
        writer.begin(state, manifest(step, Ancestry(RUN, start)))
        writer.wait()
        assert not writer.failure
        os.write(told, bytes([number]))


def killed(folder: Path, state: PackedState, dies_before: int) -> tuple[bool, int]:
    """Whether it was, in a process of its own, and how many checkpoints were whole before."""
    heard, told = os.pipe()
    if not (child := os.fork()):
        try:
            write_all(folder, state, dies_before, told)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(told)
    with os.fdopen(heard, "rb") as pipe:
        number = len(pipe.read())
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL)
    return code != 0, number


def test_whenever_a_writer_is_killed_what_has_a_name_is_whole_and_the_last_one_is_there(tmp_path: Path) -> None:
    state = make_state()
    for dies_before in count():
        folder = tmp_path / str(dies_before)
        was_killed, number = killed(folder, state, dies_before)
        found = [read_manifest(path) for path in checkpoints(folder)]
        for path, each in zip(checkpoints(folder), found, strict=True):
            assert read_state(path, each).tree == state.tree
        ages = {(each.ancestry.start, each.step) for each in found}
        kept = ({*sorted(WRITTEN[:whole])[-KEPT:]} for whole in (number, number + 1))  # the next has its name, perhaps
        assert any(ages >= each for each in kept), (dies_before, number, ages)
        remove_leftovers(folder)
        left = [path for path in folder.glob(".*") if path.suffix == ".gone" or any(path.iterdir())]
        assert not left, (dies_before, left)
        if not was_killed:
            break
    assert number == len(WRITTEN) and len(found) == KEPT
    assert dies_before > 10 * len(WRITTEN)
    written(folder, [40], start=3, keep=1)
    assert [path.name for path in folder.iterdir()] == ["00000040"]
