"""All ranks of an operation in one process, over a network that delivers in any order and copies nothing."""

import random
from collections.abc import Sequence
from typing import Protocol

from collectives import Buffer, Outgoing


class Receiver(Protocol):
    """An execution of one rank, or what does the same."""

    def start(self) -> Sequence[Outgoing]: ...

    def receive(self, source: int, transfer: int, segment: int, payload: Buffer, /) -> Sequence[Outgoing]: ...


def deliver(executions: Sequence[Receiver], rng: random.Random) -> None:
    """Run to the end. Checks that nothing changes between being sent and being received."""
    in_flight: list[tuple[int, Outgoing, bytes]] = []

    def send(source: int, segments: Sequence[Outgoing]) -> None:
        in_flight.extend((source, segment, segment.payload.tobytes()) for segment in segments)

    for rank, execution in enumerate(executions):
        send(rank, execution.start())
    while in_flight:
        chosen = rng.randrange(len(in_flight))
        in_flight[chosen], in_flight[-1] = in_flight[-1], in_flight[chosen]
        source, segment, content = in_flight.pop()
        assert segment.payload.tobytes() == content
        payload = segment.payload.data if rng.getrandbits(1) else memoryview(b"?" + content)[1:]
        receiver = executions[segment.peer]
        send(segment.peer, receiver.receive(source, segment.transfer, segment.segment, payload))
