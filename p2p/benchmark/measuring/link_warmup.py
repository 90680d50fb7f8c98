"""Warm-up of peers on several hosts: they commit steps, without training, until they have measured their links.

So `auto` chooses by measured links from the first round on. The warm-up cannot end while `auto` still chooses by array
size alone, that is until all members have measured all of their links.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Final

import numpy as np

from collectives.algorithms import SHARES
from collectives.price_table import SIZES_BYTES, PriceTable

from ...step.agreed_rows import Table as Prices
from ...step.agreed_rows import hosts_of
from ..plan import Plan
from ..roles import ALL_REDUCE

if TYPE_CHECKING:
    from .worker import PeerExchange

LONGEST_S: Final = 90.0
SETTLED_S: Final = 4.0
"""The choice must be unchanged for this long: the first measured rates are those of cold connections."""
MOST_BYTES: Final = 4 << 20
"""Largest sum of the warm-up."""


def warmup_sizes(plan: Plan) -> tuple[int, ...]:
    """Sizes of the warm-up's sums: those of the plan's all-reduces; otherwise the largest, which fills links best."""
    sizes_bytes = dict.fromkeys(min(max(size, SIZES_BYTES[0]), MOST_BYTES) for size in plan.sizes_bytes)
    return (*sizes_bytes,) if plan.operation == ALL_REDUCE else (*sizes_bytes,)[-1:]


@dataclass
class ConvergenceCheck:
    """Whether one peer's choice of algorithms has settled.

    Attributes:
        sizes_bytes: of the sums for which an algorithm is chosen.
        since_s: since then the choice has been unchanged and measured.
        takes: the chosen algorithm at each size.
    """

    sizes_bytes: Sequence[int]
    since_s: float
    takes: tuple[str, ...] = ()

    def update(self, now_s: float, prices: Prices | None) -> bool:
        """Whether the choice has settled. `prices`: basis of the current choice; None: algorithms go by size."""
        if not isinstance(prices, PriceTable):
            self.since_s, self.takes = now_s, ()
            return False
        takes = tuple(prices.choose(size).partition(SHARES)[0] for size in self.sizes_bytes)
        if takes != self.takes or self.untried(prices):
            self.since_s, self.takes = now_s, takes
        return now_s - self.since_s > SETTLED_S

    def untried(self, prices: Prices | None) -> list[int]:
        """Sizes for which the chosen algorithm has a price but has not been timed yet."""
        if not isinstance(prices, PriceTable):
            return []
        return [size for size in self.sizes_bytes if not prices.is_measured(size)]


def warm_up_links(table: "PeerExchange", sizes_bytes: Sequence[int]) -> None:
    """Commit steps until all peers choose at each size what they have measured to be best, at most for `LONGEST_S`.

    Sums have the largest size until there are prices; then the sizes take turns whose chosen algorithm has not been
    timed yet. Peers of one host skip this: they measure no links.
    """
    peer = table.peer
    if peer.view is None or len({*hosts_of(peer.view)}) == 1:
        return
    arrays = {size: np.ones(size // 4, np.float32) for size in sizes_bytes}
    begin_s = time.perf_counter()
    settling, order = ConvergenceCheck(sizes_bytes, begin_s), cycle(sizes_bytes)
    agreed = peer._session.loop.open_step.agreed
    said = np.zeros((1, 2))
    while not (said[:, 0].all() or said[:, 1].any()):
        assert peer.view is not None
        untried = settling.untried(agreed.table(peer.view))
        size = next(each for each in order if each in untried) if untried else sizes_bytes[-1]
        with peer.step(samples=1):
            peer.all_reduce(arrays[size], out=np.empty_like(arrays[size]))
        now_s = time.perf_counter()
        is_settled = settling.update(now_s, agreed.table(peer.view))
        said = table.exchange(np.array([is_settled, now_s - begin_s > LONGEST_S]))
