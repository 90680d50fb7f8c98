"""The folder of a registry: private to its user, with a path short enough for sockets, and with a lock."""

import errno
import fcntl
import os
import shlex
import stat
import struct
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ..errors import RegistryError, ShoalError

SOCKET_PATH_MAX_BYTES: Final = 107
"""Capacity of `sun_path` of AF_UNIX on Linux, without the final zero byte."""


FIRST_PLACE: Final = 1 << 32
"""The first byte of the lock file that a peer may hold; lower bytes belong to launchers."""


def absolute(path: Path) -> Path:
    """The absolute path; ShoalError if it is relative and the current folder was removed."""
    try:
        return path.absolute()
    except FileNotFoundError:
        raise ShoalError(
            f"{path} cannot be found, since the current folder was removed: go to another one, or give a path that "
            "begins with /"
        ) from None


def check_socket_path(path: Path) -> None:
    """Raise RegistryError if `path` is too long for a socket."""
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_MAX_BYTES:
        raise RegistryError(
            f"the socket path {path} has {length} bytes, and a socket takes {SOCKET_PATH_MAX_BYTES}; "
            "set SHOAL_HOME to a shorter folder"
        )


def make_private(folder: Path) -> None:
    """Create `folder` with mode 0700 if it is missing; raise RegistryError if others can access it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise RegistryError(f"cannot make the registry folder {folder}: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        raise RegistryError(f"the registry folder {folder} is a symbolic link; set SHOAL_HOME to its target")
    if status.st_uid != os.geteuid():
        raise RegistryError(
            f"the registry folder {folder} belongs to user {status.st_uid}, and this is user {os.geteuid()}; "
            "set SHOAL_HOME to a folder of your own"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise RegistryError(
            f"the registry folder {folder} has mode {mode:04o}, so others may use it; "
            f"run: chmod 700 {shlex.quote(str(folder))}"
        )


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user can have written. Does not follow links or wait for the writer of a pipe."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return fd
    os.close(fd)
    raise PermissionError(f"{path} is {stat.filemode(status.st_mode)} of user {status.st_uid}, no private file of ours")


def create_private(path: str, flags: int) -> int:
    """An `opener` that creates files with mode 0600, whatever the umask."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def replace_private(path: Path, text: str) -> None:
    """Replace `path` atomically, by way of a `.draft`, which is removed on failure.

    Raises:
        OSError: `path` is unchanged.
    """
    draft = path.with_suffix(".draft")
    try:
        with open(draft, "w", opener=create_private) as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def acquire(descriptor: int, *, timeout_s: float) -> bool:
    """Take the exclusive lock on an open file; False if others hold it for `timeout_s`.

    The kernel's wait has no deadline, so a thread waits if the lock is taken. After a timeout that thread ends once it
    gets the lock; the descriptor is closed by then, so the lock passes to the next waiter.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        pass
    granted = threading.Event()

    def wait() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        granted.set()

    threading.Thread(target=wait, name="shoal-registry-lock", daemon=True).start()
    return granted.wait(timeout_s)


def place_of(peer_id: str) -> int:
    """The byte of the lock file that a peer holds while it lives."""
    return FIRST_PLACE + (int(peer_id, 16) >> 2)  # an offset has 63 bits


def lock_byte(descriptor: int, place: int) -> bool:
    """Lock byte `place` of an open file until the file is closed, by death too; False: another process holds it.

    This lock is independent of that of the whole file. True if the kernel does not support such locks.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _write_lock(place))
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def is_byte_locked(path: Path, place: int) -> bool:
    """Whether a process has locked byte `place` of this file; False if the kernel does not support such locks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _write_lock(place))
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def _write_lock(place: int) -> bytes:
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)  # struct flock, of 64 bits


def open_lock(path: Path) -> int:
    """Open this file, or create it; raise RegistryError on failure."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise RegistryError(f"cannot open the registry lock {path}: {error.strerror}") from error


@contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the lock of this file in a `with` block; RegistryError if others hold it for `timeout_s`."""
    descriptor = open_lock(path)
    try:
        if not acquire(descriptor, timeout_s=timeout_s):
            raise RegistryError(
                f"another process has held {path} for {timeout_s:g} s, where milliseconds "
                f"are normal; a stopped one? `fuser -v {shlex.quote(str(path))}` names it"
            )
        try:
            yield
        finally:
            # Closing is not enough: a child forked in between would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def default_home(environ: Mapping[str, str]) -> Path:
    """The folder of all swarms of this user: `$SHOAL_HOME`, else the platform's runtime folder.

    Raises:
        RegistryError: the platform's runtime folder cannot be created.
    """
    if home := environ.get("SHOAL_HOME"):
        return Path(home)
    import platformdirs  # its import takes longer than all of `shoal status` with SHOAL_HOME

    with warnings.catch_warnings():
        # It warns that the fallback under /tmp may not be private; `make_private` does not rely on it.
        warnings.simplefilter("ignore")
        try:
            return platformdirs.user_runtime_path("shoal")
        except OSError as error:
            why = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror or error)
            raise RegistryError(
                f"there is no folder in which the peers of this host could meet ({why}): "
                "set SHOAL_HOME to one that you can write to, or TMPDIR"
            ) from error
