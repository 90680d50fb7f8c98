"""The first process of a host: it starts the commands, and when it ends, all of them end (pid_namespaces(7))."""

import contextlib
import os
import select
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import LabError
from . import namespaces
from .devices import INSIDE, Devices
from .messages import Message, receive, send
from .places import FOLDER, HOME, KEY, MEMORY

IPV6: Final = f"/proc/sys/net/ipv6/conf/{INSIDE}/disable_ipv6"
"""The lab carries IPv4 only; with IPv6 disabled, no program tries that first."""


def run(channel: socket.socket, devices: Devices) -> None:
    """Run a host, from its fork to its end, in its own namespaces. Returns when `channel` closes."""
    host = _Host(channel, devices)
    try:
        namespaces.unshare(namespaces.NEWNET | namespaces.NEWNS | namespaces.NEWUTS | namespaces.NEWIPC)
        namespaces.make_mounts_private()
        namespaces.mount("proc", "/proc")
        namespaces.mount("tmpfs", MEMORY, "mode=1777")
    except OSError as error:
        send(channel, {"error": f"cannot make a host: {error.filename or 'unshare'}: {error.strerror}"})
        return
    send(channel, {})
    host.serve()


class _Host:
    def __init__(self, channel: socket.socket, devices: Devices) -> None:
        self._channel = channel
        self._devices = devices
        self._said_end: dict[int, int] = {}  # pid of a command, and the pipe for its exit code
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._channel.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._channel.fileno() in ready:
                try:
                    message, descriptors = receive(self._channel)
                    send(self._channel, self._answer(message, descriptors))
                except (EOFError, OSError):
                    return

    def _answer(self, message: Message, descriptors: list[int]) -> Message:
        try:
            match message["do"]:
                case "begin":
                    self._begin(message)
                case "limit":
                    self._devices.set_gso_max_segs(message["num_packets"])
                case "start":
                    return {"pid": self._start(message, descriptors)}
                case "signal":
                    self._signal(message["pid"], message["signal"])
            return {}
        except (LabError, OSError) as error:
            return {"error": str(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _begin(self, message: Mapping[str, Any]) -> None:
        socket.sethostname(message["name"])
        os.makedirs(HOME, mode=0o700)
        os.chmod(FOLDER, 0o700)
        Path(KEY).touch(mode=0o600)
        Path(KEY).write_text(message["key"] + "\n")
        names = Path(FOLDER, "hosts")
        names.write_text(message["names"])
        if os.path.exists("/etc/hosts"):
            namespaces.bind(str(names), "/etc/hosts")
        with contextlib.suppress(OSError):  # a kernel without IPv6
            Path(IPV6).write_text("1")
        self._devices.bring_up(message["address"])

    def _start(self, message: Mapping[str, Any], descriptors: list[int]) -> int:
        *streams, end = descriptors
        argv, environ = message["argv"], message["environ"]
        try:
            os.chdir(message["folder"])
            actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)]
            pid = os.posix_spawnp(
                argv[0],
                argv,
                environ,
                file_actions=actions,
                setsid=True,
                setsigdef=signal.valid_signals(),
                setsigmask=(),
            )
        except OSError as error:
            raise LabError(f"cannot start {argv[0]}: {error.strerror}") from error
        self._said_end[pid] = os.dup(end)
        return pid

    def _signal(self, pid: int, number: int) -> None:
        if pid in self._said_end:
            os.killpg(pid, number)

    def _reap(self) -> None:
        """Reap all ended processes, orphans too, and report the exit codes of commands."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (end := self._said_end.pop(pid, None)) is not None:
                os.write(end, b"%d" % os.waitstatus_to_exitcode(status))
                os.close(end)
