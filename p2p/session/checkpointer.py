"""The checkpointer of a run, as seen by a membership."""

from typing import Protocol

from ..loop.seat_request import AllMembersDead


class Checkpointer(Protocol):
    """Stores the state of a run (p2p/checkpoint/)."""

    def on_state_complete(self) -> None:
        """Called when the state after the last committed step is complete; it stays so until this returns."""
        ...

    def begin_leaving(self) -> None:
        """Called when the script makes no more calls; this peer still has its seat."""
        ...

    def end_leaving(self) -> None:
        """Called when the peer has left."""
        ...

    def defer(self, interruption: BaseException) -> bool:
        """Whether `on_state_complete` will raise `interruption`."""
        ...

    def check_is_newest(self, dead: AllMembersDead) -> None:
        """The run continues with this peer's state, as after a restart. Raises `dead` if a checkpoint is newer."""
        ...
