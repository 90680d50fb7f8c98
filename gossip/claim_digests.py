"""Digests of claims: two peers compare what they know by digests of buckets.

Equal peers exchange a few hundred bytes, however large the swarm. Digests cover members that are alive or suspect. All
others are forgotten at a time of each peer's own, which must not make two peers differ meanwhile; they are exchanged
with the buckets that differ.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b

from .claim import Claim, State

NUM_BUCKETS = 64
DIGEST_BYTES = 8


@lru_cache(maxsize=1 << 16)
def bucket_of(peer_id: str) -> int:
    """Bucket of a name, the same at every peer."""
    return blake2b(_encoded(peer_id), digest_size=1).digest()[0] % NUM_BUCKETS


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")  # every name received has an encoding


class Buckets:
    """The known names by bucket, with each bucket's digest, updated when it is asked for."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: list[list[str]] = [[] for _ in range(NUM_BUCKETS)]
        for name in sorted(names):
            self._names[bucket_of(name)].append(name)
        self._digests = [b""] * NUM_BUCKETS
        self._stale = [True] * NUM_BUCKETS

    def add(self, name: str) -> None:
        """Add `name`, or mark its bucket as changed."""
        bucket = bucket_of(name)
        names = self._names[bucket]
        place = bisect_left(names, name)
        if place == len(names) or names[place] != name:
            insort(names, name)
        self._stale[bucket] = True

    def drop(self, name: str) -> None:
        bucket = bucket_of(name)
        self._names[bucket].remove(name)
        self._stale[bucket] = True

    def names(self, bucket: int) -> tuple[str, ...]:
        return tuple(self._names[bucket])

    def digests(self, claims: Mapping[str, Claim]) -> tuple[bytes, ...]:
        """One digest per bucket. Only buckets that changed since the last call are hashed."""
        for bucket, stale in enumerate(self._stale):
            if stale:
                self._digests[bucket] = _digest([claims[name] for name in self._names[bucket]])
                self._stale[bucket] = False
        return tuple(self._digests)


def _digest(claims: list[Claim]) -> bytes:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for claim in claims:
        if claim.state <= State.SUSPECT:
            name = _encoded(claim.member.peer_id)
            head = (len(name), name, claim.member.incarnation, claim.refutation, claim.state, claim.status.version)
            digest.update(b"%d:%b %d %d %d %d " % head)
    return digest.digest()
