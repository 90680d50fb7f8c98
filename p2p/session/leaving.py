"""How far a peer has left, and how its script ends."""

import sys
from enum import Enum, auto


class Leaving(Enum):
    NOT_YET = auto()
    BEGUN = auto()
    """The others are told; a signal's handler does no more."""
    CLOSING = auto()
    """It waits until they can do without it."""
    OVER = auto()
    """Nothing is open any more."""


def ends_well() -> bool:
    """Whether the script has come to its end, or has ended itself: nothing was interrupted."""
    error = sys.exception() or (None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))
    return error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
