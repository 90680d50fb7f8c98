"""What lies between the ranks of an operation, as far as prices know it: lines, delays, and the cost of a message."""

from dataclasses import dataclass
from typing import Final

SECOND_NS: Final = 1_000_000_000
SEGMENT_BYTES: Final = 1 << 20
MEMORY_BYTES_PER_S: Final = 1_000_000_000
"""Of a message between two ranks of one host: not measured, since between hosts everything takes much longer."""

MEMORY_DELAY_NS: Final = 100_000
"""Of the same."""


@dataclass(frozen=True, slots=True)
class Links:
    """Between the ranks of an operation.

    Attributes:
        up, down: bytes per second of each rank.
        delay_ns: one way, from each rank to each, in rows by sender.
        message_ns: what a message costs at either end, which does nothing else meanwhile.
        segment_bytes: of a message, at most.
        hosts: of each rank, by number; those of one have one line, and the same rates. Empty: each has a host.
    """

    up: tuple[int, ...]
    down: tuple[int, ...]
    delay_ns: tuple[tuple[int, ...], ...]
    message_ns: int
    segment_bytes: int = SEGMENT_BYTES
    hosts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = {len(self.up), len(self.down), len(self.delay_ns), *map(len, self.delay_ns)}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"links need a rate up and down, and a row of delays, for each rank, got sizes {sizes}")
        if self.hosts and len(self.hosts) != len(self.up):
            raise ValueError(f"links of {len(self.up)} ranks need a host for each, got {self.hosts}")
        if min(*self.up, *self.down) < 1 or min(map(min, self.delay_ns)) < 0 or self.message_ns < 0:
            raise ValueError("rates of links must be at least 1 byte per second, delays and costs at least 0")

    @property
    def world_size(self) -> int:
        return len(self.up)

    @property
    def has_shared_lines(self) -> bool:
        """Whether several ranks are on one host."""
        return len({*self.hosts}) < len(self.hosts)


def equal_links(world_size: int, bytes_per_s: int, delay_ns: int, message_ns: int) -> Links:
    """Links that are all alike."""
    row = (delay_ns,) * world_size
    return Links((bytes_per_s,) * world_size, (bytes_per_s,) * world_size, (row,) * world_size, message_ns)
