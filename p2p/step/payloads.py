"""Whether what members have sent of a round can be used: a function of its bytes, so the same at all of them."""

import logging
from collections.abc import Sequence

from collectives import Array, codec_of
from gossip import View

from .operation import Operation
from .receipts import NO_SAMPLES, WEIGHT

logger = logging.getLogger("p2p")


def accept(counts: Array, operations: Sequence[Operation], view: View) -> Array:
    """`counts`, of the members of `view`, without the samples of those who have sent what nobody can decode."""
    accepted = counts.copy()
    for operation in operations:
        if not operation.collective.codec:
            continue
        codec = codec_of(operation.collective.codec)
        rows = operation.result.reshape(len(counts), -1)
        for rank, row in enumerate(rows):
            if accepted[rank, WEIGHT] and (what := codec.check(row)) is not None:
                accepted[rank] = NO_SAMPLES
                logger.warning("what peer %s has sent for this round is ignored: %s", view.members[rank], what)
    return accepted
