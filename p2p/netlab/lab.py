"""A lab as tests and experiments use it: hosts and links, made by a process of its own and gone with it."""

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ..errors import LabError
from ..host.keys import new_key
from .config import LabConfig
from .control import listen
from .host import HOME, KEY
from .messages import Message, receive, send
from .places import PORT, address

NUM_SEEDS: Final = 3
TORCH_PORT: Final = 29500


class Command:
    """What runs in a host, with what `subprocess.Popen` offers for a process. `pid`: as its host numbers it.

    Its descriptor becomes readable when it has ended.
    """

    def __init__(self, lab: "NetworkLab", host: int, pid: int, end: int) -> None:
        self.host = host
        self.pid = pid
        self.returncode: int | None = None
        self._lab = lab
        self._end = end

    def fileno(self) -> int:
        return self._end

    def poll(self) -> int | None:
        """The exit code; -N if signal N ended it, -9 also if its host is gone; None while it runs."""
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            said = os.read(self._end, 16)
            self.returncode = int(said) if said else -signal.SIGKILL
            os.close(self._end)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not select.select([self._end], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"pid {self.pid} of host {self.host}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """To it and its children, unless it has ended."""
        if self.poll() is None:
            self._lab.ask({"do": "signal", "host": self.host, "pid": self.pid, "signal": number})

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


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
        end, theirs = os.pipe2(os.O_CLOEXEC)
        message = {
            "do": "start",
            "host": host,
            "argv": list(command),
            "environ": {**os.environ, **self.environment(host), **(environ or {})},
            "folder": str((folder or Path.cwd()).absolute()),
        }
        try:
            with open(os.devnull) as nothing:
                pid = self.ask(message, [*(streams or (nothing.fileno(), 1, 2)), theirs])["pid"]
        except BaseException:
            os.close(end)
            raise
        finally:
            os.close(theirs)
        return Command(self, host, pid, end)

    def environment(self, host: int) -> dict[str, str]:
        """What a command in a host is told: who it is, and where the others are."""
        addresses = [address(index) for index in range(len(self.config.hosts))]
        return {
            "LAB_HOST": str(host),
            "LAB_ADDRESS": addresses[host],
            "LAB_ADDRESSES": ",".join(addresses),
            "OMP_NUM_THREADS": os.environ.get(
                "OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // len(addresses)))
            ),
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": str(TORCH_PORT),
            "RANK": str(host),
            "WORLD_SIZE": str(len(addresses)),
            "SHOAL_HOME": HOME,
            "SHOAL_KEY": KEY,
            "SHOAL_BIND": f"{addresses[host]}:{PORT}",
            "SHOAL_SEEDS": ",".join(f"{seed}:{PORT}" for seed in addresses[:NUM_SEEDS]),
        }

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
        """Of each pair: packets, num_bytes, dropped_queue, dropped_loss, dropped_cut."""
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
