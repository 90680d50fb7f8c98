"""What each algorithm costs at each size: played where ranks are few, by formulas where they are many."""

from collections.abc import Generator, Mapping, Sequence

from collectives.formulas import FEW_RANKS, FORMULAS, summarize
from collectives.pricing import Links, play_slices
from collectives.schedule import Build


def price_table(
    builds: Mapping[str, Build], sizes_bytes: Sequence[int], links: Links
) -> Generator[None, None, dict[tuple[str, int], int]]:
    """What each algorithm costs at each size, in ns, in slices of less than a millisecond.

    By name: from `formulas.FEW_RANKS` on an algorithm that has a formula is not played.
    """
    prices: dict[tuple[str, int], int] = {}
    n = links.world_size
    summary = (yield from summarize(links)) if n >= FEW_RANKS else None
    for name, build in builds.items():
        if summary is not None and name in FORMULAS:
            for size_bytes in sizes_bytes:
                prices[name, size_bytes] = FORMULAS[name](size_bytes, summary)
            yield
            continue
        schedules = []
        for rank in range(n):
            schedules.append(build(rank, n))
            yield
        for size_bytes in sizes_bytes:
            prices[name, size_bytes] = (yield from play_slices(schedules, size_bytes, links)).time_ns
    return prices
