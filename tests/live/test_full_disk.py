"""A disk that fills up during a run: checkpoints and receipts that cannot be written, and the files that remain."""

import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.live.swarm import Process, Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

CLONE_NEWNS: Final = 0x20000
PRIVATE: Final = 0x44000  # MS_REC | MS_PRIVATE

DISK_BYTES: Final = 2 << 20

TRAIN = """
import errno, os, sys
from pathlib import Path
import torch
import p2p
from tests.live.test_full_disk import mount_disk, whole

disk, words = Path(sys.argv[1]), sys.argv[2:]
mount_disk(disk)
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(100, 200)
optimizer = torch.optim.Adam(model.parameters())

def fill():
    with open(disk / "filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(997)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC

try:
    with p2p.join() as peer:
        print("here", peer.peer_id)
        checkpoint = p2p.Checkpoint(disk / "checkpoints", every=10, keep=3 if "keep" in words else None)
        parallel = p2p.DataParallel(peer, model, optimizer, checkpoint=checkpoint)
        while peer.done < 45:
            if peer.done == (35 if "keep" in words else 15):
                peer._session.membership.keeper._writer.wait()  # the last one is written while there is room
                fill()
            if peer.done == 35 and "room" in words:
                (disk / "filler").unlink()
            if peer.done in (25, 35) and "keep" not in words:
                print("step", peer.done)
                sys.stdin.readline()
                peer._session.membership.keeper._writer.wait()  # it has said so, and may not be idle yet
            optimizer.zero_grad()
            parallel(torch.full((4, 100), 1.0 + peer.rank)).square().mean().backward()
            optimizer.step()
finally:
    for path in sorted(disk.rglob("*")):
        if path.is_file():
            print("left", path.relative_to(disk), whole(path))
"""
"""Each peer has a disk of its own, like peers on separate hosts; it is full after 15 of 45 steps, or after 35."""


def mount_disk(folder: Path) -> None:
    """Mount a small disk that only this process sees, and that ends with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps: list[Callable[[], int]] = [
        lambda: libc.unshare(CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, PRIVATE, None),
        lambda: libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=%d" % DISK_BYTES),
    ]
    for step in steps:
        if step():
            raise OSError(ctypes.get_errno(), f"no disk can be mounted: {os.strerror(ctypes.get_errno())}")


def whole(path: Path) -> str:
    """Whether a file of lines is truncated, in words."""
    return "" if path.suffix != ".jsonl" or path.read_bytes().endswith(b"\n") else "is cut"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    try:
        subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", tmp_path], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a process cannot mount a disk of its own here, which root can, in a mount namespace: {error}")
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def train(swarm: Swarm, disk: Path, *words: str) -> tuple[Process, Process]:
    """Train; returns the peer that writes, and another one."""
    writer, other = swarm.start_all(2, TRAIN, str(disk), *words)
    pattern = (
        r"cannot write the checkpoint of step {} to .*, and the last one is that of step 10: .*space.*; training .*"
    )
    for step in (20, 30):
        writer.expect_step(step + 5)
        writer.expect_line(pattern.format(step), is_error=True)
        for peer in (writer, other):
            peer.tell("go on")
    return writer, other


def kept(peer: Process) -> list[str]:
    return [f"receipts/{name(peer)}.receipts.jsonl", f"receipts/traces/{name(peer)}.trace"]


def left(peer: Process) -> list[str]:
    return [line.removeprefix("left ").strip() for line in peer.stdout if line.startswith("left ")]


def test_a_run_whose_disk_is_full_for_a_while_says_so_goes_on_and_leaves_nothing_unfinished(
    swarm: Swarm, disk: Path
) -> None:
    swarm.environ["SHOAL_RECEIPTS"] = str(disk / "receipts")
    writer, other = train(swarm, disk, "room")
    assert [writer.end(), other.end()] == [0, 0], writer.report() + other.report()
    names = kept(writer)
    steps = [
        f"checkpoints/{step:08d}/{file}" for step in (10, 40, 45) for file in ("checkpoint.json", "state.safetensors")
    ]
    assert left(writer) == [*steps, *names], writer.report()
    assert left(other) == kept(other)
    said, heard = ([line for line in each.stderr if "can be heard" not in line] for each in (writer, other))  # by load
    receipts = [line for line in said if "receipts" in line]
    assert len(receipts) == 1 and len(said) == 3, writer.report()
    for line in (*receipts, *heard):
        assert re.fullmatch(
            rf"receipts cannot be written to {disk}/receipts: .*No space left.* continues without .*", line
        )


def test_who_cannot_write_the_last_checkpoint_of_a_run_ends_with_1(swarm: Swarm, disk: Path) -> None:
    writer, other = train(swarm, disk)
    assert [writer.end(), other.end()] == [1, 0], writer.report() + other.report()
    assert left(writer) == [
        "checkpoints/00000010/checkpoint.json",
        "checkpoints/00000010/state.safetensors",
        "filler",
    ], writer.report()
    words = r"shoal: cannot write the checkpoint of step 45 to .*, and the last one is that of step 10: .*; it would .*"
    assert re.fullmatch(words, writer.stderr[-1]) and len(writer.stderr) == 4, writer.report()


def test_on_a_full_disk_the_oldest_checkpoint_makes_room_where_it_would_go_anyway(swarm: Swarm, disk: Path) -> None:
    (writer,) = swarm.start_all(1, TRAIN, str(disk), "keep")
    assert writer.end() == 0, writer.report()
    files = [f"checkpoints/{step:08d}/checkpoint.json" for step in (30, 40, 45)]
    assert [line for line in left(writer) if line.endswith("json")] == files, writer.report()
    said = [re.sub(r" .*/", " ", line) for line in writer.stderr]
    steps = ((10, 40), (20, 45))
    assert said == [f"removed {old:08d} to make room for the checkpoint of step {new}" for old, new in steps], (
        writer.report()
    )
