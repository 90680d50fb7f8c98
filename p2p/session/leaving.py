"""Stages of leaving, and the success of a script."""

import sys
from enum import Enum, auto


class Leaving(Enum):
    NOT_YET = auto()
    BEGUN = auto()
    """The others are told; a signal handler does no more."""
    CLOSING = auto()
    """The peer waits until the others can continue without it."""
    OVER = auto()
    """All resources are closed."""


def ends_well() -> bool:
    """Whether the script has reached its end, or exited by itself with status 0."""
    error = sys.exception() or (None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))
    return error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
