"""What all peers of a swarm have in common, and in what two of them differ (R19 of PROTOCOL.md).

Knows names and digests. What they stand for is the host's business, which gives it in bytes for who is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .view import NO_NUMERICS


@dataclass(frozen=True, slots=True)
class Trait:
    """One thing that two peers have in common if it has the same digest at both."""

    name: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What a peer runs and trains.

    Attributes:
        trains_model: it has a state, and takes over that of the swarm.
        training: of what it trains, and how.
        program: script and arguments; empty: it runs no script, so that it is not compared with anybody in this.
        may_differ: names in `program` in which it may differ from others; without leading dashes.
    """

    trains_model: bool = False
    training: tuple[Trait, ...] = ()
    program: tuple[Trait, ...] = ()
    may_differ: tuple[str, ...] = ()

    def differences(self, other: "RunDescription") -> list[str]:
        """Names of what keeps these two from being in one swarm. The order of the peers does not matter."""
        found = _differing(self.training, other.training)
        if self.program and other.program:
            allowed = {*self.may_differ, *other.may_differ}
            found += [name for name in _differing(self.program, other.program) if name.lstrip("-") not in allowed]
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """What this peer runs and trains.

    Attributes:
        description: as others have it, too.
        texts: by name, as who is refused is told of it.
        numerics: its numerics class, with zeros for where such hardware came in (numerics.py).
        frozen: digest of the frozen parameters that it has as it asks, which a state can leave out; empty: none.
    """

    description: RunDescription
    texts: Mapping[str, bytes]
    numerics: bytes = NO_NUMERICS
    frozen: bytes = b""


def _differing(ours: tuple[Trait, ...], theirs: tuple[Trait, ...]) -> list[str]:
    here, there = ({trait.name: trait.digest for trait in traits} for traits in (ours, theirs))
    return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
