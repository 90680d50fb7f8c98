"""The process that programs are forked from: it has imported what they need, and runs no thread.

    python -P -m p2p.forking.server FD MODULE ...

FD is a SOCK_SEQPACKET socket; every packet is one JSON object. A request has the words of a program, and carries three
descriptors: stdin, stdout and stderr of the process to fork. The answer is its pid, with a handle of the process
(pidfd) beside it. When a process ends, its session is killed, and its exit code told. When the requester closes its
end, or dies, all that was forked is killed.

A fork differs from a plain process in this: `hash()` has the seed of all its siblings, settings that a library reads
when it is loaded (OMP_NUM_THREADS, MALLOC_*) are those of this process, memory that nobody writes is shared, numpy's
own BLAS has one thread, and at its end the libraries that were loaded here are not taken apart.
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
"""Of an error."""
ANSWER_S: Final = 10.0
"""Who does not take an answer in this time has died, or hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run, as in `python WORDS`, in which folder, and beside how much memory."""

    words: tuple[str, ...]
    environ: dict[str, str]
    folder: str
    resident_bytes: int


def main() -> None:
    """Serve until the requester has gone; in a fork, run what was asked for."""
    requester = socket.socket(fileno=int(sys.argv[1]))
    requester.settimeout(ANSWER_S)
    try:
        import_all(sys.argv[2:])
    except ImportFailed as error:
        requester.send(json.dumps({"module": error.module, "why": error.why[:MOST_CHARACTERS]}).encode())
        sys.exit(1)
    check_alone()
    requester.send(b'{"ready": true}')
    request = Server(requester).serve()
    if request is not None:
        become(request)


def import_all(modules: Sequence[str]) -> None:
    """Import what peers need, so that no fork has to."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a module does as it is imported
            raise ImportFailed(module, f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    leave_at_end()
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, every page that has an object


def check_alone() -> None:
    """A fork has only the thread that forked it; what another one held stays locked for ever."""
    tasks = os.listdir("/proc/self/task")
    if threading.active_count() != 1 or len(tasks) != 1:
        raise RuntimeError(f"cannot fork, since an import started threads: {threading.enumerate()}, tasks {tasks}")


class Server:
    """Forks, reaps, and tells."""

    def __init__(self, requester: socket.socket) -> None:
        self._requester = requester
        self._poll = select.poll()
        self._poll.register(requester, select.POLLIN)
        self._pids: dict[int, int] = {}

    def serve(self) -> Request | None:
        """None when the requester has gone and everybody is dead; in a fork, what it has to run."""
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
        """Whether this is the fork."""
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
        """A session of its own, no descriptor but the three that were sent, and signals as in the foreground."""
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without
        prepare()
        for standard, fd in enumerate(fds):
            os.dup2(fd, standard)
        self._requester.detach()  # so that nobody closes the number once more, when somebody else has it
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))

    def _reap(self, pidfd: int) -> None:
        pid = self._pids.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        kill_session(pid)  # while it is not reaped its pid can belong to nobody else
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
    """Run the program as one of its own."""
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environ)
    run_to_the_end(lambda: run(request.words, request.resident_bytes))


if __name__ == "__main__":
    main()
