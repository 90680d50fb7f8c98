"""The links between the ranks of an operation, as modelled for prices: lines, delays, and the cost of a message."""

from dataclasses import dataclass
from typing import Final

SECOND_NS: Final = 1_000_000_000
SEGMENT_BYTES: Final = 1 << 20
MEMORY_BYTES_PER_S: Final = 1_000_000_000
"""Rate between two ranks of one host: assumed, since everything between hosts takes much longer."""

MEMORY_DELAY_NS: Final = 100_000
"""Delay between two ranks of one host: also assumed."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links between the ranks of an operation.

    Attributes:
        up, down: bytes per second of each rank.
        delay_ns: one-way delays from each rank to each, in rows by sender.
        message_ns: cost of a message at either end, which does nothing else meanwhile.
        segment_bytes: the largest message.
        hosts: number of each rank's host; ranks of one host share a line, with the same rates. Empty: all hosts differ.
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
    """Equal links between all ranks."""
    row = (delay_ns,) * world_size
    return Links((bytes_per_s,) * world_size, (bytes_per_s,) * world_size, (row,) * world_size, message_ns)
