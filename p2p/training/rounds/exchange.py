"""Checks before an exchange of payloads, in which each of n members sends n - 1 and keeps n until the commit."""

from collections.abc import Sequence

from collectives import Array, Codec
from collectives.codec import CODECS

from ...errors import ShoalError
from ...host.memory_left import memory_bytes
from ...session.session import Session
from .outer import payload_bytes


def check_room(session: Session, codec: str, count: int) -> None:
    """Raise unless this host can hold the payloads of all members, this peer included, for `count` parameters.

    Raises:
        ValueError: the memory is too small, and the kernel would kill this peer.
    """
    members = {each.peer_id for each in session.history.known_view().members}
    payload, num_members = payload_bytes(codec, count), len({*members, session.loop.peer_id})
    needed, available = num_members * payload, memory_bytes()
    if needed > available:
        smaller = [f"{name} {num_members * payload_bytes(name, count):,}" for name in CODECS if name != codec]
        raise ValueError(
            f"an exchange of {num_members} members keeps {num_members} payloads of {codec} until its commit, "
            f"{needed:,} bytes, but only {available:,} are available here: give this peer more memory, or use another "
            f"codec on all peers ({', '.join(smaller)} bytes)"
        )


def check_own(codec: Codec, payloads: Sequence[Array], step: int) -> None:
    """Raise unless the other members can decode the payloads that this peer is about to send.

    Raises:
        ShoalError: they cannot, and would not count this peer's round.
    """
    for payload in payloads:
        if (what := codec.check(payload)) is not None:
            raise ShoalError(
                f"no member could decode what this peer would send in round {step} ({what}), so it sent nothing. The "
                "memory of this machine may be damaged: start this peer again, on another machine if it happens twice"
            )
