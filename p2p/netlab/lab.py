"""The interface to a lab for tests and experiments: a separate process holds its hosts and links, and ends them."""

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
    """Hosts and links as `config` describes them, until the `with` block ends.

    Enter it in the main thread: the lab ends with the thread that started it, even after SIGKILL.
    """

    def __init__(self, config: LabConfig, *, name: str = "", seed: int = 0) -> None:
        """Store the settings only. `name`: for `shoal lab set` (default: random); `seed`: of loss and jitter."""
        self.config = config
        self.name = name or secrets.token_hex(4)
        self._seed = seed

    def __enter__(self) -> Self:
        """Start the lab; LabError if this machine allows none, or a lab of that name is running."""
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
        """End the lab, and with it all processes in it."""
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
            command: words; the first is searched in PATH.
            streams: descriptors of stdin, stdout and stderr; None: /dev/null, and stdout and stderr of this process.
            environ: added to the environment of this process and to `environment`.
            folder: working directory; None: that of this process.

        Raises:
            LabError: the command cannot be started, or the host is gone.
        """
        whole = {**os.environ, **environment(host, len(self.config.hosts), os.environ), **(environ or {})}
        with open(os.devnull) as nothing:
            given = streams or (nothing.fileno(), 1, 2)
            return start(self.ask, host, command, streams=given, environ=whole, folder=folder or Path.cwd())

    def set(self, *words: str | int, one_way: bool = False) -> None:
        """Change settings as `shoal lab set` does: `set(2, "*", "cut")`, `set(1, 2, "delay=80ms")`.

        Raises:
            LabError: the words are invalid; no setting has changed.
        """
        self.ask({"do": "set", "words": [str(word) for word in words], "one_way": one_way})

    def crash(self, host: int) -> None:
        """Kill all processes of a host at once; the host does not come back."""
        self.ask({"do": "crash", "host": host})

    def show(self) -> Message:
        """Return settings, counters and lateness, as `shoal lab show --json` prints them."""
        return self.ask({"do": "show"})

    def counters(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The entry of each pair, with packets, num_bytes and the drops by queue, loss, mtu and cut."""
        return {(pair["from"], pair["to"]): pair for pair in self.show()["pairs"]}

    def ask(self, message: Message, descriptors: Sequence[int] = ()) -> Message:
        """Send a message to the lab and return the answer; LabError if that is an error, or the lab is gone."""
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
