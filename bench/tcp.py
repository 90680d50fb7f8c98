"""What do other hosts cost? All-reduce between two processes over ipc, TCP and TCP with a key, in turns, in one run.

    python -m bench.tcp --size 4M --iters 60

Loopback, without shared memory, every result verified. Also says how long the test takes that a peer makes before it
listens. Ends with 1 if a result was wrong.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

import p2p
from p2p.benchmark import parse_size
from p2p.host.keys import read_key, write_key
from p2p.net.addresses import Endpoint
from p2p.net.listener import TcpListeners
from p2p.net.tcp import TcpConfig

WAYS: Final = ("ipc", "tcp", "curve")
NUM_PEERS: Final = 2
NUM_WARMUP: Final = 5


def main() -> int:
    """Start the peers, print a line per way, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="4M", help="of the float32 array; K, M and G are powers of 1024")
    parser.add_argument("--iters", type=int, default=60, help="timed iterations")
    parser.add_argument("--algorithm", default="ring")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        return work(given, json.loads(given.worker))
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder, ExitStack() as stack:
        write_key(Path(folder) / "swarm.key")
        port = first_free_port()
        processes = []
        for index in range(NUM_PEERS):
            about = json.dumps({"index": index, "folder": folder, "port": port})
            command = [sys.executable, "-m", "bench.tcp", *sys.argv[1:], "--worker", about]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
            stack.callback(process.kill)
            processes.append(process)
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        return 1
    report([json.loads(output) for output in outputs], given.size)
    return 0


def report(found: list[dict[str, Any]], size: str) -> None:
    """The slower peer counts, turn by turn."""
    slowest = {way: [max(times) for times in zip(*(f[way] for f in found), strict=True)] for way in WAYS}
    ipc_s = statistics.median(slowest["ipc"])
    for way, times_s in slowest.items():
        p50_s = statistics.median(times_s)
        p99_s = statistics.quantiles(times_s, n=100)[98]
        print(f"{way:6} {size} p50 {p50_s * 1e3:8.2f} ms  p99 {p99_s * 1e3:8.2f} ms  {p50_s / ipc_s:5.2f} times ipc")
    tests_ms = sorted(time_s * 1e3 for f in found for time_s in f["tests_s"])
    print(f"opening a listeners, with its test: p50 {statistics.median(tests_ms):.1f} ms, max {tests_ms[-1]:.1f} ms")


def work(given: argparse.Namespace, about: dict[str, Any]) -> int:
    """One peer in three swarms."""
    index, folder, port = about["index"], Path(about["folder"]), about["port"]
    key = folder / "swarm.key"
    tests_s = [time_gate(key) for _ in range(10)]
    common: dict[str, Any] = {"min_peers": NUM_PEERS, "arena_bytes": 0, "join_timeout_s": 60.0}
    with ExitStack() as stack:
        peers = {"ipc": stack.enter_context(p2p.join(swarm="ipc", home=folder / "shared", **common))}
        for number, way in enumerate(WAYS[1:]):
            first = port + 4 * number
            peers[way] = stack.enter_context(
                p2p.join(
                    swarm=way,
                    home=folder / f"host{index}",
                    seeds=f"127.0.0.1:{first}",
                    bind=f"127.0.0.1:{first + 2 * index}",
                    key=key if way == "curve" else None,
                    insecure=way != "curve",
                    **common,
                )
            )
        times_s = measure(peers, parse_size(given.size) // 4, given.iters, given.algorithm)
    print(json.dumps({**times_s, "tests_s": tests_s}))
    return 0


def measure(peers: dict[str, p2p.Peer], count: int, iters: int, algorithm: str) -> dict[str, list[float]]:
    """Seconds per all-reduce and way."""
    times_s: dict[str, list[float]] = {way: [] for way in peers}
    for peer in peers.values():
        peer.wait_view()
    array = np.empty(count, np.float32)
    for turn in range(NUM_WARMUP + iters):
        for way, peer in peers.items():
            array[:] = peer.rank + turn
            peer.barrier()
            start = time.perf_counter()
            peer.all_reduce(array, algorithm=algorithm)
            time_s = time.perf_counter() - start
            if (array != 2 * turn + 1).any() or peer.world_size != NUM_PEERS:
                raise SystemExit(f"{way}: a wrong sum in turn {turn}, or a peer is gone")
            if turn >= NUM_WARMUP:
                times_s[way].append(time_s)
    return times_s


def time_gate(key: Path) -> float:
    config = TcpConfig(swarm="bench", bind=Endpoint("127.0.0.1", 0), secret=read_key(key))
    start = time.perf_counter()
    TcpListeners(config, "f" * 16).close()
    return time.perf_counter() - start


def first_free_port() -> int:
    """The first of eight that nobody uses."""
    for start in range(23_000, 60_000, 8):
        with ExitStack() as stack:
            try:
                for port in range(start, start + 8):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return start
    raise SystemExit("no eight free ports in a row")


if __name__ == "__main__":
    sys.exit(main())
