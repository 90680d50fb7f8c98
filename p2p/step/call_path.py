"""The place in a script's loop where it calls an operation itself, by which a removed peer finds it in fed steps."""

import sys
from functools import lru_cache
from types import FrameType
from typing import Final, NamedTuple

import xxhash

_OWN: Final = f"{__name__.partition('.')[0]}."
"""Prefix of modules whose frames are not lines of a script."""


class CallPath(NamedTuple):
    """Of a step that consists of operations that the script has called by itself.

    Attributes:
        path: digest of `call_site` of each such step since the last training step; this one is the last.
        is_sought: this peer was removed, or has taken a step back, and has loaded no state since.
    """

    path: bytes
    is_sought: bool = False


def call_site() -> bytes:
    """Digest of the lines that are being run, from the script's own to the one that has called this package: 8 bytes.

    Those of one script are alike on all peers, however it was started, and whatever its folder is called. Some 3 us.
    """
    lines: list[tuple[str, str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module[: len(_OWN)] != _OWN:
            lines.append((module, frame.f_code.co_name, frame.f_lineno))
            if module == "__main__" and frame.f_code.co_name == "<module>":
                break
        frame = frame.f_back
    return _digest(tuple(lines))


@lru_cache(maxsize=1024)
def _digest(lines: tuple[tuple[str, str, int], ...]) -> bytes:
    return xxhash.xxh3_64_digest(repr(lines).encode())
