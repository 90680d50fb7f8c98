"""How peers have ended: in words, and as the exit code of the run."""

from collections.abc import Iterable, Sequence

from .children import Child
from .signals import signal_name


def names(children: Iterable[Child]) -> str:
    return "peer " + ", ".join(str(child.index) for child in children)


def what_became_of(child: Child, return_code: int, num_left: int) -> str:
    """A peer has failed; so many are left. `return_code`: as below."""
    how = f"ended with exit code {return_code}"
    if return_code < 0:
        how = f"was killed by {signal_name(-return_code)}"
    return f"{names([child])} (pid {child.pid}) {how}; {num_left or 'none'} left"


def run_exit_code(return_codes: Sequence[int], ended_by: int | None) -> int:
    """The exit code of a run whose peers ended with `return_codes` (-N: by signal N), in that order.

    0 if a peer ended with 0 and none with another exit code: that peers are killed is what the others
    survive. Otherwise the first other exit code, or 128 + N for the signal that ended the run or all peers.
    """
    if ended_by is not None:
        return 128 + ended_by
    failures = [code for code in return_codes if code > 0]
    if failures:
        return failures[0]
    return 0 if 0 in return_codes else 128 - return_codes[0]
