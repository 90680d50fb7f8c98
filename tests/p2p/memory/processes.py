"""Processes that learn each other's arenas through the process that started them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from p2p.memory.arena import Arena, Memory, RemoteArena

ROOT = Path(__file__).parents[3]

Process = subprocess.Popen[str]


class Introduction(NamedTuple):
    """A process's message about its arena."""

    pid: int
    peer_id: str

    def open(self) -> RemoteArena:
        return RemoteArena.open(self.pid, self.peer_id)


def arenas_in(pid: int, peer_id: str) -> list[Path]:
    """The descriptors of a process that refer to this peer's arena: its own, and one per mapping."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            if os.readlink(path) == f"/memfd:shoal-{peer_id} (deleted)":
                found.append(path)
    return found


@contextmanager
def started(script: str, *args: str, num_processes: int = 1) -> Iterator[list[Process]]:
    """Processes that run a module of tests/p2p/memory, each with its number. They end with the context."""
    processes: list[Process] = []
    try:
        for number in range(num_processes):
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", f"tests.p2p.memory.{script}", str(number), *args],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def read(process: Process) -> Any:
    """The next line of a process's output, parsed."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the process ended with {process.wait()}"
    return json.loads(line)


def tell(process: Process, what: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def introduce(processes: Sequence[Process]) -> list[Introduction]:
    """Pass the introductions of all processes on to all."""
    introductions = [Introduction(*read(process)) for process in processes]
    for process in processes:
        tell(process, introductions)
    return introductions


# In these processes


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def hear() -> Any:
    return json.loads(sys.stdin.readline())


def meet(number: int, arena: Arena, peer_id: str) -> list[Memory]:
    """Introduce this process to all; returns the memories of all, in the order of their numbers."""
    say(Introduction(os.getpid(), peer_id))
    others = [Introduction(*each) for each in hear()]
    return [arena if peer == number else each.open() for peer, each in enumerate(others)]
