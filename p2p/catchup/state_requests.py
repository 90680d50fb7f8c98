"""Requests for the state of this peer: by which peers, what they have already, and what they were given. Pure."""

from typing import NamedTuple

from gossip import Member


class StateRequest(NamedTuple):
    """STATE?: a request for the state after `step`; `frozen`: digest of the frozen parameters the requester has."""

    step: int
    has_seat: bool
    frozen: bytes = b""


class StateRequests:
    """The requests at one donor.

    Attributes:
        waiting: peers that wait for a state.
    """

    def __init__(self) -> None:
        self.waiting: dict[Member, StateRequest] = {}
        self._given: dict[Member, StateRequest] = {}
        self._unlike: dict[Member, bytes] = {}

    def install(self) -> None:
        """Another view is installed: a peer that still needs a state asks again."""
        self.waiting.clear()
        self._given.clear()

    def forget(self, member: Member) -> None:
        """`member` is gone, or needs nothing more."""
        self.waiting.pop(member, None)
        self._unlike.pop(member, None)

    def ask(self, member: Member, asked: StateRequest) -> None:
        """No state is in flight to `member`. A peer with a seat is given the same state once per view."""
        if self._unlike.get(member) == asked.frozen:
            asked = asked._replace(frozen=b"")
        if not (asked.has_seat and self._given.get(member) == asked):
            self.waiting[member] = asked

    def give(self, member: Member, step: int) -> None:
        """`member` is given the state after `step`, for which it waits."""
        self._given[member] = self.waiting.pop(member)._replace(step=step)

    def cancel_given(self, member: Member, *, is_unlike: bool) -> None:
        """The given state will never be complete. `is_unlike`: frozen parameters differ, so `member` waits for all."""
        given = self._given.pop(member, None)
        if is_unlike and given is not None:
            self._unlike[member] = given.frozen
            self.waiting[member] = given._replace(frozen=b"")
