"""What a table of prices costs in processor time, and its longest slice.

python -m bench.prices [--ranks 4,8,9,64,1024]
"""

import argparse
import gc
import time

from collectives.algorithms import ALGORITHMS, HIERARCHICAL
from collectives.price_table import price_table
from collectives.pricing import equal_links

SIZES_BYTES = [4096 * 4**power for power in range(8)]


def main() -> None:
    """Print a line per number of ranks: the links of a WAN, all algorithms that need no hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="4,8,9,64,1024")
    builds = {name: build for name, build in ALGORITHMS.items() if name != HIERARCHICAL}
    for world_size in map(int, parser.parse_args().ranks.split(",")):
        links = equal_links(world_size, 25_000_000, 20_000_000, 100_000)
        gc.collect()
        times_s, start = [], time.process_time()
        for _ in price_table(builds, SIZES_BYTES, links):
            now = time.process_time()
            times_s.append(now - start)
            start = now
        p99 = sorted(times_s)[int(0.99 * len(times_s))]
        print(
            f"{world_size} ranks: {sum(times_s) * 1e3:.1f} ms in {len(times_s)} slices, "
            f"p99 {p99 * 1e3:.2f} ms, longest {max(times_s) * 1e3:.2f} ms"
        )


if __name__ == "__main__":
    main()
