"""How a script ends."""

import sys


def ends_well() -> bool:
    """Whether the script has come to its end, or has ended itself: nothing was interrupted."""
    error = sys.exception() or (None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))
    return error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
