"""Two runs that take turns, so that other load on the machine affects both: `--turns PATH`, given to both.

The first peers of both runs connect through a socket at PATH. The run that came first begins; then each measures one
batch in turn, never two in a row: caches are cold after a wait, so each batch of both follows a wait. Waiting uses no
processor time.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from p2p.errors import ShoalError

PATIENCE_S: Final = 50.0
"""Wait for the other run; the other peers of a run time out after a minute."""
YOURS: Final = b"T"
MAX_HELLO_BYTES: Final = 1 << 20
MAX_PATH_BYTES: Final = 80
"""Limit of the socket's path, which leaves room for the suffix that it has while it is created."""


class Turns:
    """The turns of one of the two runs.

    Attributes:
        meeting: for the report: `id`, the same in both runs, and `place`, 0 or 1.
    """

    def __init__(self, connection: socket.socket, path: Path, meeting: Mapping[str, Any]) -> None:
        self.meeting = meeting
        self._connection, self._path = connection, path
        self._is_its_turn = not meeting["place"]
        self._is_alone = False

    def take(self) -> None:
        """Wait until a batch may begin. When the other run has ended, this one continues alone.

        Raises:
            ShoalError: the other run does not end its turn.
        """
        if self._is_its_turn or self._is_alone:
            return
        try:
            self._is_alone = not self._connection.recv(1)
        except TimeoutError:
            raise ShoalError(
                f"the other run that takes turns at {self._path} has been measuring for {PATIENCE_S:.0f} s: take "
                "smaller sizes or fewer algorithms in both, or end it"
            ) from None
        except ConnectionError:
            self._is_alone = True
        self._is_its_turn = True

    def end(self) -> None:
        """End this run's turn, after a batch."""
        self._is_its_turn = False
        if not self._is_alone:
            try:
                self._connection.sendall(YOURS)
            except ConnectionError:
                self._is_alone = True


@contextmanager
def meet(path: Path, asked: Mapping[str, Any]) -> Iterator[Turns]:
    """Wait for the other run.

    Args:
        path: of the socket, which is removed once both have met.
        asked: what is to be measured; settings that both runs have must be equal.

    Raises:
        ShoalError: no other run came, or one that measures something else, or the socket cannot be created.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ShoalError(f"--turns is the path of a socket, so {MAX_PATH_BYTES} bytes at most, got {path}")
    deadline = time.monotonic() + PATIENCE_S
    try:
        connection, place = _connected(path, deadline)
    except TimeoutError:
        raise ShoalError(
            f"no other run takes turns at {path}: start the other run with the same --turns within {PATIENCE_S:.0f} s"
        ) from None
    except OSError as error:
        raise ShoalError(f"--turns {path}: {error.strerror}") from None
    with connection:
        connection.settimeout(PATIENCE_S)
        own_id = secrets.token_hex(8)
        try:
            theirs = _introduced(connection, {"id": own_id, "asked": asked})
        except (OSError, ValueError) as error:
            raise ShoalError(
                f"the run that came to take turns at {path} did not say what it measures: {error}"
            ) from None
        for name, one in asked.items():
            other = theirs["asked"].get(name, one)
            if one != other:
                raise ShoalError(
                    f"the other run that takes turns at {path} has {name} {other!r}, and this one {one!r}; "
                    "start both alike"
                )
        yield Turns(connection, path, {"id": theirs["id"] if place else own_id, "place": place})


def _connected(path: Path, deadline: float) -> tuple[socket.socket, int]:
    """A connection to the other run, and the place of this one: 0 for the first, which listens, else 1."""
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(os.fspath(path))
            return connection, 1
        except ConnectionRefusedError:
            connection.close()
            raise ShoalError(f"no run listens at {path}, which a killed run left behind: remove it") from None
        except FileNotFoundError:
            connection.close()
            with suppress(FileExistsError):
                return _accepted(path, deadline), 0


def _accepted(path: Path, deadline: float) -> socket.socket:
    """Listen at `path`, and accept the other run. The name appears only once this process listens.

    Raises:
        FileExistsError: the other run was first.
    """
    unready = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(os.fspath(unready))
            listener.listen(1)
            os.link(unready, path)
        finally:
            unready.unlink(missing_ok=True)
        try:
            listener.settimeout(max(0.0, deadline - time.monotonic()))
            return listener.accept()[0]
        finally:
            path.unlink(missing_ok=True)


def _introduced(connection: socket.socket, own: Mapping[str, Any]) -> dict[str, Any]:
    """Exchange a line of JSON with the other run; returns the other's."""
    connection.sendall(json.dumps(own).encode() + b"\n")
    said = b""
    while not said.endswith(b"\n"):
        part = connection.recv(1)
        if not part or len(said) > MAX_HELLO_BYTES:
            raise ValueError("it ended, or is another version of shoal")
        said += part
    found: dict[str, Any] = json.loads(said)
    return found
