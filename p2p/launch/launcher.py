"""`shoal run`: starts the peers of one host, passes their output on, and leaves none behind.

The launcher decides nothing for the peers: it hands each of them the same environment, and they find each
other. Each peer is the leader of its own session, so that Ctrl-C in the terminal reaches the launcher only,
which then asks the peers to leave. On Linux the kernel kills the peers if the launcher itself is killed.

One thread, one selector: it wakes up for output, for the end of a peer (SIGCHLD), of which it tells the peers of other
hosts, and for the signals that end the run. Left out: restarting peers, and starting them on other hosts (Slurm,
Kubernetes or Ray do both).
"""

import math
import selectors
import signal
import socket
import time
from collections.abc import Mapping

from ..host.registry import Registry, default_home
from .children import Child
from .config import LaunchConfig
from .death_notices import DeathNotices
from .output import READ_BYTES, Output, Stream
from .report import names, run_exit_code, what_became_of
from .signals import signal_name, signals_to_socket


class Launcher:
    """Runs `config.num_peers` peers to their end: once, and in the main thread, which gets the signals.

    The kernel kills the peers when the thread that started them ends.
    """

    def __init__(self, config: LaunchConfig, *, environ: Mapping[str, str], stdout: int, stderr: int) -> None:
        """Check what can be known to fail before the first peer starts.

        Args:
            config: what to start.
            environ: what the peers inherit; says where the registry is if `config` does not.
            stdout: descriptor for what peers write to theirs.
            stderr: the same, and for what the launcher itself has to say.

        Raises:
            LaunchError, NetworkError, SecurityError: the config asks for what cannot be started.
            RegistryError: no peer could use the registry folder.
        """
        tcp = config.check()
        registry = Registry(config.home or default_home(environ), config.swarm)
        self._death_notices = DeathNotices(registry, tcp, time.monotonic)
        self._config = config
        self._environ = environ
        self._selector = selectors.DefaultSelector()
        self._output = Output(self._selector, stdout, stderr, self._end_unheard)
        self._streams: dict[Child, tuple[Stream, ...]] = {}
        self._return_codes: list[int] = []
        self._ended_by: int | None = None
        self._kill_at = math.inf

    def run(self) -> int:
        """Start the peers, wait until the last has ended, and return the exit code of the run."""
        with self._selector, signals_to_socket() as wake_up:
            self._selector.register(wake_up, selectors.EVENT_READ)
            try:
                for index in range(self._config.num_peers):
                    child = Child.start(self._config, index, self._environ)
                    self._streams[child] = self._output.follow(index, child.outputs)
                while self._streams:
                    self._wait(wake_up)
            finally:
                self._kill_all()
                self._warn(self._death_notices.close())
        return run_exit_code(self._return_codes, self._ended_by)

    def _wait(self, wake_up: socket.socket) -> None:
        """Sleep until something happens, and deal with it."""
        wake_at = min(self._kill_at, self._death_notices.deadline)
        for key, _ in self._selector.select(None if wake_at == math.inf else max(0.0, wake_at - time.monotonic())):
            if isinstance(key.data, Stream):
                self._output.pass_on(key.data)
            else:
                for number in wake_up.recv(READ_BYTES):
                    self._receive_signal(number)
        if time.monotonic() >= self._death_notices.deadline:
            self._warn(self._death_notices.look())
        if self._streams and time.monotonic() >= self._kill_at:
            self._output.say(f"killing {names(self._streams)}, still there after {self._config.grace_s:g} s")
            self._kill_all()

    def _receive_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            for child in [child for child in self._streams if child.has_ended()]:
                self._bury(child)
        elif self._ended_by is None:
            self._end(number, signal_name(number))
        elif self._streams:
            self._output.say(f"{signal_name(number)} again: killing {names(self._streams)}")
            self._kill_all()

    def _end(self, number: int, why: str) -> None:
        """Ask the peers to leave the swarm, as if signal `number` had come."""
        self._ended_by = number
        self._kill_at = time.monotonic() + self._config.grace_s
        self._output.say(f"{why}: asking {names(self._streams)} to leave")
        for child in self._streams:
            child.ask_to_leave()

    def _end_unheard(self, error: OSError) -> None:
        if self._ended_by is None:
            self._end(signal.SIGPIPE, f"the output cannot be written ({error.strerror})")

    def _kill_all(self) -> None:
        for child in self._streams:
            child.kill()
        for child in list(self._streams):
            child.wait()
            self._bury(child, killed=True)

    def _bury(self, child: Child, *, killed: bool = False) -> None:
        """Pass on the last words of a peer that has ended, and say so, unless it was `killed` by this launcher."""
        # Helpers, such as DataLoader workers, do not outlive their peer. Only while the peer itself is not
        # reaped can its pid not belong to somebody else.
        child.kill()
        self._warn(self._death_notices.announce(child.pid, child.process_start))
        return_code = child.reap()
        self._return_codes.append(return_code)
        self._output.end(self._streams.pop(child))
        if return_code and self._ended_by is None and not killed:
            self._output.say(what_became_of(child, return_code, len(self._streams)))

    def _warn(self, text: str) -> None:
        if text and self._ended_by is None:
            self._output.say(text)
