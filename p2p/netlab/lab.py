"""A lab as tests and experiments use it: hosts and links, made by a process of its own and gone with it."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import LabError
from ..host.keys import new_key
from .commands import Command, start
from .config import LabConfig
from .control import listen
from .messages import Message, receive, send
from .places import environment


class NetworkLab:
    """Hosts that are joined by links as `config` has them, until the `with` block ends.

    To be made by the main thread: the lab ends with the thread that has made it, also by SIGKILL.
    """

    def __init__(self, config: LabConfig, *, name: str = "", seed: int = 0) -> None:
        """Nothing is made yet. `name`: for `shoal lab set` (default: any); `seed`: of loss and jitter."""
        self.config = config
        self.name = name or secrets.token_hex(4)
        self._seed = seed

    def __enter__(self) -> Self:
        """LabError if there can be no lab here, or one of that name is there."""
        with listen(self.name) as listener:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            fds = theirs.fileno(), listener.fileno()
            command = [sys.executable, "-m", __package__, *map(str, fds), str(os.getpid())]
            self._process = subprocess.Popen(command, pass_fds=fds, start_new_session=True, stdin=subprocess.DEVNULL)
            theirs.close()
        message = {"config": self.config.to_message(), "seed": self._seed, "key": new_key()}
        try:
            send(self._channel, message)
            self._receive()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all that runs in it."""
        self._channel.close()
        self._process.wait()

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        streams: tuple[int, int, int] | None = None,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Command:
        """Run a command in a host.

        Args:
            host: its number.
            command: words; the first is looked for in PATH.
            streams: descriptors of stdin, stdout and stderr; None: it reads nothing, and writes where we do.
            environ: besides ours and `environment`.
            folder: in which it runs; None: in ours.

        Raises:
            LabError: it cannot be started, or the host is gone.
        """
        whole = {**os.environ, **environment(host, len(self.config.hosts), os.environ), **(environ or {})}
        with open(os.devnull) as nothing:
            given = streams or (nothing.fileno(), 1, 2)
            return start(self.ask, host, command, streams=given, environ=whole, folder=folder or Path.cwd())

    def set(self, *words: str | int, one_way: bool = False) -> None:
        """As `shoal lab set`: `set(2, "*", "cut")`, `set(1, 2, "delay=80ms")`, `set("all", "heal")`.

        Raises:
            LabError: it is no change, and nothing has changed.
        """
        self.ask({"do": "set", "words": [str(word) for word in words], "one_way": one_way})

    def crash(self, host: int) -> None:
        """End all that runs in a host, at once, for good."""
        self.ask({"do": "crash", "host": host})

    def show(self) -> Message:
        """Settings, counters and lateness: what `shoal lab show --json` prints."""
        return self.ask({"do": "show"})

    def counters(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Of each pair: packets, num_bytes, dropped_queue, dropped_loss, dropped_mtu, dropped_cut."""
        return {(pair["from"], pair["to"]): pair for pair in self.show()["pairs"]}

    def ask(self, message: Message, descriptors: Sequence[int] = ()) -> Message:
        """LabError if the answer is one."""
        try:
            send(self._channel, message, descriptors)
        except OSError:
            raise LabError("the lab is gone") from None
        return self._receive()

    def _receive(self) -> Message:
        try:
            message, _ = receive(self._channel)
        except EOFError:
            raise LabError("the lab is gone: its process has ended, killed or for want of memory") from None
        if "error" in message:
            raise LabError(message["error"])
        return message
