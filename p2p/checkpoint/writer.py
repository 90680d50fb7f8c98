"""The thread that writes checkpoints: one at a time, from a copy that the training thread makes between steps.

The memory of the copy is reused, and its pages are touched in advance, so that a step pays only for copying. Digests,
writing and syncing release the GIL.
"""

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import xxhash

from ..host.prefaulted_memory import touched
from ..net.parcels import PackedState
from ..net.trees import unpack_tree
from .folder import put, remove_old, remove_oldest
from .manifest import Ancestry, Manifest
from .settings import Checkpoint
from .tensors import WRITE_ERRORS, Bytes, in_index_order
from .tree import Row, name_slots, to_json

logger = logging.getLogger("p2p")

SAID_S = 30.0
"""Interval of warnings while a checkpoint is awaited."""


class Writer:
    """Writes the checkpoints of one peer, in a thread.

    Attributes:
        written: the last complete checkpoint; None: there is none.
        failure: why the last attempt failed; empty: it did not.
    """

    def __init__(self, settings: Checkpoint, name: str) -> None:
        """Start the thread, since none can be started once the interpreter shuts down; allocate no memory yet.

        Args:
            settings: of the script.
            name: of this peer, for unfinished files.
        """
        self._settings, self._name = settings, name
        self._memory: Bytes = np.empty(0, np.uint8)
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self.written: Manifest | None = None
        self.failure = ""
        threading.Thread(target=self._run, name="shoal-checkpoint", daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """Whether another checkpoint can be begun."""
        return self._is_idle.is_set()

    def wait(self) -> None:
        """Wait until the checkpoint in progress is complete or has failed; logs a warning every `SAID_S`."""
        while not self._is_idle.wait(SAID_S):
            logger.warning("still writing a checkpoint to %s after more than %g s", self._settings.path, SAID_S)

    def prepare(self, state: PackedState) -> None:
        """Allocate memory for such a state in the background."""
        num_bytes = _size(state)
        if self._memory.size < num_bytes:
            self._start(lambda: self._make_memory(num_bytes))

    def begin(self, state: PackedState, manifest: Manifest, *, is_last: bool = False) -> None:
        """Copy `state`, and write it in the background.

        Args:
            state: must not change during this call.
            manifest: without the fields that are derived from the state.
            is_last: do not log a failure: the caller reports it.
        """
        num_bytes = _size(state)
        if self._memory.size < num_bytes:
            self._make_memory(num_bytes)
        parts: list[Bytes] = []
        start = 0
        for tensor in state.tensors:
            source = np.frombuffer(tensor, np.uint8)
            parts.append(self._memory[start : start + source.size])
            np.copyto(parts[-1], source)
            start += -(-source.size // 8) * 8  # aligned for any dtype
        tree = state.tree
        self._start(lambda: self._write(tree, parts, manifest, is_last=is_last))

    def fail(self, step: int, error: Exception, *, is_last: bool) -> None:
        """Note why the checkpoint of `step` was not written. `is_last`: as of `begin`."""
        before = self.written
        last = f"the last one is that of step {before.step}" if before is not None else "there is none yet"
        self.failure = f"cannot write the checkpoint of step {step} to {self._settings.path}, and {last}: {error}"
        if not is_last:
            logger.warning("%s; training continues, and the next one will be tried", self.failure)

    def _make_memory(self, num_bytes: int) -> None:
        self._memory = np.empty(0, np.uint8)  # release the old memory first
        self._memory = touched(num_bytes)

    def _start(self, job: Callable[[], None]) -> None:
        self._is_idle.clear()
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception as error:  # the top of this thread: the next job may succeed
                self.failure = f"a checkpoint could not be written: {error!r}"
                logger.exception("%s", self.failure)
            finally:
                self._is_idle.set()

    def _write(self, packed_tree: bytes, parts: list[Bytes], manifest: Manifest, *, is_last: bool) -> None:
        tree = unpack_tree(packed_tree)
        names = name_slots(tree)
        rows: list[Row] = [tuple(row) for row in tree["slots"]]
        ordered = [in_index_order(part, row) for part, row in zip(parts, rows, strict=True)]
        digests = dict(zip(names, (xxhash.xxh3_128_hexdigest(part.data) for part in ordered), strict=True))
        num_bytes = sum(part.size for part in parts)
        whole = replace(manifest, tree=to_json(tree, names), digests=digests, num_bytes=num_bytes)
        try:
            self._put(whole, rows, ordered)
        except WRITE_ERRORS as error:
            self.fail(whole.step, error, is_last=is_last)
            return
        self.written, self.failure = whole, ""
        logger.info("checkpoint of step %d is whole: %d bytes in %s", whole.step, num_bytes, self._settings.path)
        remove_old(self._settings.path, whole.ancestry.run, whole.ancestry.start, self._settings.keep)

    def _put(self, whole: Manifest, rows: list[Row], parts: list[Bytes]) -> None:
        """Write a checkpoint; removes older ones while the disk is full. Raises as `put`."""
        while True:
            try:
                put(self._settings.path, whole, rows, parts, self._name)
                return
            except WRITE_ERRORS:
                if not self._makes_room(whole):
                    raise

    def _makes_room(self, whole: Manifest) -> bool:
        """Remove the oldest checkpoint if the disk is too full, and `keep` allows it; whether one was removed."""
        folder, ancestry = self._settings.path, whole.ancestry
        if self._settings.keep is None or shutil.disk_usage(folder).free >= whole.num_bytes:
            return False
        gone = remove_oldest(folder, ancestry.run, ancestry.start)
        if gone is not None:
            logger.warning("removed %s to make room for the checkpoint of step %d", gone, whole.step)
        return gone is not None


def child_of(parent: Manifest | None, before: Ancestry) -> Ancestry:
    """The ancestry of the next checkpoint of this start."""
    return before if parent is None else replace(before, parent=parent.id, parent_step=parent.step)


def _size(state: PackedState) -> int:
    return sum(-(-memoryview(tensor).nbytes // 8) * 8 for tensor in state.tensors)
