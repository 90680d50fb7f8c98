"""A script with types that uses only public names: `make check` checks it, and test_annotated.py runs it."""

import sys
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

import p2p

Vector = npt.NDArray[np.float32]


def start(bind: str | None) -> p2p.Peer:
    try:
        return p2p.join(bind=bind, insecure=bind is not None or None)
    except p2p.NetworkError as error:
        sys.exit(f"give another address: {error}")


def take_seat(peer: p2p.Peer) -> p2p.View:
    while True:
        try:
            return peer.wait_view(timeout_s=0.2)
        except p2p.JoinTimeout as error:
            print("waits:", error)


def begin_sums(peer: p2p.Peer, vectors: list[Vector]) -> list[p2p.Handle]:
    return [peer.all_reduce(vector, async_op=True) for vector in vectors]


def step_of(peer: p2p.Peer, num_samples: int) -> AbstractContextManager[p2p.Step]:
    return peer.step(samples=num_samples)


def counted(receipt: p2p.Receipt | None) -> dict[str, int]:
    contributions: tuple[p2p.Contribution, ...] = () if receipt is None else receipt.contributions
    return {entry.peer_id: entry.num_samples for entry in contributions}


def is_member(peer: p2p.Peer, members: tuple[p2p.Member, ...]) -> bool:
    return peer.peer_id in {member.peer_id for member in members}


def try_to_sum(peer: p2p.Peer, vector: Vector) -> p2p.ShoalError | None:
    try:
        peer.all_reduce(vector)
    except (p2p.OperationMismatch, p2p.OperationInterrupted) as error:
        return error
    return None


def main() -> None:
    """Run one of two peers, which calls everything once."""
    with start(sys.argv[1] if len(sys.argv) > 1 else None) as peer:
        print("here", peer.peer_id)
        assert is_member(peer, take_seat(peer).members)
        vectors = [np.full(3, peer.rank, np.float32), np.ones(2, np.float32)]
        for handle in begin_sums(peer, vectors):
            handle.wait()
        assert [vector.tolist() for vector in vectors] == [[1, 1, 1], [2, 2]]
        with step_of(peer, 3 + peer.rank) as step:
            number: int = step.number
        assert number == peer.last_step and counted(peer.receipt)[peer.peer_id] == 3 + peer.rank
        error = try_to_sum(peer, np.ones(1 + peer.rank, np.float32))
        assert isinstance(error, p2p.OperationMismatch) and error.is_recoverable
        peer.barrier()
        print("end", peer.last_step)
