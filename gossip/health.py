"""Local health: how well this peer itself is doing (Lifeguard, Dadgar et al. 2018, local health multiplier).

A slow peer sees others as slow. So a peer whose own failures are the likely cause becomes more patient.
"""


class LocalHealth:
    """A score between 0 (healthy) and `worst`."""

    def __init__(self, worst: int) -> None:
        self._worst = worst
        self.score = 0

    @property
    def multiplier(self) -> int:
        """Factor by which intervals and timeouts are stretched."""
        return 1 + self.score

    def worsen(self, by: int = 1) -> None:
        self.score = min(self._worst, self.score + by)

    def improve(self) -> None:
        self.score = max(0, self.score - 1)
