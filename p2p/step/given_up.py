"""Errors that a script gets for a step that was given up."""

from typing import Final

from gossip.given_up import Cause, GivenUp

from ..errors import OperationInterrupted, OperationMismatch, ShoalError

OBSERVES: Final = (
    "an exception ended a `peer.step` block of this peer while it only observed: it cannot skip a step of the "
    "members, so it leaves, and they continue; start it again"
)


def error_of(given_up: GivenUp) -> ShoalError:
    """Of a step that a barrier has not committed."""
    if given_up.cause is Cause.MISMATCH:
        return OperationMismatch(given_up.reason)
    return OperationInterrupted(given_up.step, given_up.view_number, given_up.reason)
