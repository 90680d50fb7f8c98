"""Two runs that take turns, so that whatever else the machine does meets both: `--turns PATH`, twice.

The first peers of both meet at a socket at PATH. Whoever came first begins; then they measure a batch each, in turns,
and not two in a row: after a wait caches are cold, so each batch of both comes after one. Who waits needs no processor.
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
"""The other peers of a run wait for a minute."""
YOURS: Final = b"T"
MAX_HELLO_BYTES: Final = 1 << 20
MAX_PATH_BYTES: Final = 80
"""Of a socket, with what is put behind it while it is made."""


class Turns:
    """Of one of both runs.

    Attributes:
        meeting: for its report: `id`, which the other one has, too, and `place`, 0 or 1.
    """

    def __init__(self, connection: socket.socket, path: Path, meeting: Mapping[str, Any]) -> None:
        """They have met."""
        self.meeting = meeting
        self._connection, self._path = connection, path
        self._is_its_turn = not meeting["place"]
        self._is_alone = False

    def take(self) -> None:
        """Wait until a batch may begin. Who has no more of them leaves the rest of the time to the other.

        Raises:
            ShoalError: the other run does not end its turn.
        """
        if self._is_its_turn or self._is_alone:
            return
        try:
            self._is_alone = not self._connection.recv(1)
        except TimeoutError:
            raise ShoalError(
                f"the other run that takes turns at {self._path} has measured for {PATIENCE_S:.0f} s: take smaller "
                "sizes or fewer algorithms in both, or end it"
            ) from None
        except ConnectionError:
            self._is_alone = True
        self._is_its_turn = True

    def end(self) -> None:
        """A batch is over."""
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
        path: of the socket; at its end there is none.
        asked: what is to be measured, which must be what the other one is to measure; of the settings that both know.

    Raises:
        ShoalError: nobody came, or somebody who is to measure something else, or there can be no such socket.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ShoalError(f"--turns is the path of a socket, so {MAX_PATH_BYTES} bytes at most, got {path}")
    deadline = time.monotonic() + PATIENCE_S
    try:
        connection, place = _connected(path, deadline)
    except TimeoutError:
        raise ShoalError(
            f"nobody else takes turns at {path}: start the other run with the same --turns within {PATIENCE_S:.0f} s"
        ) from None
    except OSError as error:
        raise ShoalError(f"--turns {path}: {error.strerror}") from None
    with connection:
        connection.settimeout(PATIENCE_S)
        own_id = secrets.token_hex(8)
        try:
            theirs = _introduced(connection, {"id": own_id, "asked": asked})
        except (OSError, ValueError) as error:
            raise ShoalError(f"who came to take turns at {path} has not said what it measures: {error}") from None
        for name, one in asked.items():
            other = theirs["asked"].get(name, one)
            if one != other:
                raise ShoalError(
                    f"the other run that takes turns at {path} has another {name}: {other!r}, and here it is {one!r}; "
                    "start both alike"
                )
        yield Turns(connection, path, {"id": theirs["id"] if place else own_id, "place": place})


def _connected(path: Path, deadline: float) -> tuple[socket.socket, int]:
    """With the other one, and which of both this is: the first one listens."""
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(os.fspath(path))
            return connection, 1
        except ConnectionRefusedError:
            connection.close()
            raise ShoalError(f"nobody listens at {path}, which a run has left that was killed: remove it") from None
        except FileNotFoundError:
            connection.close()
            with suppress(FileExistsError):
                return _accepted(path, deadline), 0


def _accepted(path: Path, deadline: float) -> socket.socket:
    """Who comes. The name is there once somebody listens; FileExistsError if another one was first."""
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
    """What the other one has said in a line, as this one does."""
    connection.sendall(json.dumps(own).encode() + b"\n")
    said = b""
    while not said.endswith(b"\n"):
        part = connection.recv(1)
        if not part or len(said) > MAX_HELLO_BYTES:
            raise ValueError("it ended, or is another version of shoal")
        said += part
    found: dict[str, Any] = json.loads(said)
    return found
