"""An all-reduce of your own: proven, drawn, priced and measured.

    shoal run -n 4 examples/own_schedule.py

You will see that recursive doubling, as it stands in textbooks, is refused, since each rank would overwrite what it has
lent to another one; what its sibling costs that adds up at one of each pair, beside the built-in algorithms, on 8
hosts of 200 Mbit/s and 20 ms; and how long it takes here. `own_schedule.svg` is a picture of it.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import p2p
from collectives import ALGORITHMS, Schedule, ScheduleError, TransferList, even_chunks, register_algorithm
from collectives.drawing import draw_play
from collectives.links import equal_links
from collectives.pricing import play

NUM_HOSTS, SIZE_BYTES, ROUNDS = 8, 64 << 10, 20
LINKS = equal_links(NUM_HOSTS, 200_000_000 // 8, delay_ns=20_000_000, message_ns=300_000)


def recursive_doubling(rank: int, world_size: int) -> Schedule:
    """Ranks that are 1, 2, 4, ... apart swap all that they have summed up so far."""
    transfers, distance = TransferList(), 1
    while distance < world_size:
        transfers.send(rank ^ distance, chunk=0)
        transfers.reduce(rank ^ distance, chunk=0)
        distance *= 2
    return transfers.schedule(even_chunks(1))


def pairwise(rank: int, world_size: int) -> Schedule:
    """Of ranks that are 1, 2, 4, ... apart the lower one adds up; then all goes back the way that it came."""
    transfers, distance = TransferList(), 1
    while distance < world_size and not rank & distance:
        if rank + distance < world_size:
            transfers.reduce(rank + distance, chunk=0)
        distance *= 2
    if rank & distance:
        transfers.send(rank - distance, chunk=0)
        transfers.recv(rank - distance, chunk=0)
    while distance := distance // 2:
        if rank + distance < world_size:
            transfers.send(rank + distance, chunk=0)
    return transfers.schedule(even_chunks(1))


def price(name: str) -> float:
    """In ms."""
    return play([ALGORITHMS[name](rank, NUM_HOSTS) for rank in range(NUM_HOSTS)], SIZE_BYTES, LINKS).time_ns / 1e6


def measure(peer: p2p.Peer, name: str) -> float:
    """In ms, the median of some rounds."""
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
    """Say what it costs, and what it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, default=Path("own_schedule.svg"))
    svg = parser.parse_args().svg
    try:
        register_algorithm("recursive-doubling", recursive_doubling, world_sizes=[4])
    except ScheduleError as error:
        refused = f"recursive doubling: {error}"
    register_algorithm("pairwise", pairwise)
    with p2p.join() as peer:
        peer.wait_view()
        times_ms = {name: measure(peer, name) for name in ALGORITHMS}
        if peer.rank == 0:
            print(refused)
            print(f"{'64 KiB':17} {NUM_HOSTS} hosts, by price   here, {peer.world_size} peers")
            for name, time_ms in times_ms.items():
                print(f"{name:17} {price(name):15.1f} ms {time_ms:13.2f} ms")
            played = play([pairwise(rank, NUM_HOSTS) for rank in range(NUM_HOSTS)], SIZE_BYTES, LINKS)
            svg.write_text(draw_play(played, f"pairwise, {NUM_HOSTS} ranks, 64 KiB"))


if __name__ == "__main__":
    main()
