"""The predicted cost of exchanging a model of a given size."""

from collections.abc import Iterator
from typing import Final

from collectives import CODECS

from ..memory.extents import EXTENT_BYTES
from ..training.rounds.outer import payload_bytes
from .finding import Finding, size

MEMBERS: Final = (4, 16, 64)


def cost_of_exchanges(count: int, arena_bytes: int, memory_bytes: int) -> Iterator[Finding]:
    """Findings for `count` parameters in float32, an arena of at most `arena_bytes`, and `memory_bytes` of memory."""
    gradients = 2 * 4 * count
    extents = -(-gradients // EXTENT_BYTES) * EXTENT_BYTES
    limits = {"of the arena": arena_bytes, "of memory": memory_bytes}
    name, least = min(limits.items(), key=lambda item: item[1])
    fits = extents <= least
    says = f"{count:,} parameters take {size(gradients)} of the arena in DataParallel (gradients and means, float32)"
    rest = "" if fits else f", of which {size(least)} {name} are there: the rest is copied, and is not pinned"
    facts = {"parameters": count, "arena_bytes": gradients, "pinned_bytes": min(extents, least), "limit": name}
    yield Finding("gradients", f"{says}{rest}", fits, facts)
    for codec in CODECS:
        payload = payload_bytes(codec, count)
        each = {
            str(n): {"sent_bytes": (n - 1) * payload, "held_bytes": n * payload, "is_held": n * payload <= memory_bytes}
            for n in MEMBERS
        }
        costs = "; ".join(f"{n} peers: sends {size((n - 1) * payload)}, holds {size(n * payload)}" for n in MEMBERS)
        yield Finding(
            f"round {codec}",
            f"{size(payload)} of each peer per round of DiLoCo; {costs}",
            facts={"payload_bytes": payload, "members": each},
        )
