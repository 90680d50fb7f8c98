"""How well this peer itself is doing (Lifeguard, Dadgar et al. 2018, local health multiplier).

Who is slow sees others as slow. So a peer that fails in ways that speak against itself becomes more patient.
"""


class LocalHealth:
    """A score between 0, well, and `worst`."""

    def __init__(self, worst: int) -> None:
        self._worst = worst
        self.score = 0

    @property
    def patience(self) -> int:
        """By how much intervals and timeouts are stretched."""
        return 1 + self.score

    def worsen(self, by: int = 1) -> None:
        self.score = min(self._worst, self.score + by)

    def improve(self) -> None:
        self.score = max(0, self.score - 1)
