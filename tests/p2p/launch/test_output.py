"""Output of peers, passed on to the output of the run."""

import errno
import fcntl
import os
import re
import selectors
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from p2p.launch.output import FULL_BYTES, LINE_MAX_BYTES, LinePrefixer, Output, prefix


def test_a_line_without_end_is_passed_on_in_pieces() -> None:
    prefixer = LinePrefixer("> ")
    assert prefixer.feed(b"x" * (LINE_MAX_BYTES - 1)) == b""
    assert prefixer.feed(b"x") == b"> " + b"x" * LINE_MAX_BYTES + b"\n"
    assert prefixer.close() == b""


def test_a_terminal_gets_colours_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    controller, terminal = os.openpty()
    reader, pipe = os.pipe()
    assert re.fullmatch(r"\x1b\[\d+m\[3\] \x1b\[0m", prefix("3", terminal))
    assert prefix("3", pipe) == "[3] "
    for descriptor in (controller, terminal, reader, pipe):
        os.close(descriptor)


class Run:
    """Pipes for one peer's outputs, and for those of the run.

    Attributes:
        broken: error numbers of the reported failures.
        stdout: the run's stdout, to write to.
        stderr: the run's stderr, to read from.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.selector = stack.enter_context(selectors.DefaultSelector())
        self.broken: list[int | None] = []
        pipes = [_pipe(stack) for _ in range(4)]
        (self._stdout, stdout), (self.stderr, stderr), *sources = pipes
        self.stdout = stdout
        self.output = Output(
            self.selector, stdout.fileno(), stderr.fileno(), lambda error: self.broken.append(error.errno)
        )
        self.peer: tuple[IO[bytes], ...] = tuple(writer for _, writer in sources)
        self.streams = self.output.follow("5", (sources[0][0], sources[1][0]))
        for reader, _ in pipes:
            os.set_blocking(reader.fileno(), False)

    def pass_on(self) -> None:
        """Pass on all available output."""
        for key, _ in self.selector.select(0):
            self.output.pass_on(key.data)

    def written(self) -> tuple[bytes | None, bytes | None]:
        return self._stdout.read(), self.stderr.read()

    def read_stdout(self) -> bytes:
        """All output, once all writers have closed it."""
        os.set_blocking(self._stdout.fileno(), True)
        return b"".join(iter(lambda: self._stdout.read(1 << 16) or b"", b""))

    def hang_up(self) -> None:
        """Close the reading ends of the run's output."""
        self._stdout.close()
        self.stderr.close()


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return stack.enter_context(os.fdopen(reader, "rb", 0)), stack.enter_context(os.fdopen(writer, "wb", 0))


@pytest.fixture
def run() -> Iterator[Run]:
    with ExitStack() as stack:
        yield Run(stack)


def test_whole_lines_are_passed_on_each_to_its_own_output(run: Run) -> None:
    run.peer[0].write(b"one\ntw")
    run.peer[1].write(b"three\n")
    run.pass_on()
    assert run.written() == (b"[5] one\n", b"[5] three\n")
    run.peer[0].write(b"o\n")
    run.pass_on()
    run.output.say("that is all")
    assert run.written() == (b"[5] two\n", b"shoal: that is all\n")


def test_the_last_words_of_a_peer_are_passed_on_with_what_it_has_not_ended(run: Run) -> None:
    run.peer[0].write(b"one\nlast")
    run.output.end(run.streams)
    assert run.written() == (b"[5] one\n[5] last\n", None)
    assert not run.selector.get_map()


def test_an_output_that_a_peer_has_closed_is_followed_no_longer(run: Run) -> None:
    run.peer[0].write(b"last")
    run.peer[0].close()
    run.pass_on()
    run.pass_on()
    assert run.written()[0] == b"[5] last\n"
    assert [key.data for key in run.selector.get_map().values()] == [run.streams[1]]


def test_each_line_that_cannot_be_written_is_told_of(run: Run) -> None:
    run.hang_up()
    run.peer[0].write(b"one\n")
    run.pass_on()
    run.output.say("something")
    assert run.broken == [errno.EPIPE] * 2


@pytest.mark.parametrize("is_blocking", [True, False])
def test_who_writes_to_an_output_that_nobody_reads_waits_and_nobody_else_does(run: Run, *, is_blocking: bool) -> None:
    os.set_blocking(run.stdout.fileno(), is_blocking)
    fcntl.fcntl(run.stdout, fcntl.F_SETPIPE_SZ, 4096)
    run.peer[0].write(b"x" * 60_000 + b"\n")
    run.pass_on()
    run.peer[1].write(b"here\n")
    run.pass_on()
    assert run.stderr.read() == b"[5] here\n"
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(run.read_stdout)
        run.output.finish(None)
        run.stdout.close()
        assert read.result() == b"[5] " + b"x" * 60_000 + b"\n"
    assert not run.broken


def test_a_peer_is_read_no_further_than_its_output_is(run: Run) -> None:
    written, read = 0, b""
    while not run.streams[0].sink.paused:
        run.peer[0].write(b"x" * 1023 + b"\n")
        written += 1
        run.pass_on()
    size = len(run.streams[0].sink.waiting)
    run.peer[0].write(b"last\n")
    run.pass_on()
    assert len(run.streams[0].sink.waiting) == size >= FULL_BYTES
    while not read.endswith(b"last\n"):
        read += run.written()[0] or b""
        run.pass_on()
    assert read == (b"[5] " + b"x" * 1023 + b"\n") * written + b"[5] last\n"


def test_what_a_peer_has_said_before_it_ends_is_read_though_its_output_is_full(run: Run) -> None:
    while not run.streams[0].sink.paused:
        run.peer[0].write(b"x" * 1023 + b"\n")
        run.pass_on()
    run.peer[0].write(b"last\n")
    run.output.end(run.streams)
    run.output.pass_on(run.streams[0])  # it was also ready when its peer was found to have ended
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(run.read_stdout)
        run.output.finish(None)
        run.stdout.close()
        assert read.result().endswith(b"[5] last\n")
    assert not run.broken


def test_who_goes_on_writing_where_a_peer_has_ended_does_not_hold_up_its_end(run: Run) -> None:
    """Each chunk cannot be passed on, which is reported; each report causes another write."""

    class Writes(list[int | None]):
        def append(self, number: int | None) -> None:
            super().append(number)
            if len(self) < 100:
                run.peer[0].write(b"x" * 1023 + b"\n")

    run.broken = Writes()
    run.hang_up()
    capacity = fcntl.fcntl(run.peer[0], fcntl.F_SETPIPE_SZ, 4096)
    run.peer[0].write(b"x" * 1023 + b"\n")
    run.output.end(run.streams)
    assert len(run.broken) == capacity // 1024
    assert not run.selector.get_map()


def test_what_nobody_reads_is_dropped_in_the_end(run: Run) -> None:
    run.peer[0].write(b"x" * 60_000 + b"\n")
    fcntl.fcntl(run.stdout, fcntl.F_SETPIPE_SZ, 4096)
    run.pass_on()
    run.output.finish(0.0)
    assert run.written()[0] == b"[5] " + b"x" * 4092


def test_a_log_that_cannot_be_written_is_named_once_for_both_outputs_of_its_peer(run: Run) -> None:
    for stream in run.streams:
        stream.log = Path("/dev/full")
    for peer in run.peer:
        peer.write(b"one\n")
    run.pass_on()
    run.peer[0].write(b"two\n")
    run.pass_on()
    said = b"shoal: nothing more is written to /dev/full: No space left on device\n"
    assert [sorted((written or b"").splitlines(True)) for written in run.written()] == [
        [b"[5] one\n", b"[5] two\n"],
        [b"[5] one\n", said],
    ]


def test_lines_stay_whole_where_both_outputs_of_a_run_are_one_pipe_that_is_full() -> None:
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        (reader, writer), *sources = (_pipe(stack) for _ in range(3))
        again = os.fdopen(os.dup(writer.fileno()), "wb", 0)
        with again:
            output = Output(selector, writer.fileno(), again.fileno(), lambda error: None)
            output.show(f"{'x' * FULL_BYTES}\n")  # more than the pipe holds, so that it is written in pieces
            streams = output.follow("5", (sources[0][0], sources[1][0]))
            for (_, peer), text in zip(sources, (b"out\n", b"err\n"), strict=True):
                peer.write(text)
                peer.close()
            with ThreadPoolExecutor(1) as reading:
                read = reading.submit(lambda: b"".join(iter(lambda: reader.read(1 << 16) or b"", b"")))
                output.end(streams)
                output.finish(None)
                again.close()
                writer.close()
        assert read.result() == b"x" * FULL_BYTES + b"\n[5] out\n[5] err\n"
