"""Request handling of a running lab: for its owner, and for `shoal lab set`, `show` and `exec`."""

import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..errors import LabError
from .config import HostSettings, LabConfig, hosts_of, pairs_between
from .control import is_ours
from .emulator import Emulator
from .messages import Message, receive, send
from .settings import changed_line, changed_pair, parse_net, parse_pair, show

Answer = Callable[[Message], None]


class HostProcess:
    """A handle of the first process of a host, which answers requests in order."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.packets_per_frame = 0
        self._waiting: deque[Answer] = deque()
        self.is_gone = False

    def ask(self, message: Mapping[str, Any], answer: Answer, descriptors: Sequence[int] = ()) -> None:
        """Send a request and call `answer` with the reply later; at once with an error, if the process is gone."""
        if self.is_gone:
            answer({"error": "this host is gone"})
            return
        self._waiting.append(answer)
        with contextlib.suppress(OSError):  # `read` notices that the process has ended
            send(self.channel, dict(message), descriptors)

    def read(self) -> bool:
        """Take one answer; False if the host is gone."""
        try:
            message, _ = receive(self.channel)
        except (EOFError, ValueError, OSError):
            self.is_gone = True
            while self._waiting:
                self._waiting.popleft()({"error": "this host is gone"})
            return False
        self._waiting.popleft()(message)
        return True


class Server:
    """Answers requests from the owner and the control socket; the lab ends when `owner` closes."""

    def __init__(
        self,
        config: LabConfig,
        emulator: Emulator,
        processes: Sequence[HostProcess],
        owner: socket.socket,
        listener: socket.socket,
    ) -> None:
        self._hosts: Sequence[HostSettings] = config.hosts
        self._emulator = emulator
        self._links = emulator.links
        self._processes = processes
        self._owner = owner
        self._listener = listener
        emulator.watch(owner.fileno(), lambda: self._read(owner))
        emulator.watch(listener.fileno(), self._accept)
        for index, process in enumerate(processes):
            emulator.watch(process.channel.fileno(), lambda index=index: self._read_host(index))  # type: ignore[misc]

    def limit_frames(self, answer: Answer) -> None:
        """Limit the frames of each host to what its links allow; call `answer` once all hosts have done so."""
        changed = []
        for index, process in enumerate(self._processes):
            num_packets = self._links.packets_per_frame(index)
            if num_packets != process.packets_per_frame and not process.is_gone:
                process.packets_per_frame = num_packets
                changed.append(process)
        if not changed:
            answer({})
            return
        said: list[Message] = []

        def note(message: Message) -> None:
            said.append(message)
            if len(said) == len(changed):
                answer(next((message for message in said if "error" in message), {}))

        for process in changed:
            process.ask({"do": "limit", "num_packets": process.packets_per_frame}, note)

    def _accept(self) -> None:
        channel, _ = self._listener.accept()
        if not is_ours(channel):
            channel.close()
            return
        self._emulator.watch(channel.fileno(), lambda: self._read(channel))

    def _read(self, channel: socket.socket) -> None:
        try:
            message, descriptors = receive(channel)
        except (EOFError, ValueError, OSError):
            self._emulator.forget(channel.fileno())
            if channel is self._owner:
                self._emulator.stop()
            channel.close()
            return

        def answer(said: Message) -> None:
            with contextlib.suppress(OSError):  # the requester may be gone
                send(channel, said)

        try:
            self._do(message, descriptors, answer)
        except LabError as error:
            answer({"error": str(error)})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            answer({"error": f"the lab does not know this request: {error!r}"})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _do(self, message: Message, descriptors: Sequence[int], answer: Answer) -> None:
        match message["do"]:
            case "set":
                self._set(message["words"], one_way=bool(message["one_way"]))
                self.limit_frames(answer)
            case "show":
                answer(self._show())
            case "start" | "signal":
                self._processes[message["host"]].ask(message, answer, descriptors)
            case "crash":
                os.kill(self._processes[message["host"]].pid, signal.SIGKILL)
                answer({})
            case other:
                raise LabError(f"the lab cannot {other!r}")

    def _set(self, words: Sequence[str], *, one_way: bool) -> None:
        """Change hosts, `["2", "up=10mbit"]`, or pairs, `["2", "*", "cut"]`; after a LabError none has changed."""
        if len(words) not in (2, 3):
            raise LabError("write hosts and a change: `set 2 up=10mbit`, or `set 1 2 delay=80ms`, or `set 2 '*' cut`")
        lines, of_pairs = {}, {}
        if len(words) == 2:
            line, pair = parse_net(words[1])
            if line and one_way:
                raise LabError(
                    "rate, up, down and queue belong to a host's line, which has no --one-way: `up` is what it sends"
                )
            selected = hosts_of(self._hosts, words[0])
            lines = {host: changed_line(self._links.lines[host], line) for host in selected} if line else {}
            ends = [end for end in self._links.pairs if pair and set(end[:1] if one_way else end) & set(selected)]
        else:
            pair = parse_pair(words[2])
            ends = pairs_between(self._hosts, words[0], words[1], one_way=one_way)
        of_pairs = {end: changed_pair(self._links.pairs[end].settings, pair) for end in ends}
        for host, settings in lines.items():
            self._links.change_line(host, settings)
        for end, changed in of_pairs.items():
            self._links.pairs[end].change(changed)

    def _show(self) -> Message:
        lateness = self._emulator.lateness
        microseconds = {f"p{share}": lateness.percentile_ns(share / 100) / 1e3 for share in (50, 99)}
        return {
            "hosts": [
                {
                    "number": index,
                    "name": host.name,
                    "region": host.region,
                    "is_gone": self._processes[index].is_gone,
                    **show(self._links.lines[index]),
                }
                for index, host in enumerate(self._hosts)
            ],
            "pairs": [
                {"from": source, "to": target, **show(pair.settings), **asdict(pair.counters)}
                for (source, target), pair in self._links.pairs.items()
            ],
            "lateness_us": {**microseconds, "max": lateness.max_ns / 1e3},
            "num_frames": lateness.num_frames,
            "num_missed": self._emulator.num_missed(),
        }

    def _read_host(self, index: int) -> None:
        process = self._processes[index]
        if not process.read():
            self._emulator.forget(process.channel.fileno())
            self._emulator.remove(index)  # not waited for: the kernel may take a while to end the processes of the host
