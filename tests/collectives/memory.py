"""All ranks of an operation in one process, over memory that all read, taking turns in any order.

Each half of a chunk is read, and written, in a turn of its own: who reads too early, or too late, gets something else.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from collectives import Reducer, Reduction, as_bits, reducer, split_by_weight
from collectives.program import Copy, Program, Publish, Reduce, Wait
from tests.collectives.inputs import Array


class Memory:
    """What the ranks lend each other."""

    def __init__(self, programs: Sequence[Program], inputs: Sequence[Array], op: str) -> None:
        self.results = [np.full(each.nbytes, 77, np.uint8).view(each.dtype) for each in inputs]
        self._programs = programs
        self._inputs, self._results = [as_bits(each) for each in inputs], [as_bits(each) for each in self.results]
        self._progress = [0] * len(programs)
        self._bounds = split_by_weight(inputs[0].size, programs[0].chunks)
        self._reducer: Reducer = reducer(Reduction(op, len(inputs)), inputs[0].dtype)

    def carry_out(self, rank: int) -> Iterator[bool]:
        """Turn by turn; False: this rank waits."""
        for instruction in self._programs[rank].instructions:
            match instruction:
                case Publish():
                    self._progress[rank] += 1
                case Wait(peers, progress):
                    while any(self._progress[peer] < progress for peer in peers):
                        yield False
                case Reduce(chunk, sources, completes):
                    arrays = []
                    for source in sources:
                        lent = self._results if source.is_result else self._inputs
                        arrays.append(np.empty_like(lent[source.rank][self._bounds[chunk]]))
                        yield from move(lent[source.rank][self._bounds[chunk]], arrays[-1])
                    total = np.empty_like(arrays[0])
                    self._reducer(arrays, total, completes=completes)
                    yield from move(total, self._results[rank][self._bounds[chunk]])
                case Copy(chunk, peer):
                    where = self._bounds[chunk]
                    yield from move(self._results[peer][where], self._results[rank][where])
            yield True


def move(source: Array, target: Array) -> Iterator[bool]:
    """Copy in two turns."""
    for start, stop in pairwise((0, source.size // 2, source.size)):
        target[start:stop] = source[start:stop]
        yield True


def run_programs(programs: Sequence[Program], inputs: Sequence[Array], op: str, seed: int) -> Array:
    """The result, which all ranks have."""
    results = run_all(programs, inputs, op, seed)
    assert len({each.tobytes() for each in results}) == 1
    return results[0]


def run_all(programs: Sequence[Program], inputs: Sequence[Array], op: str, seed: int) -> list[Array]:
    """What each rank ends with; 77s where it has written nothing."""
    memory, rng = Memory(programs, inputs, op), random.Random(seed)
    before = [each.tobytes() for each in inputs]
    left = [memory.carry_out(rank) for rank in range(len(programs))]
    num_in_vain = 0
    while left:
        chosen = rng.choice(left)
        goes_on = next(chosen, None)
        num_in_vain = num_in_vain + 1 if goes_on is False else 0
        assert num_in_vain < 1000, f"{len(left)} of {len(programs)} wait in vain"
        if goes_on is None:
            left.remove(chosen)
    assert before == [each.tobytes() for each in inputs]
    return memory.results
