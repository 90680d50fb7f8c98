"""What peers of several hosts do before the rounds: they train, on nothing, until they know what their links are like.

So `auto` goes by what was measured from the first round on. What is known decides when it is enough: as long as only
the sizes of arrays decide, since not all have measured all of their links, nothing is.
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
    from .worker import Table

LONGEST_S: Final = 90.0
SETTLED_S: Final = 4.0
"""So long what is taken has not changed: rates that were measured first are those of cold connections."""
MOST_BYTES: Final = 4 << 20
"""Of a sum that is tried."""


def sizes_to_learn(plan: Plan) -> tuple[int, ...]:
    """Those of the sums whose algorithm is to be chosen; of others the largest, which fills lines best."""
    sizes_bytes = dict.fromkeys(min(max(size, SIZES_BYTES[0]), MOST_BYTES) for size in plan.sizes_bytes)
    return (*sizes_bytes,) if plan.operation == ALL_REDUCE else (*sizes_bytes,)[-1:]


@dataclass
class Settling:
    """When one peer has learned enough.

    Attributes:
        sizes_bytes: of the sums that are to be chosen for.
        since_s: what is taken has not changed since then, and all of it was measured.
        takes: at each size.
    """

    sizes_bytes: Sequence[int]
    since_s: float
    takes: tuple[str, ...] = ()

    def saw(self, now_s: float, prices: Prices | None) -> bool:
        """Whether it is enough; `prices`: by which algorithms are taken now, None: by size."""
        if not isinstance(prices, PriceTable):
            self.since_s, self.takes = now_s, ()
            return False
        takes = tuple(prices.choose(size).partition(SHARES)[0] for size in self.sizes_bytes)
        if takes != self.takes or self.untried(prices):
            self.since_s, self.takes = now_s, takes
        return now_s - self.since_s > SETTLED_S

    def untried(self, prices: Prices | None) -> list[int]:
        """Sizes of which prices say what to take, and nobody knows yet how long that takes."""
        if not isinstance(prices, PriceTable):
            return []
        return [size for size in self.sizes_bytes if not prices.is_measured(size)]


def learn_links(table: "Table", sizes_bytes: Sequence[int]) -> None:
    """Train until all peers take at each size what they have measured to be best there; not for long.

    With sums of the largest size until there are prices, and then of those, by turns, that take a way of which nobody
    knows yet how long it takes. Peers of one host do not: they measure no links.
    """
    peer = table.peer
    if peer.view is None or len({*hosts_of(peer.view)}) == 1:
        return
    arrays = {size: np.ones(size // 4, np.float32) for size in sizes_bytes}
    begin_s = time.perf_counter()
    settling, order = Settling(sizes_bytes, begin_s), cycle(sizes_bytes)
    agreed = peer._session.loop.open_step.agreed
    said = np.zeros((1, 2))
    while not (said[:, 0].all() or said[:, 1].any()):
        assert peer.view is not None
        untried = settling.untried(agreed.table(peer.view))
        size = next(each for each in order if each in untried) if untried else sizes_bytes[-1]
        with peer.step(samples=1):
            peer.all_reduce(arrays[size], out=np.empty_like(arrays[size]))
        now_s = time.perf_counter()
        is_settled = settling.saw(now_s, agreed.table(peer.view))
        said = table.exchange(np.array([is_settled, now_s - begin_s > LONGEST_S]))
