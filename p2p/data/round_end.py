"""What loaders ask of a model that is trained in rounds of local steps."""

from typing import Final, Protocol

AMID_TIMED: Final = (
    "an operation was called in the middle of a round that ends by time, where peers make unlike numbers of steps, so "
    "that the others call it elsewhere, or not at all: call it between rounds, which is where `model.has_committed` is "
    "true at the top of the loop over batches; what is only to be shown goes to `peer.log`"
)


class RoundEnd(Protocol):
    """Who knows when a round ends."""

    @property
    def length_s(self) -> float | None:
        """After so long one ends; None: after so many inner steps."""

    def is_time_over(self) -> bool:
        """Whether it has lasted as long as it was to last, where that is a time."""

    def end_if_open(self) -> None:
        """Exchange it, if a batch of it was handed out."""
