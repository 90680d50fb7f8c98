"""Who keeps the state of a run, as a membership has it."""

from typing import Protocol

from ..loop.seat_request import AllMembersDead


class Keeper(Protocol):
    """Keeps the state of a run (p2p/checkpoint/)."""

    def at_edge(self) -> None:
        """The state after the last committed step is complete, and stays so until the script goes on."""
        ...

    def begin_leaving(self) -> None:
        """The script makes no more calls; this peer still has its seat."""
        ...

    def end_leaving(self) -> None:
        """It has left."""
        ...

    def defer(self, interruption: BaseException) -> bool:
        """Whether `at_edge` will raise it."""
        ...

    def check_is_newest(self, dead: AllMembersDead) -> None:
        """The run goes on with the state that is here, as another start. Raises `dead` if a checkpoint is newer."""
        ...
