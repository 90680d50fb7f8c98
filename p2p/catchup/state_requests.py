"""Who has asked this peer for its state, what they have of it, and what they were given. Pure; donor.py has bytes."""

from typing import NamedTuple

from gossip import Member


class Asked(NamedTuple):
    """STATE?: for the state after `step`, by who has a seat or none; `frozen`: digest of what it has of that."""

    step: int
    has_seat: bool
    frozen: bytes = b""


class StateRequests:
    """Of one donor.

    Attributes:
        waiting: for a state.
    """

    def __init__(self) -> None:
        self.waiting: dict[Member, Asked] = {}
        self._given: dict[Member, Asked] = {}
        self._unlike: dict[Member, bytes] = {}

    def install(self) -> None:
        """Another view is installed: whoever still needs a state asks again."""
        self.waiting.clear()
        self._given.clear()

    def forget(self, member: Member) -> None:
        """It is gone, or needs nothing more."""
        self.waiting.pop(member, None)
        self._unlike.pop(member, None)

    def ask(self, member: Member, asked: Asked) -> None:
        """None is on its way to `member`. Who has a seat is given the same one once in a view."""
        if self._unlike.get(member) == asked.frozen:
            asked = asked._replace(frozen=b"")
        if not (asked.has_seat and self._given.get(member) == asked):
            self.waiting[member] = asked

    def give(self, member: Member, step: int) -> None:
        """It is given what it waits for, the state after `step`."""
        self._given[member] = self.waiting.pop(member)._replace(step=step)

    def take_back(self, member: Member, *, is_unlike: bool) -> None:
        """That will never be whole. `is_unlike`: since it has other frozen parameters; then it waits for all."""
        given = self._given.pop(member, None)
        if is_unlike and given is not None:
            self._unlike[member] = given.frozen
            self.waiting[member] = given._replace(frozen=b"")
