"""The thread that writes checkpoints: one at a time, from a copy that the training thread makes at a step's edge.

The copy lies in memory that is kept, and was touched before, so that it costs the step no more than copying. Digests,
writing and syncing leave the interpreter to the script.
"""

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import xxhash

from ..host.ready_memory import touched
from ..net.parcels import PackedState
from ..net.trees import unpack_tree
from .folder import put, remove_old, remove_oldest
from .manifest import Ancestry, Manifest
from .settings import Checkpoint
from .tensors import WRITE_ERRORS, Bytes, in_index_order
from .tree import Row, name_slots, to_json

logger = logging.getLogger("p2p")

SAID_S = 30.0
"""Who waits for a disk says so, and again, each time after so long."""


class Writer:
    """Of one peer.

    Attributes:
        written: the last checkpoint that is whole.
        failure: why the last one is not; empty: it is.
    """

    def __init__(self, settings: Checkpoint, name: str) -> None:
        """Start the thread, since none can be started where the interpreter ends; take no memory yet.

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
        """Whether another one can be begun."""
        return self._is_idle.is_set()

    def wait(self) -> None:
        """Until what was begun is whole, or has failed; says now and then that it is awaited."""
        while not self._is_idle.wait(SAID_S):
            logger.warning("a checkpoint is being written to %s, for more than %g s", self._settings.path, SAID_S)

    def prepare(self, state: PackedState) -> None:
        """Have memory for such a state, in the background."""
        num_bytes = _size(state)
        if self._memory.size < num_bytes:
            self._start(lambda: self._make_memory(num_bytes))

    def begin(self, state: PackedState, manifest: Manifest, *, is_last: bool = False) -> None:
        """Copy `state`, and write it in the background.

        Args:
            state: nobody changes it meanwhile.
            manifest: of it, without what the state says itself.
            is_last: whether it goes well, the caller says.
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
            start += -(-source.size // 8) * 8  # whatever a part is, it is aligned for it
        tree = state.tree
        self._start(lambda: self._write(tree, parts, manifest, is_last=is_last))

    def _make_memory(self, num_bytes: int) -> None:
        self._memory = np.empty(0, np.uint8)  # the former may go first
        self._memory = touched(num_bytes)

    def _start(self, job: Callable[[], None]) -> None:
        self._is_idle.clear()
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception as error:  # the top of this thread: the next job may go well
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
        folder, before = self._settings.path, self.written
        try:
            self._put(whole, rows, ordered)
        except WRITE_ERRORS as error:
            last = f"the last one is that of step {before.step}" if before is not None else "there is none yet"
            self.failure = f"checkpoint of step {whole.step} cannot be written to {folder}, and {last}: {error}"
            if not is_last:
                logger.warning("%s; training goes on, and the next is tried", self.failure)
            return
        self.written, self.failure = whole, ""
        logger.info("checkpoint of step %d is whole: %d bytes in %s", whole.step, num_bytes, folder)
        remove_old(folder, whole.ancestry.run, whole.ancestry.start, self._settings.keep)

    def _put(self, whole: Manifest, rows: list[Row], parts: list[Bytes]) -> None:
        """Raises as `put`, where there is no room that older ones may make."""
        while True:
            try:
                put(self._settings.path, whole, rows, parts, self._name)
                return
            except WRITE_ERRORS:
                if not self._makes_room(whole):
                    raise

    def _makes_room(self, whole: Manifest) -> bool:
        """Whether there was too little, and the oldest one is removed for it, which `keep` would remove later."""
        folder, ancestry = self._settings.path, whole.ancestry
        if self._settings.keep is None or shutil.disk_usage(folder).free >= whole.num_bytes:
            return False
        gone = remove_oldest(folder, ancestry.run, ancestry.start)
        if gone is not None:
            logger.warning("%s is removed, to make room for that of step %d", gone, whole.step)
        return gone is not None


def child_of(parent: Manifest | None, before: Ancestry) -> Ancestry:
    """Of the next checkpoint of this start."""
    return before if parent is None else replace(before, parent=parent.id, parent_step=parent.step)


def _size(state: PackedState) -> int:
    return sum(-(-memoryview(tensor).nbytes // 8) * 8 for tensor in state.tensors)
