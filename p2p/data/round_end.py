"""Interface between loaders and a model that is trained in rounds of local steps."""

from typing import Final, Protocol

AMID_TIMED: Final = (
    "an operation was called in the middle of a round that ends by time, where peers make unlike numbers of steps, so "
    "that the others call it elsewhere, or not at all: call it between rounds, which is where `model.has_committed` is "
    "true at the top of the loop over batches; what is only to be shown goes to `peer.log`"
)


class RoundEnd(Protocol):
    """Decides when a round ends."""

    @property
    def length_s(self) -> float | None:
        """Duration of a round; None: rounds end after a number of inner steps."""

    def is_time_over(self) -> bool:
        """Whether a timed round has reached its duration."""

    def end_if_open(self) -> None:
        """Run the exchange of the round, if a batch of it was handed out."""
