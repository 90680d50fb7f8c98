"""`shoal lab -- COMMAND`: runs a command in each host and prints its output, until the last command has ended."""

import os
import selectors
import signal
import socket
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ..errors import LabError
from ..launch.output import UNREAD_S, Output, Sink, Stream
from ..launch.signals import signal_name, signals_to_socket
from .commands import Command
from .config import HostSettings, LabConfig
from .lab import NetworkLab
from .messages import Message
from .places import address

READ_BYTES: Final = 4096
TOO_LATE: Final = 0.1
"""Share of the shortest delay above which lateness causes a warning."""


def words_of(host: HostSettings, index: int, command: Sequence[str]) -> list[str]:
    """The command of a host, with `{host}`, `{address}` and `{peers}` replaced."""
    values = {"{host}": str(index), "{address}": address(index), "{peers}": str(host.num_peers)}
    words = []
    for word in host.command or command:
        for place, value in values.items():
            word = word.replace(place, value)
        words.append(word)
    return words


class Run:
    """One run of all commands of a lab; in the main thread, which receives the signals."""

    def __init__(
        self,
        config: LabConfig,
        *,
        name: str,
        seed: int,
        stdout: int,
        stderr: int,
        environ: Mapping[str, str] = MappingProxyType({}),
        ends_together: bool = False,
    ) -> None:
        """Prepare a run; LabError if a host has no command.

        `stdout`, `stderr`: descriptors for the output of the commands; messages of the lab go to `stderr`. `environ`:
        added to the environment of the commands. `ends_together`: end the lab as soon as a command fails. The
        attribute `shown` holds the result of `NetworkLab.show` at the end.
        """
        if not all(host.command or config.command for host in config.hosts):
            raise LabError("nothing to run: give -- COMMAND, or `command` in the file")
        self.shown: Message = {}
        self._config = config
        self._environ, self._ends_together = environ, ends_together
        self._lab = NetworkLab(config, name=name, seed=seed)
        self._selector = selectors.DefaultSelector()
        self._output = Output(self._selector, stdout, stderr, self._end_unheard)
        self._running: dict[Command, tuple[Stream, ...]] = {}
        self._codes: dict[int, int] = {}
        self._ended_by: int | None = None

    def run(self) -> int:
        """Return the exit code: 0; that of the first host, by number, that failed; or 128 + N after signal N.

        Raises:
            LabError: this machine allows no lab, or a command cannot be started.
        """
        try:
            return self._run()
        finally:
            self._output.finish(None if self._ended_by is None else UNREAD_S)

    def _run(self) -> int:
        with self._selector, signals_to_socket() as woken, self._lab as lab:
            self._selector.register(woken, selectors.EVENT_READ)
            for index, host in enumerate(self._config.hosts):
                self._start(index, words_of(host, index, self._config.command))
            while self._running:
                self._wait(woken)
            self.shown = lab.show()
        for line in summary(self.shown, self._config):
            self._output.say(line)
        if self._ended_by is not None:
            return 128 + self._ended_by
        failed = [self._codes[host] for host in sorted(self._codes) if self._codes[host]]
        return 0 if not failed else failed[0] if failed[0] > 0 else 128 - failed[0]

    def _start(self, host: int, words: Sequence[str]) -> None:
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        for source, _ in pipes:
            os.set_blocking(source, False)
        try:
            with open(os.devnull) as nothing:
                streams = nothing.fileno(), pipes[0][1], pipes[1][1]
                command = self._lab.start(host, words, streams=streams, environ=self._environ)
        finally:
            for _, sink in pipes:
                os.close(sink)
        stdout, stderr = (open(source, "rb", buffering=0) for source, _ in pipes)  # noqa: SIM115, the output closes them
        self._running[command] = self._output.follow(str(host), (stdout, stderr))
        self._selector.register(command, selectors.EVENT_READ, command)

    def _wait(self, woken: socket.socket) -> None:
        for key, _ in self._selector.select():
            if isinstance(key.data, Stream | Sink):
                self._output.pass_on(key.data)
            elif isinstance(key.data, Command):
                if key.data in self._running:  # cleared if a command that ended in the same round ends the lab
                    self._bury(key.data)
            else:
                for number in woken.recv(READ_BYTES):
                    self._receive_signal(number)

    def _bury(self, command: Command) -> None:
        self._selector.unregister(command)
        code = command.wait()
        self._codes[command.host] = code
        self._output.end(self._running.pop(command))
        if code and self._ended_by is None:
            what = f"exit code {code}" if code > 0 else signal_name(-code)
            self._output.say(f"the command of host {command.host} has ended with {what}")
            if self._ends_together:
                self._running.clear()

    def _receive_signal(self, number: int) -> None:
        if number in (signal.SIGCHLD, signal.SIGUSR1):
            return
        if self._ended_by is not None:
            self._output.say(f"{signal_name(number)} again: ending the lab")
            self._running.clear()
            return
        self._end(number, signal_name(number))

    def _end(self, number: int, why: str) -> None:
        self._ended_by = number
        self._output.say(f"{why}: passing it on to all commands; once more ends the lab")
        for command in self._running:
            command.send_signal(number)

    def _end_unheard(self, error: OSError) -> None:
        if self._ended_by is None:
            self._end(signal.SIGTERM, f"the output cannot be written ({error.strerror})")


def summary(shown: Message, config: LabConfig) -> list[str]:
    """Lines of the report on a lab that has ended."""
    return [counts(shown), *warnings(shown, config)]


def counts(shown: Message) -> str:
    """Packets, drops and lateness."""
    late, drops = shown["lateness_us"], {"queue": 0, "loss": 0, "mtu": 0, "cut": 0}
    for pair in shown["pairs"]:
        for why in drops:
            drops[why] += pair[f"dropped_{why}"]
    num_packets = sum(pair["packets"] for pair in shown["pairs"])
    dropped = ", ".join(f"{num:,} by {why}" for why, num in drops.items() if num) or "none"
    return (
        f"{num_packets:,} packets, dropped {dropped}; "
        f"lateness p50 {late['p50'] / 1e3:.2f} ms, p99 {late['p99'] / 1e3:.2f} ms"
    )


def warnings(shown: Message, config: LabConfig) -> list[str]:
    """Reasons to distrust the times that were measured in this lab."""
    late, lines = shown["lateness_us"], []
    shortest = min((pair.delay_ns for pair in config.pairs.values() if pair.delay_ns), default=0)
    if shortest and late["p99"] * 1e3 > TOO_LATE * shortest:
        lines.append(
            f"the lab was late by more than {TOO_LATE:.0%} of the shortest delay, {shortest / 1e6:g} ms: "
            "this machine is too busy for what it emulates, so take its times with care"
        )
    if shown["num_missed"]:
        lines.append(f"{shown['num_missed']:,} frames were lost by the lab itself, which was too slow to read them")
    return lines
