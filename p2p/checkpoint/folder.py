"""The folder with the checkpoints of one run: finds, writes, reads and removes them.

A checkpoint under its final name is complete: it is written under a name that begins with a dot, and synced to the disk
before it is renamed. The writer holds a lock meanwhile, so that others can tell abandoned leftovers.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import xxhash

from ..errors import RemoteProtocolError, ShoalError
from ..net.parcels import PackedState
from ..net.trees import pack_tree
from .manifest import FILE, TENSORS, Manifest, UnusableCheckpointError, read_manifest
from .tensors import READ_ERRORS, Bytes, in_memory_order, read, write
from .tree import Row, from_json, name_slots

NAME: Final = re.compile(r"\d{8,}(~\d+)?")
"""The name of a checkpoint: its step; for a replaced one, also `~` and the start that it was from, or the next number
that is free, if another run has that name."""

GONE: Final = ".gone"
"""Suffix of a checkpoint that is being removed."""

LEFTOVER: Final = re.compile(rf"\.{NAME.pattern}\.(\w+|\d+\{GONE})")
"""Names of unfinished and removed checkpoints, by `put` and `remove`; other hidden folders are not touched."""

NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without locks (Lustre without `flock`): leftovers stay there."""


def check_is_usable(folder: Path, num_bytes: int) -> None:
    """Create the folder, and check that `num_bytes` fit into it, counting the space of older checkpoints.

    Raises:
        ShoalError: the folder is not writable, or too full.
    """
    probe = folder / f".{os.getpid()}.probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"shoal")
        finally:
            probe.unlink(missing_ok=True)
        older = sum(each.num_bytes for each in sorted(manifests(folder).values(), key=lambda each: each.recency)[:-1])
        free = shutil.disk_usage(folder).free + older
    except OSError as error:
        raise ShoalError(f"cannot write checkpoints to {folder}: {error}; pass another folder") from error
    if free < num_bytes:
        raise ShoalError(
            f"cannot write checkpoints to {folder}: one takes at least {num_bytes} bytes, and only {free} are free, "
            "including the space of older ones; make room, or pass another folder"
        )


def checkpoints(folder: Path) -> list[Path]:
    """All paths in `folder` with the name of a checkpoint; empty if the folder cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name))
    except OSError:
        return []


def manifests(folder: Path) -> dict[Path, Manifest]:
    """The manifests of all checkpoints that have a usable one."""
    found = {}
    for path in checkpoints(folder):
        with suppress(UnusableCheckpointError):
            found[path] = read_manifest(path)
    return found


def read_state(path: Path, manifest: Manifest) -> PackedState:
    """The packed state of a checkpoint. Its tensors are mapped. Imports torch.

    Raises:
        UnusableCheckpointError: the content is not as written; names the first tensor that differs.
    """
    names = list(manifest.digests)
    try:
        tree = from_json(manifest.tree, {name: index for index, name in enumerate(names)})
        rows: list[Row] = [tuple(row) for row in tree["slots"]]
        if name_slots(tree) != names:
            raise ValueError("its tensors have other names")
        packed = pack_tree(tree)
    except (KeyError, ValueError, TypeError, AttributeError, RemoteProtocolError) as error:
        raise UnusableCheckpointError(f"checkpoint {path}: {FILE} does not describe a state: {error!r}") from None
    parts: list[memoryview] = []
    try:
        for name, row, part in zip(names, rows, read(path / TENSORS, names), strict=True):
            if xxhash.xxh3_128_hexdigest(part.data) != manifest.digests[name]:
                raise UnusableCheckpointError(f"checkpoint {path}: tensor {name} is damaged: its digest differs")
            parts.append(in_memory_order(part, row).data)
    except READ_ERRORS as error:
        raise UnusableCheckpointError(f"checkpoint {path}: {TENSORS} cannot be read: {error}") from None
    return PackedState(packed, parts)


def put(folder: Path, manifest: Manifest, rows: Sequence[Row], parts: Sequence[Bytes], writer: str) -> Path:
    """Write a checkpoint, synced to the disk. Returns its folder.

    Args:
        folder: of all checkpoints.
        manifest: of this checkpoint.
        rows: shape, dtype and strides of its slots.
        parts: bytes of its slots, in index order.
        writer: name of this peer, used in the temporary name.

    Raises:
        OSError, SafetensorError: the checkpoint cannot be written; what was written is removed, if possible.
    """
    path = folder / f"{manifest.step:08d}"
    unfinished = folder / f".{path.name}.{writer}"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        with _locked(unfinished, may_fail=True):
            write(unfinished / TENSORS, list(manifest.digests), rows, parts)
            (unfinished / FILE).write_text(manifest.to_text(), encoding="utf-8")
            for each in (unfinished / TENSORS, unfinished / FILE, unfinished):
                _sync(each)
            _make_way(path)
            unfinished.rename(path)
            _sync(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return path


def _make_way(path: Path) -> None:
    """Rename an existing checkpoint of the same step, which another branch of the run wrote, or another run."""
    if path.exists():
        run, start = _origin(path)
        aside, number = path.with_name(f"{path.name}~{start}"), start
        while aside.exists() and _origin(aside) != (run, start):  # of another run
            number += 1
            aside = path.with_name(f"{path.name}~{number}")
        remove(aside)
        path.rename(aside)


def _origin(path: Path) -> tuple[str, int]:
    """Run and start of a checkpoint; of a damaged one none, and 0."""
    try:
        ancestry = read_manifest(path).ancestry
    except UnusableCheckpointError:
        return "", 0
    return ancestry.run, ancestry.start


def remove_old(folder: Path, run: str, start: int, keep: int | None) -> None:
    """Remove leftovers, and all checkpoints of `run` but the last `keep`; those of later starts do not count."""
    for path in _by_recency(folder, run, start)[:-keep] if keep else ():
        remove(path)
    remove_leftovers(folder)


def remove_oldest(folder: Path, run: str, start: int) -> Path | None:
    """Remove the oldest checkpoint of `run`, without later starts; None: there is at most one."""
    found = _by_recency(folder, run, start)
    if len(found) < 2:
        return None
    remove(found[0])
    return found[0]


def _by_recency(folder: Path, run: str, start: int) -> list[Path]:
    of_run = ((path, each) for path, each in manifests(folder).items() if each.ancestry.run == run)
    return [path for _, path in sorted((each.recency, path) for path, each in of_run if each.ancestry.start <= start)]


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished checkpoints without a writer."""
    with suppress(OSError):
        for path in folder.iterdir():
            if LEFTOVER.fullmatch(path.name) and path.is_dir() and _is_nobodys(path):
                shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a checkpoint if it exists; for other processes atomically, by a rename."""
    gone = path.with_name(f".{path.name}.{os.getpid()}{GONE}")
    with suppress(OSError):
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _is_nobodys(path: Path) -> bool:
    """Whether a leftover can be removed: its removal had begun, or it is not empty, and no process writes it."""
    try:
        if path.suffix != GONE and next(path.iterdir(), None) is None:
            return False  # its writer is about to lock it
        with _locked(path):
            return True
    except OSError:
        return False


@contextmanager
def _locked(path: Path, *, may_fail: bool = False) -> Iterator[None]:
    """Lock a folder. BlockingIOError: another process has the lock. `may_fail`: ignore file systems without locks."""
    fd = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not (may_fail and error.errno in NO_LOCKS):
                raise
        yield
    finally:
        os.close(fd)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
