"""What peers write, and what the launcher has to say, on its way to the output of the run."""

import os
import select
import selectors
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

READ_BYTES: Final = 1 << 16
LINE_MAX_BYTES: Final = 1 << 20
"""A longer line is passed on in pieces, so that output without line ends does not fill the memory."""

PREFIX_STYLES: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")


class LinePrefixer:
    """Turns chunks of bytes into whole lines, each with a prefix, in UTF-8. `last_line`: without it, and not blank."""

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
        """The last line, if it was not ended."""
        rest, self._rest = self._rest, b""
        return self._finish(rest) if rest else b""

    def _finish(self, line: bytes) -> bytes:
        text = line.decode(errors="replace")
        self.last_line = text.strip() or self.last_line
        return self._prefix + text.encode() + b"\n"


@dataclass(eq=False, slots=True)
class Stream:
    """One output of one peer, on its way to the descriptor `sink`, and to the file `log`, if there is one."""

    source: IO[bytes]
    sink: int
    prefixer: LinePrefixer
    log: Path | None = None


class Output:
    """Passes lines on to two descriptors, and sees which peers have written something."""

    def __init__(
        self, selector: selectors.BaseSelector, stdout: int, stderr: int, is_broken: Callable[[OSError], None]
    ) -> None:
        """Nothing is written.

        Args:
            selector: is ready with a `Stream` when there is something to `pass_on`.
            stdout: descriptor for what peers write to theirs.
            stderr: the same, and for what is said.
            is_broken: called with why something cannot be written, each time.
        """
        self._selector = selector
        self._sinks = stdout, stderr
        self._is_broken = is_broken
        self._unwritable: set[Path] = set()

    def follow(self, name: str, sources: tuple[IO[bytes], IO[bytes]], log: Path | None = None) -> tuple[Stream, ...]:
        """Look at what peer `name` writes, from now on; `log`: it is appended there, too."""
        streams = []
        for source, sink in zip(sources, self._sinks, strict=True):
            streams.append(Stream(source, sink, LinePrefixer(prefix(name, sink)), log))
            self._selector.register(source, selectors.EVENT_READ, streams[-1])
        return tuple(streams)

    def pass_on(self, stream: Stream) -> bool:
        """Pass on one chunk; False if there is none, now or any more."""
        if stream.source.closed:
            return False
        chunk = stream.source.read(READ_BYTES)
        if chunk:
            self._write(stream.sink, stream.prefixer.feed(chunk))
            self._log(stream, chunk)
        elif chunk is not None:
            self._close(stream)
        return bool(chunk)

    def end(self, streams: Iterable[Stream]) -> None:
        """Their peer has ended: pass on what is left."""
        for stream in streams:
            while self.pass_on(stream):
                pass
            self._close(stream)

    def say(self, text: str) -> None:
        """A line of the launcher itself."""
        self.show(f"shoal: {text}\n")

    def show(self, text: str) -> None:
        """Text of the launcher, as it is."""
        self._write(self._sinks[1], text.encode())

    def _log(self, stream: Stream, chunk: bytes) -> None:
        """Both outputs of a peer as they come. A file that cannot be written is named once, and the run goes on."""
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
            self._selector.unregister(stream.source)
            stream.source.close()
            self._write(stream.sink, stream.prefixer.close())

    def _write(self, sink: int, text: bytes) -> None:
        rest = memoryview(text)
        try:
            while rest:
                try:
                    rest = rest[os.write(sink, rest) :]
                except BlockingIOError:  # whoever else has this pipe or terminal has made it so: wait all the same
                    select.select((), (sink,), ())
        except OSError as error:
            self._is_broken(error)


def prefix(name: str, sink: int) -> str:
    """What precedes each line of peer `name`, a number; in colour if `sink` is a terminal that shows it."""
    plain = f"[{name}] "
    if not os.isatty(sink):
        return plain
    # Only here, as most runs write to a file or a pipe.
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=True)
    with console.capture() as capture:
        console.print(Text(plain, style=PREFIX_STYLES[int(name) % len(PREFIX_STYLES)]), end="")
    return capture.get()
