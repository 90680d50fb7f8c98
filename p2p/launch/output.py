"""Output of peers, and messages of the launcher, on their way to the output of the run.

The reader of that output may stall (a pager, Ctrl-S) without stopping the launcher: it makes only writes that do not
block. Meanwhile peers that write there wait, as they would without a launcher; other peers, and signals, do not.
"""

import fcntl
import os
import select
import selectors
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

READ_BYTES: Final = 1 << 16
LINE_MAX_BYTES: Final = 1 << 20
"""A longer line is passed on in pieces, so that output without newlines does not fill the memory."""

PIECE_BYTES: Final = select.PIPE_BUF
"""A pipe or terminal that is ready takes at least this much without blocking."""

FULL_BYTES: Final = 1 << 18
"""While a sink has this much left to write, no more is read from its peers."""

UNREAD_S: Final = 1.0
"""At the end of a run that was ended by a signal: output that cannot be written within this time is dropped."""

PREFIX_STYLES: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")


class LinePrefixer:
    """Turns chunks of bytes into prefixed whole lines, in UTF-8. `last_line`: the last non-blank one, unprefixed."""

    def __init__(self, prefix: str) -> None:
        self.last_line = ""
        self._prefix = prefix.encode()
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """The lines that `chunk` completes; b"" if none."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) >= LINE_MAX_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return b"".join(map(self._finish, lines))

    def close(self) -> bytes:
        """The last line, if it lacks a newline; else b""."""
        rest, self._rest = self._rest, b""
        return self._finish(rest) if rest else b""

    def _finish(self, line: bytes) -> bytes:
        text = line.decode(errors="replace")
        self.last_line = text.strip() or self.last_line
        return self._prefix + text.encode() + b"\n"


@dataclass(eq=False, slots=True)
class Sink:
    """An output of the run: its descriptor, the bytes that wait until it is ready, and the streams that are paused."""

    fd: int
    waiting: bytearray = field(default_factory=bytearray)
    paused: list["Stream"] = field(default_factory=list)

    def drain(self, timeout_s: float | None = 0.0) -> None:
        """Write waiting bytes while the descriptor becomes ready within `timeout_s`; None: all of them.

        Raises:
            OSError: the output cannot be written; waiting bytes are dropped.
        """
        ready = select.poll()
        ready.register(self.fd, select.POLLOUT)
        num_written = 0
        try:
            while num_written < len(self.waiting) and ready.poll(None if timeout_s is None else timeout_s * 1e3):
                try:
                    num_written += os.write(self.fd, self.waiting[num_written : num_written + PIECE_BYTES])
                except BlockingIOError:  # another process that shares it made it non-blocking, and it takes less
                    if timeout_s == 0:
                        break
        except OSError:
            num_written = len(self.waiting)
            raise
        finally:
            del self.waiting[:num_written]


@dataclass(eq=False, slots=True)
class Stream:
    """One output of one peer, passed on to `sink`, and to the file `log`, if there is one."""

    source: IO[bytes]
    sink: Sink
    prefixer: LinePrefixer
    log: Path | None


class Output:
    """Passes output of peers on to two descriptors, line by line."""

    def __init__(
        self, selector: selectors.BaseSelector, stdout: int, stderr: int, on_broken: Callable[[OSError], None]
    ) -> None:
        """Outputs without any streams yet.

        Args:
            selector: yields a `Stream` or `Sink` when there is something to `pass_on`.
            stdout: descriptor for the peers' stdout.
            stderr: descriptor for the peers' stderr, and for messages.
            on_broken: called with the error each time a write fails.
        """
        self._selector = selector
        out = Sink(stdout)
        # Two sinks of one pipe (`2>&1`) would tear each other's lines whenever the pipe is full.
        self._sinks = out, out if _are_same(stdout, stderr) else Sink(stderr)
        self._on_broken = on_broken
        self._unwritable: set[Path] = set()

    def follow(self, name: str, sources: tuple[IO[bytes], IO[bytes]], log: Path | None = None) -> tuple[Stream, ...]:
        """Pass on the output of peer `name` from now on; `log`: also append it there."""
        streams = []
        for source, sink in zip(sources, self._sinks, strict=True):
            streams.append(Stream(source, sink, LinePrefixer(prefix(name, sink.fd)), log))
            self._selector.register(source, selectors.EVENT_READ, streams[-1])
        return tuple(streams)

    def pass_on(self, ready: Stream | Sink) -> None:
        """Read a chunk from a stream that is ready, or write to a sink that is."""
        if isinstance(ready, Sink):
            self._write(ready, b"")
        elif ready.source.closed or len(ready.sink.waiting) < FULL_BYTES:
            self._read(ready)
        else:
            self._selector.unregister(ready.source)
            ready.sink.paused.append(ready)

    def _read(self, stream: Stream) -> int:
        """Read and pass on one chunk. Returns its size; 0: there is none now, or the stream has ended."""
        if stream.source.closed:
            return 0
        chunk = stream.source.read(READ_BYTES)
        if chunk:
            self._write(stream.sink, stream.prefixer.feed(chunk))
            self._log(stream, chunk)
        elif chunk is not None:
            self._close(stream)
        return len(chunk or b"")

    def end(self, streams: Iterable[Stream]) -> None:
        """Pass on the rest of an ended peer's output, at most a full pipe, since other processes may still write."""
        for stream in streams:
            left = 0 if stream.source.closed else fcntl.fcntl(stream.source, fcntl.F_GETPIPE_SZ)
            while left > 0 and (num_bytes := self._read(stream)):
                left -= num_bytes
            self._close(stream)

    def finish(self, timeout_s: float | None) -> None:
        """Write waiting bytes; those that no reader takes within `timeout_s` are dropped; None: wait for all."""
        for sink in self._sinks:
            try:
                sink.drain(timeout_s)
            except OSError as error:
                self._on_broken(error)

    def say(self, text: str) -> None:
        """Print a message of the launcher."""
        self.show(f"shoal: {text}\n")

    def show(self, text: str) -> None:
        """Print text of the launcher unchanged."""
        self._write(self._sinks[1], text.encode())

    def _log(self, stream: Stream, chunk: bytes) -> None:
        """Append output to the log of a peer. A file that cannot be written is reported once, and then skipped."""
        if stream.log is None or stream.log in self._unwritable:
            return
        try:
            with stream.log.open("ab") as file:
                file.write(chunk)
        except OSError as error:
            self._unwritable.add(stream.log)
            self.say(f"nothing more is written to {stream.log}: {error.strerror}")

    def _close(self, stream: Stream) -> None:
        if not stream.source.closed:
            if stream in stream.sink.paused:
                stream.sink.paused.remove(stream)
            else:
                self._selector.unregister(stream.source)
            stream.source.close()
            self._write(stream.sink, stream.prefixer.close())

    def _write(self, sink: Sink, text: bytes) -> None:
        sink.waiting += text
        try:
            sink.drain()
        except OSError as error:
            self._on_broken(error)
        files = self._selector.get_map()
        if files is None:  # the selector is closed; the rest waits for `finish`
            return
        if sink.waiting and sink.fd not in files:
            self._selector.register(sink.fd, selectors.EVENT_WRITE, sink)
        elif not sink.waiting:
            if sink.fd in files:
                self._selector.unregister(sink.fd)
            while sink.paused:
                stream = sink.paused.pop()
                self._selector.register(stream.source, selectors.EVENT_READ, stream)


def _are_same(one: int, other: int) -> bool:
    """Whether both descriptors write to the same pipe, terminal or file; False if one is closed."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return one == other


def prefix(name: str, sink: int) -> str:
    """The prefix of each line of peer `name`, a number; coloured if `sink` is a terminal with colours."""
    plain = f"[{name}] "
    if not os.isatty(sink):
        return plain
    # Imported only here, since most runs write to a file or a pipe.
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=True)
    with console.capture() as capture:
        console.print(Text(plain, style=PREFIX_STYLES[int(name) % len(PREFIX_STYLES)]), end="")
    return capture.get()
