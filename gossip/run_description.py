"""Run descriptions: what all peers of a swarm have in common, and in what two of them differ (R19 of PROTOCOL.md).

Knows names and digests. Their meaning is the host's business, which provides it in bytes for refused peers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .view import NO_NUMERICS


@dataclass(frozen=True, slots=True)
class Trait:
    """A named property that two peers share if its digests are equal."""

    name: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class RunDescription:
    """Script and training of a peer, as compared between peers.

    Attributes:
        trains_model: it has a state, and takes over that of the swarm.
        training: what it trains, and how.
        program: script and arguments; empty: it runs no script, and is not compared in this.
        may_differ: names in `program` in which it may differ from others; without leading dashes.
    """

    trains_model: bool = False
    training: tuple[Trait, ...] = ()
    program: tuple[Trait, ...] = ()
    may_differ: tuple[str, ...] = ()

    def differences(self, other: "RunDescription") -> list[str]:
        """Names of the traits that keep these two out of one swarm. The order of the peers does not matter."""
        found = _differing(self.training, other.training)
        if self.program and other.program:
            allowed = {*self.may_differ, *other.may_differ}
            found += [name for name in _differing(self.program, other.program) if name.lstrip("-") not in allowed]
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """Run of this peer: its description, and what is not compared.

    Attributes:
        description: the part that other peers get.
        texts: traits by name, as shown to a refused peer.
        numerics: its numerics class, with zeros for its origin (numerics.py).
        frozen: digest of the frozen parameters that it has as it asks, which a state can leave out; empty: none.
    """

    description: RunDescription
    texts: Mapping[str, bytes]
    numerics: bytes = NO_NUMERICS
    frozen: bytes = b""


def _differing(ours: tuple[Trait, ...], theirs: tuple[Trait, ...]) -> list[str]:
    here, there = ({trait.name: trait.digest for trait in traits} for traits in (ours, theirs))
    return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
