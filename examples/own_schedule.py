"""An all-reduce of your own: proven, drawn, priced and measured.

    shoal run -n 4 examples/own_schedule.py

You will see what recursive doubling costs beside the built-in algorithms, on 8 hosts of 200 Mbit/s and 20 ms, and how
long it takes here. `own_schedule.svg` is a picture of it. `shoal bench` takes it as well, and says how sure that is:

    shoal bench all-reduce -n 4 --algos ring,tree --schedule examples/own_schedule.py:recursive_doubling
"""

import argparse
import time
from pathlib import Path

import numpy as np

import p2p
from collectives import ALGORITHMS, Schedule, TransferList, even_chunks, register_algorithm
from collectives.drawing import draw_simulation
from collectives.links import equal_links
from collectives.pricing import simulate

NAME = "recursive-doubling"
NUM_HOSTS, SIZE_BYTES, ROUNDS = 8, 64 << 10, 20
LINKS = equal_links(NUM_HOSTS, 200_000_000 // 8, delay_ns=20_000_000, message_ns=300_000)


def recursive_doubling(rank: int, world_size: int) -> Schedule:
    """Ranks 1, 2, 4, ... apart exchange their sums so far; a rank beyond a power of 2 sends its array to one of them.

    A rank overwrites the sum that it has just sent, so it sends a copy.
    """
    num_active, transfers = 1 << (world_size.bit_length() - 1), TransferList()
    if rank >= num_active:
        transfers.send(rank - num_active, chunk=0)
        transfers.recv(rank - num_active, chunk=0)
        return transfers.schedule(even_chunks(1))
    if rank + num_active < world_size:
        transfers.reduce(rank + num_active, chunk=0)
    for distance in (1 << bit for bit in range(num_active.bit_length() - 1)):
        transfers.send(rank ^ distance, chunk=0, is_copied=True)
        transfers.reduce(rank ^ distance, chunk=0)
    if rank + num_active < world_size:
        transfers.send(rank + num_active, chunk=0)
    return transfers.schedule(even_chunks(1))


def price(name: str) -> float:
    """Predicted time in ms."""
    return simulate([ALGORITHMS[name](rank, NUM_HOSTS) for rank in range(NUM_HOSTS)], SIZE_BYTES, LINKS).time_ns / 1e6


def measure(peer: p2p.Peer, name: str) -> float:
    """Measured time in ms, the median of some rounds."""
    values, times_s = np.ones(SIZE_BYTES // 4, np.float32), []
    for _ in range(ROUNDS):
        values.fill(1)
        peer.barrier()
        start = time.perf_counter()
        peer.all_reduce(values, algorithm=name)
        times_s.append(time.perf_counter() - start)
        assert (values == peer.world_size).all()
    return float(np.median(times_s)) * 1e3


def main() -> None:
    """Print the predicted and the measured times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, default=Path("own_schedule.svg"))
    svg = parser.parse_args().svg
    register_algorithm(NAME, recursive_doubling)
    with p2p.join() as peer:
        peer.wait_view()
        times_ms = {name: measure(peer, name) for name in ALGORITHMS}
        if peer.rank == 0:
            print(f"{'64 KiB':18} {NUM_HOSTS} hosts, by price   here, {peer.world_size} peers")
            for name, time_ms in times_ms.items():
                print(f"{name:18} {price(name):15.1f} ms {time_ms:13.2f} ms")
            played = simulate([recursive_doubling(rank, NUM_HOSTS) for rank in range(NUM_HOSTS)], SIZE_BYTES, LINKS)
            svg.write_text(draw_simulation(played, f"{NAME}, {NUM_HOSTS} ranks, 64 KiB"))


if __name__ == "__main__":
    main()
