"""Commands of bench.lab on the hosts of a lab. Clocks are CLOCK_MONOTONIC, which all hosts of one machine share."""

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

PORT: Final = 5001
CHUNK_BYTES: Final = 1 << 20
NUM_WARMUP: Final = 3
BEGUN: Final = 20
"""Steps after which a peer reports that it trains."""
_STAMP: Final = struct.Struct("=qq")
_LAST: Final = -1


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def receive_stream() -> None:
    """Report the rate over the whole stream, and over its second half, when the sender has found its rate."""
    with socket.create_server(("", PORT)) as server:
        say(ready=True)
        connection, _ = server.accept()
    buffer, marks, total = bytearray(CHUNK_BYTES), [], 0
    with connection:
        while size := connection.recv_into(buffer):
            total += size
            marks.append((time.monotonic(), total))
    middle = (marks[0][0] + marks[-1][0]) / 2
    second = [mark for mark in marks if mark[0] >= middle]
    say(whole_mbit=mbit(marks[0], marks[-1]), second_half_mbit=mbit(second[0], second[-1]), num_bytes=total)


def mbit(first: tuple[float, int], last: tuple[float, int]) -> float:
    return (last[1] - first[1]) * 8 / (last[0] - first[0]) / 1e6


def send_stream(address: str, for_s: str) -> None:
    block, end = bytes(CHUNK_BYTES), time.monotonic() + float(for_s)
    with socket.create_connection((address, PORT)) as connection:
        while time.monotonic() < end:
            connection.sendall(block)


def receive_datagrams() -> None:
    """Report the one-way delay of each datagram in microseconds; or, of a flood, how many arrived."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        ours.bind(("", PORT))
        say(ready=True)
        under_way_us = []
        while True:
            number, sent_ns = _STAMP.unpack_from(ours.recv(2048))
            if number == _LAST:
                break
            under_way_us.append((time.monotonic_ns() - sent_ns) // 1000)
    say(count=len(under_way_us), under_way_us=under_way_us)


def send_datagrams(address: str, count: str, every_ms: str, burst: str) -> None:
    """Send `burst` datagrams in a row, then pause; the last one, which is marked as such, is sent several times."""
    pause = threading.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        for number in range(int(count)):
            ours.sendto(_STAMP.pack(number, time.monotonic_ns()), (address, PORT))
            if (number + 1) % int(burst) == 0:
                pause.wait(float(every_ms) / 1e3)
        pause.wait(0.5)
        for _ in range(20):
            ours.sendto(_STAMP.pack(_LAST, 0), (address, PORT))
    say(sent=int(count))


def all_reduce(sizes: str) -> None:
    """Run verified all-reduces of shoal and Gloo in turns; report when each operation began and ended here."""
    import numpy as np
    import torch
    import torch.distributed as dist

    import p2p

    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    plan = [tuple(map(int, entry.split(":"))) for entry in sizes.split(",")]
    with p2p.join(min_peers=world_size, arena_bytes=0, join_timeout_s=60.0, step_timeout_s=60.0) as peer:
        peer.wait_view()
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        ways: dict[str, Callable[[Any], None]] = {
            "shoal": lambda array: peer.all_reduce(array),
            "shoal@early": lambda array: peer.all_reduce(array, commit=False),
            "shoal ring": lambda array: peer.all_reduce(array, algorithm="ring"),
            "gloo": lambda array: dist.all_reduce(torch.from_numpy(array)),
        }
        for size, rounds in plan:
            take_turns(peer, ways, np.empty(size // 4, np.float32), rounds)
        peer.barrier()
        dist.destroy_process_group()


def take_turns(peer: Any, ways: Mapping[str, Callable[[Any], None]], array: Any, rounds: int) -> None:
    """Run each way once a turn, after a barrier."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for turn in range(NUM_WARMUP + rounds):
        for name, sum_up in ways.items():
            array[:] = rank + turn
            peer.barrier()
            begin = time.monotonic_ns()
            sum_up(array)
            end = time.monotonic_ns()
            if (array != sum(range(world_size)) + turn * world_size).any() or peer.world_size != world_size:
                raise SystemExit(f"{name}: a wrong sum of {array.nbytes} bytes, or a peer is gone")
            if turn >= NUM_WARMUP:
                say(way=name, size=array.nbytes, turn=turn, rank=rank, begin_ns=begin, end_ns=end)


def train(stop: str) -> None:
    """Train a small model until the file `stop` exists."""
    import torch

    import p2p

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(100_000, 200)
    with p2p.join() as peer:
        wrapped = p2p.DataParallel(peer, model, optimizer)
        for (batch,) in peer.loader(torch.utils.data.TensorDataset(inputs), global_batch=30):
            wrapped(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if peer.done == BEGUN:
                say(peer_id=peer.peer_id)
            if os.path.exists(stop):
                break


ROLES: Final[dict[str, Callable[..., None]]] = {
    "receive-stream": receive_stream,
    "send-stream": send_stream,
    "receive-datagrams": receive_datagrams,
    "send-datagrams": send_datagrams,
    "all-reduce": all_reduce,
    "train": train,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
