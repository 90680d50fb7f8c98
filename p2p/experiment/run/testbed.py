"""Hosts on which peers run: this host, or hosts of a network lab; each with a registry folder."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ...errors import ExperimentError, LabError
from ...host.processes import process_start
from ...launch.children import die_with_parent, kill_session
from ...net.tcp import TcpOptions
from ...netlab.lab import NetworkLab
from ...netlab.messages import Message
from ...netlab.places import environment
from ...netlab.settings import as_it_was, line_as_it_was, parse_net, parse_pair
from ...telemetry.snapshot import Identity


class Process(Protocol):
    """The part of `subprocess.Popen` that is used. The process leads its own session."""

    pid: int

    def poll(self) -> int | None: ...
    def send_signal(self, sig: int) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Starter = Callable[[Sequence[str], Mapping[str, str], int], Process]
"""Starts a command in an environment, with its output going to a descriptor."""


def execute(command: Sequence[str], environ: Mapping[str, str], output: int) -> Process:
    """Start a program that ends with this thread. ExperimentError: it cannot be started."""
    try:
        return subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
    except OSError as error:
        raise ExperimentError(f"cannot start {command[0]}: {error.strerror}") from error


class Testbed(Protocol):
    """Hosts, numbered from 0.

    Attributes:
        homes: registry folder of each host.
        crashed_hosts: hosts that were ended.
    """

    homes: Sequence[Path]
    crashed_hosts: set[int]

    def tcp(self, host: int) -> TcpOptions:
        """The TCP options of peers on this host."""
        ...

    def start(self, host: int, command: Sequence[str], environ: Mapping[str, str], output: int) -> Process: ...

    def owns(self, process: Process, place: int, who: Identity) -> bool:
        """Whether a page, found on that host, belongs to the process that was started as number `place` there."""
        ...

    def handle(self, who: Identity) -> int:
        """A pidfd; -1: there is none; OSError: the process has ended, and its pid may have been reused."""
        ...

    def send_signal(self, process: Process, handle: int, number: int) -> None:
        """Send a signal. OSError: the process has ended."""
        ...

    def kill(self, process: Process) -> None:
        """Kill the process and those that it forked."""
        ...


class LocalTestbed:
    """Peers as processes of this host."""

    def __init__(self, home: Path, start: Starter) -> None:
        self.homes: Sequence[Path] = [home]
        self.crashed_hosts: set[int] = set()
        self._start = start

    def tcp(self, host: int) -> TcpOptions:
        """Defaults: none are needed."""
        return TcpOptions()

    def start(self, host: int, command: Sequence[str], environ: Mapping[str, str], output: int) -> Process:
        return self._start(command, environ, output)

    def owns(self, process: Process, place: int, who: Identity) -> bool:
        """Whether the pid in the page is that process, or one of its session."""
        if who.pid == process.pid:
            return True
        try:
            return os.getsid(who.pid) == process.pid
        except ProcessLookupError:
            return False

    def handle(self, who: Identity) -> int:
        pidfd = os.pidfd_open(who.pid)
        if process_start(who.pid) == who.process_start:
            return pidfd
        os.close(pidfd)
        raise ProcessLookupError(who.pid)

    def send_signal(self, process: Process, handle: int, number: int) -> None:
        signal.pidfd_send_signal(handle, number)

    def kill(self, process: Process) -> None:
        if process.poll() is None:  # else the pid may have been reused
            kill_session(process.pid)


Key = tuple[tuple[int, ...], str]
"""(a host, for its line, or the two ends of a pair; name of the setting)."""


class LabTestbed:
    """Peers on hosts of a lab. Pids are those of the hosts, which signal only processes that they have started."""

    def __init__(self, lab: NetworkLab, home: Path) -> None:
        """`home`: contains the registry folders, which this process must be able to read."""
        self.lab = lab
        self.homes: Sequence[Path] = [home / str(host) for host in range(len(lab.config.hosts))]
        self.crashed_hosts: set[int] = set()
        self._changes: dict[Key, dict[object, str]] = {}  # by change, in order; first, under None, the setting before
        for each in self.homes:
            each.mkdir(mode=0o700)

    def tcp(self, host: int) -> TcpOptions:
        return TcpOptions.from_environment(environment(host, len(self.homes), {}))

    def start(self, host: int, command: Sequence[str], environ: Mapping[str, str], output: int) -> Process:
        with open(os.devnull) as nothing:
            return self.lab.start(host, command, streams=(nothing.fileno(), output, output), environ=environ)

    def owns(self, process: Process, place: int, who: Identity) -> bool:
        return who.name == str(place)

    def handle(self, who: Identity) -> int:
        return -1

    def send_signal(self, process: Process, handle: int, number: int) -> None:
        try:
            process.send_signal(number)
        except LabError as error:
            raise ProcessLookupError(str(error)) from error

    def kill(self, process: Process) -> None:
        with suppress(LabError):  # the host is gone, and so is all that ran in it
            process.send_signal(signal.SIGKILL)

    def change(
        self, host: int, other: int | None, net: str, *, one_way: bool = False, for_a_while: bool = False
    ) -> Callable[[], None]:
        """Change the link to `other`, or all links of the host and its line.

        Args:
            host: its number.
            other: number of the other host; None: all others.
            net: settings, as in `shoal lab set`.
            one_way: change only what the host sends; its line stays.
            for_a_while: the change is temporary: after the returned function is called, each setting is that of the
                newest change that has not ended, or as it was before all of these. A permanent change replaces them.

        Raises:
            LabError: the settings are not possible.
        """
        of_host = other is None and not one_way
        line, pair = parse_net(net) if of_host else ({}, parse_pair(net))

        def shown() -> dict[Key, str]:
            said = self.lab.show()
            found: dict[Key, str] = {
                ((host,), key): line_as_it_was(said["hosts"][host], {key: line[key]}) for key in line
            }
            for each in said["pairs"]:
                if _is_between(each, host, other) and (each["from"] == host or not one_way):
                    found |= {((each["from"], each["to"]), key): as_it_was(each, {key: pair[key]}) for key in pair}
            return found

        before, change = shown(), object()
        self.lab.set(*([host] if of_host else [host, "*" if other is None else other]), net, one_way=one_way)
        for key, text in shown().items():
            if for_a_while:
                self._changes.setdefault(key, {None: before[key]})[change] = text
            else:
                self._changes.pop(key, None)
        return lambda: self._end(change)

    def _end(self, change: object) -> None:
        back: dict[tuple[int, ...], list[str]] = {}
        for key, texts in [*self._changes.items()]:
            if texts.pop(change, None) is not None:
                back.setdefault(key[0], []).append([*texts.values()][-1])
            if len(texts) == 1:
                del self._changes[key]
        for whom, words in back.items():
            self.lab.set(*whom, ",".join(words), one_way=len(whom) == 2)

    def crash(self, host: int) -> None:
        """End a host permanently."""
        self.lab.crash(host)
        self.crashed_hosts.add(host)


def _is_between(pair: Message, host: int, other: int | None) -> bool:
    ends = {pair["from"], pair["to"]}
    return ends == {host, other} if other is not None else host in ends
