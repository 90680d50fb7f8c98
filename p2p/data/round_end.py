"""Interface between loaders and a model that is trained in rounds of local steps."""

from typing import Final, Protocol

AMID_TIMED: Final = (
    "an operation was called in the middle of a round that ends by time. Peers make different numbers of steps in it, "
    "so the others call the operation elsewhere, or not at all: call it between rounds, where `model.has_committed` "
    "is true at the top of the loop over batches. To show a value, pass it to `peer.log`"
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
