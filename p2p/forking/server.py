"""The fork server: a process that has imported the modules that programs need, and has a single thread.

    python -P -m p2p.forking.server FD MODULE ...

FD is a SOCK_SEQPACKET socket; every packet is one JSON object. A request has the words of a program, and carries three
descriptors: stdin, stdout and stderr of the process to fork. The answer has its pid, and carries a handle of the
process (pidfd). When a process ends, the server kills its session and reports its exit code. When the requester closes
its end, or dies, the server kills all forks.

A fork differs from a plain process as follows: `hash()` has the same seed in all forks; settings that a library reads
when it is loaded (OMP_NUM_THREADS, MALLOC_*) are those of the server; unmodified memory is shared; numpy's own BLAS has
one thread; and libraries that the server loaded are not finalized at its end.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..launch.children import die_with_parent, kill_session
from .ending import leave_at_end, run_to_the_end
from .program import ImportFailed, run

MAX_BYTES: Final = 1 << 18
MOST_CHARACTERS: Final = 500
"""Maximum length of an error message."""
ANSWER_S: Final = 10.0
"""A requester that does not accept an answer within this time has died, or hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A program to run, as in `python WORDS`, its environment and folder, and resident memory beside it."""

    words: tuple[str, ...]
    environ: dict[str, str]
    folder: str
    resident_bytes: int


def main() -> None:
    """Serve until the requester has gone; in a fork, run the requested program."""
    requester = socket.socket(fileno=int(sys.argv[1]))
    requester.settimeout(ANSWER_S)
    try:
        import_all(sys.argv[2:])
    except ImportFailed as error:
        requester.send(json.dumps({"module": error.module, "why": error.why[:MOST_CHARACTERS]}).encode())
        sys.exit(1)
    check_single_threaded()
    requester.send(b'{"ready": true}')
    request = Server(requester).serve()
    if request is not None:
        become(request)


def import_all(modules: Sequence[str]) -> None:
    """Import these modules, so that no fork has to."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a module may raise anything while it is imported
            raise ImportFailed(module, f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    leave_at_end()
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, every page that has an object


def check_single_threaded() -> None:
    """Raise RuntimeError if there are other threads: locks that these hold would stay locked in a fork."""
    tasks = os.listdir("/proc/self/task")
    if threading.active_count() != 1 or len(tasks) != 1:
        raise RuntimeError(f"cannot fork, since an import started threads: {threading.enumerate()}, tasks {tasks}")


class Server:
    """Forks processes, reaps them, and reports both."""

    def __init__(self, requester: socket.socket) -> None:
        self._requester = requester
        self._poll = select.poll()
        self._poll.register(requester, select.POLLIN)
        self._pids: dict[int, int] = {}

    def serve(self) -> Request | None:
        """Return None after the requester has gone and all forks are dead; in a fork, return its request."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._pids:
                    self._reap(fd)
                    continue
                packet, fds, _, _ = socket.recv_fds(self._requester, MAX_BYTES, 3)
                if not packet:
                    self._end()
                    return None
                request = Request(**json.loads(packet))
                if self._fork(fds):
                    return request

    def _fork(self, fds: list[int]) -> bool:
        """Fork, and report the pid to the requester; return whether this process is the fork."""
        prepare = die_with_parent()
        pid = os.fork()
        if not pid:
            self._become_peer(fds, prepare)
            return True
        pidfd = os.pidfd_open(pid)
        self._pids[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        for fd in fds:
            os.close(fd)
        socket.send_fds(self._requester, [json.dumps({"pid": pid}).encode()], [pidfd])
        return False

    def _become_peer(self, fds: list[int], prepare: Callable[[], None]) -> None:
        """Set up a fork: its own session, only the three descriptors of the request, signals as in the foreground."""
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of a shell
        prepare()
        for standard, fd in enumerate(fds):
            os.dup2(fd, standard)
        self._requester.detach()  # its number, closed below, may be reused: it must not be closed twice
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))

    def _reap(self, pidfd: int) -> None:
        pid = self._pids.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        kill_session(pid)  # until it is reaped, its pid is not reused
        _, status = os.waitpid(pid, 0)
        self._tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, what: dict[str, Any]) -> None:
        try:
            self._requester.send(json.dumps(what).encode())
        except OSError:
            self._end()
            raise

    def _end(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)  # it may not lead its session yet
            kill_session(pid)
        for pid in self._pids.values():
            os.waitpid(pid, 0)


def become(request: Request) -> None:
    """Run the requested program in this fork, to its end."""
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environ)
    run_to_the_end(lambda: run(request.words, request.resident_bytes))


if __name__ == "__main__":
    main()
