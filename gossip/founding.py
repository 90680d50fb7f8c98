"""Who founds the swarm when every peer is given the same list of seeds: whose address is the first.

It founds when each other seed has said that it knows no lineage, or could not be reached for a while; all others wait.
So two peers never found at once, unless their lists differ or a seed was cut off, and then the two swarms name
each other's founder when they meet. Nothing is ever merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Founding:
    """What one peer knows while it waits for a swarm to join or to found.

    Attributes:
        seeds: addresses, in the order that is the same everywhere.
        own: this peer's.
        deadline: a seed that has not answered by then is unreachable.
    """

    seeds: Sequence[str]
    own: str
    deadline: float
    _without: dict[str, None] = field(default_factory=dict)
    _lineage: bytes = b""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be distinct addresses, at least one, are {list(self.seeds)}")

    def answered(self, seed: str, lineage: bytes) -> None:
        """`seed` knows this lineage, or none if it is empty."""
        if seed in self.seeds:
            self._lineage = self._lineage or lineage
            self._without[seed] = None

    def decide(self, now: float) -> tuple[bool, str]:
        """Whether to found now, and why or why not."""
        if self._lineage:
            return False, f"the swarm exists: lineage {self._lineage.hex()}"
        if self.seeds[0] != self.own:
            return False, f"waiting for a seat; seed {self.seeds[0]} founds"
        silent = [seed for seed in self.seeds[1:] if seed not in self._without]
        if silent and now < self.deadline:
            return (
                False,
                f"waiting {self.deadline - now:.0f} s more for {', '.join(silent)} to say whether a swarm exists",
            )
        return True, "no other seed knows a swarm" + (f"; {', '.join(silent)} did not answer" if silent else "")
