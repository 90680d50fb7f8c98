"""The swarm key: its holders may act as any peer of the swarm; all other processes are refused.

A key file is one line, the prefix and 32 random bytes in hex. The key pairs of connections are derived from it with
keyed BLAKE2b (RFC 7693): they are never sent, and each purpose has its own. Leaves out: rotation; a run has one key
from
its first to its last step.
"""

import os
import re
import secrets
import shlex
import stat
from hashlib import blake2b
from pathlib import Path
from typing import Final

from ..errors import SecurityError

PREFIX: Final = "shoal-key-1:"
SECRET_BYTES: Final = 32
_MAX_FILE_BYTES: Final = 1024
_ENV: Final = "env:"


def new_key() -> str:
    """Return a new key, as the line of a key file."""
    return PREFIX + secrets.token_hex(SECRET_BYTES)


def write_key(path: Path) -> None:
    """Write a new key to a new file of mode 0600.

    Raises:
        SecurityError: the file already exists, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise SecurityError(f"{path} is there already; a key that is in use must not be replaced") from None
    except OSError as error:
        raise SecurityError(f"cannot write the swarm key to {path}: {error.strerror}") from error
    try:
        show_key(descriptor, path)
    except SecurityError:
        path.unlink()  # a retry would take the remains for a key in use
        raise
    finally:
        os.close(descriptor)


def show_key(descriptor: int, name: Path | str = "stdout") -> None:
    """Write a new key to a descriptor. A file gets mode 0600 first, since `> swarm.key` creates it with another mode.

    Raises:
        SecurityError: the key cannot be written.
    """
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
        with open(descriptor, "w", closefd=False) as file:
            file.write(new_key() + "\n")
    except OSError as error:
        raise SecurityError(f"cannot write the swarm key to {name}: {error.strerror}") from error


def descriptor_of(key: Path) -> int | None:
    """The N of `fd:N`; None for other keys."""
    found = re.fullmatch(r"fd:(\d+)", str(key))
    return None if found is None else int(found[1])


def variable_of(key: Path) -> str | None:
    """The NAME of `env:NAME`; None for other keys."""
    return str(key)[len(_ENV) :] if str(key).startswith(_ENV) else None


def reference(key: Path) -> str:
    """A form of `key` for `read_key` in another process of this host, whose current folder may differ."""
    is_file = descriptor_of(key) is None and variable_of(key) is None
    return str(key.absolute() if is_file else key)


def read_key(key: Path) -> bytes:
    """The secret of a key, 32 bytes.

    Args:
        key: a file; or `env:NAME`, a variable of the environment; or `fd:N`, a descriptor of this process.

    Raises:
        SecurityError: the file is missing, others may read it, or it holds no key.
    """
    return _parse(key, _read(key))


def in_memory(key: Path) -> Path:
    """Read and check `key`, and copy it to a memfd, which any number of children can read; return its `fd:N`.

    Raises:
        SecurityError: as `read_key`; or the memfd cannot be created.
    """
    content = _read(key)
    _parse(key, content)
    try:
        descriptor = os.memfd_create("shoal-key", os.MFD_CLOEXEC)
        os.write(descriptor, content)
    except OSError as error:
        raise SecurityError(
            f"the swarm key {key} cannot be handed on to peers: memfd_create fails ({error.strerror}); "
            "give it as a file"
        ) from error
    return Path(f"fd:{descriptor}")


def _read(key: Path) -> bytes:
    if str(key).startswith(PREFIX):
        raise SecurityError(
            "this is the swarm key itself, not its place: put it into a variable, and pass env:NAME, or into a file "
            "of mode 0600"
        )
    if (name := variable_of(key)) is not None:
        if name not in os.environ:
            raise SecurityError(f"the swarm key should be in the environment variable {name}, which is not set")
        return os.environb[os.fsencode(name)]
    try:
        if (given := descriptor_of(key)) is not None:
            is_file = stat.S_ISREG(os.fstat(given).st_mode)
            return os.pread(given, _MAX_FILE_BYTES, 0) if is_file else os.read(given, _MAX_FILE_BYTES)
        descriptor = os.open(key, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo must not make us wait
        try:
            _check_private(key, os.fstat(descriptor))
            return os.read(descriptor, _MAX_FILE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SecurityError(f"cannot read the swarm key {key}: {error.strerror}") from error


def _check_private(path: Path, status: os.stat_result) -> None:
    """Raise SecurityError unless the file belongs to this user or root, and no others but our groups may read it."""
    if not stat.S_ISREG(status.st_mode):
        raise SecurityError(f"the swarm key {path} is no file; make one with: shoal key new --out FILE")
    if status.st_uid not in (os.geteuid(), 0):
        raise SecurityError(
            f"the swarm key {path} belongs to user {status.st_uid}, and this is user {os.geteuid()}; "
            "use a copy of your own"
        )
    mode = stat.S_IMODE(status.st_mode)
    is_of_our_group = status.st_gid in (os.getegid(), *os.getgroups())
    if mode & ~0o700 & ~(stat.S_IRGRP if is_of_our_group else 0):
        raise SecurityError(
            f"the swarm key {path} has mode {mode:04o}, so others may use it; run: chmod 600 {shlex.quote(str(path))}"
        )


def _parse(path: Path, content: bytes) -> bytes:
    line = content.decode("ascii", errors="replace").strip()
    digits = line.removeprefix(PREFIX)
    try:
        secret = bytes.fromhex(digits)
    except ValueError:
        secret = b""
    if digits == line or len(secret) != SECRET_BYTES or len(digits) != 2 * SECRET_BYTES:
        raise SecurityError(
            f"{path} holds no swarm key, which is {PREFIX} and {2 * SECRET_BYTES} hex digits; "
            "make one with: shoal key new --out FILE"
        )
    return secret


def derive(secret: bytes, *words: str) -> bytes:
    """32 bytes for the purpose `words`, which reveal neither `secret` nor the bytes for other words."""
    return blake2b("\0".join(words).encode(), key=secret, digest_size=32, person=b"shoal-curve").digest()
