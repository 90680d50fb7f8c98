"""What a table of prices costs in processor time: links of a WAN, with a rank on each host, or all on two.

python -m bench.prices [--ranks 2,4,8,9,16,64,1024]
"""

import argparse
import gc
import time
from dataclasses import replace

from collectives.links import MEMORY_DELAY_NS, Links, equal_links
from collectives.price_table import MOST_PLAYED, tabulate
from p2p.config import WAN_SEGMENT_BYTES

RATE, DELAY_NS, MESSAGE_NS = 25_000_000, 20_000_000, 100_000


def links_of(world_size: int) -> Links:
    """A host for each."""
    return replace(equal_links(world_size, RATE, DELAY_NS, MESSAGE_NS), segment_bytes=WAN_SEGMENT_BYTES)


def links_of_two_hosts(world_size: int) -> Links:
    hosts = tuple(rank * 2 // world_size for rank in range(world_size))
    delays = tuple(tuple(DELAY_NS if one != other else MEMORY_DELAY_NS for other in hosts) for one in hosts)
    return replace(links_of(world_size), delay_ns=delays, hosts=hosts)


def show(name: str, links: Links) -> None:
    gc.collect()
    times_s, start = [], time.process_time()
    for _ in tabulate(links):
        now = time.process_time()
        times_s.append(now - start)
        start = now
    times_s.append(time.process_time() - start)
    p99 = sorted(times_s)[int(0.99 * len(times_s))]
    print(
        f"{name}: {sum(times_s) * 1e3:.1f} ms in {len(times_s)} slices, "
        f"p99 {p99 * 1e3:.2f} ms, longest {max(times_s) * 1e3:.2f} ms"
    )


def main() -> None:
    """Print a line or two per number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8,9,16,64,1024")
    for world_size in map(int, parser.parse_args().ranks.split(",")):
        show(f"{world_size} ranks", links_of(world_size))
        if 4 <= world_size <= MOST_PLAYED:
            show(f"{world_size} ranks on two hosts", links_of_two_hosts(world_size))


if __name__ == "__main__":
    main()
