"""What loaders ask of a model that is trained in rounds of local steps."""

from typing import Protocol


class RoundEnd(Protocol):
    """Who knows when a round ends."""

    def is_time_over(self) -> bool:
        """Whether it has lasted as long as it was to last, where that is a time."""

    def end_if_open(self) -> None:
        """Exchange it, if a batch of it was handed out."""
