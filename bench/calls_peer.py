"""One of the peers of bench/calls.py: counts the Python functions that are called in it.

    python calls_peer.py FOLDER all_reduce|sockets-4K|sockets-64M|death ROUNDS

Writes the number of calls of each function, for each round, into `FOLDER/INDEX.json`. A list comprehension counts, and
so does each value that a generator yields: everything that `sys.setprofile` reports as a call.
"""

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np

import p2p

ROOT: Final = str(Path(__file__).parents[1]) + os.sep
OURS: Final = tuple(f"{ROOT}{package}/" for package in ("collectives", "gossip", "p2p"))
ALL_REDUCE, DEATH = "all_reduce", "death"
BY_SOCKETS: Final = {"sockets-4K": 4 << 10, "sockets-64M": 64 << 20}
"""Bytes of an all-reduce without shared memory."""
NUM_WARM: Final = 30
NUM_WARM_BYTES: Final = 64 << 20
SPIN: Final = "_spin"
"""The function that polls for another peer: the number of its calls says nothing about the code."""

ALIVE_S: Final = 0.3
"""Delay before the victim's death, in which the others reach the operation in which they wait for it."""


class Profile:
    """Counts calls in the thread that creates it; with `everywhere` also in threads that are started later."""

    def __init__(self, *, everywhere: bool) -> None:
        self._counter: Counter[CodeType] = Counter()
        self._begins: Callable[[CodeType], bool] = lambda code: False
        self._is_on = self._is_spinning = False
        if everywhere:
            threading.setprofile(self._see)
        sys.setprofile(self._see)

    def begin(self, when: Callable[[CodeType], bool]) -> None:
        """Start counting at the first call of a function for which `when` is true."""
        self._counter, self._begins, self._is_on = Counter(), when, False

    def end(self) -> dict[str, int]:
        """Stop counting; returns the calls by function, of functions of this repository."""
        self._is_on, self._begins = False, lambda code: False
        named = Counter[str]()
        for code, number in self._counter.items():
            if code.co_filename.startswith(OURS):
                named[f"{code.co_filename.removeprefix(ROOT)}:{code.co_firstlineno}:{code.co_name}"] += number
        return dict(named)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code.co_name == SPIN:
            self._is_spinning = event != "return"
        elif event == "call" and not self._is_spinning:
            if not self._is_on and self._begins(code):
                self._is_on = True
            if self._is_on:
                self._counter[code] += 1


def is_death(code: CodeType) -> bool:
    """Whether the function is the one that tells the core of a proven death."""
    return code.co_name == "declare_dead" and code.co_filename.endswith("core.py")


def main(folder: str, what: str, num_rounds: int) -> None:
    """Count calls, and write the counts."""
    profile = Profile(everywhere=what == DEATH)
    num_bytes = BY_SOCKETS.get(what, 4 << 10)
    values, found = np.ones(num_bytes // 4, np.float32), []
    with p2p.join(arena_bytes=0 if what in BY_SOCKETS else None) as peer:
        for _ in range(min(NUM_WARM, 2 + NUM_WARM_BYTES // num_bytes)):
            peer.all_reduce(values.copy())
        if what == DEATH:
            if peer.rank == 1:
                threading.Event().wait(ALIVE_S)
                os.kill(os.getpid(), signal.SIGKILL)
            profile.begin(is_death)
            peer.all_reduce(values.copy())
            found.append(profile.end())
        else:
            for _ in range(num_rounds):
                copy = values.copy()
                profile.begin(lambda code: code.co_name == "all_reduce")
                peer.all_reduce(copy)
                found.append(profile.end())
        peer.barrier()
    Path(folder, f"{os.environ['SHOAL_LAUNCH_INDEX']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
