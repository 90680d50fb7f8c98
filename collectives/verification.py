"""A proof that the schedules of all ranks are a collective operation, whatever the timing.

No network is simulated. The happens-before relation is a graph: `after`, the order of the writes of a chunk, and every
SEND before the transfer that receives it. By the rules checked in `matching`, nothing depends on the order of delivery,
so one pass over the graph, with expressions for values, covers all possible runs. Segments need no separate proof:
within a chunk each of them behaves like the chunk here, and between chunks transfers are waited for as a whole.

Floating-point a + b is b + a, but (a + b) + c is not a + (b + c). So two sums have the same bits, except for NaNs, if
their expressions are equal up to swapping operands. `min` and `max` are associative, too, so this proof is more than
they need. Two more operations on a value are part of its expression, though they change nothing in most reductions:
half types are rounded when a chunk is sent, and at the end; and the last write of a chunk, if it is a REDUCE, completes
it: a mean is divided there.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from collectives.matching import MatchedSchedules, Node, RankChunk, ScheduleError
from collectives.schedule import Build, Kind, even_chunks


def verify(build: Build, world_size: int) -> None:
    """Prove that `build` is an all-reduce: all ranks end with every input once in every chunk, and equal bits.

    Raises:
        ScheduleError: it is not. Names the rank, the transfer and the chunk.
    """
    matched = MatchedSchedules([build(rank, world_size) for rank in range(world_size)])
    expressions = Expressions(world_size)
    check_all_reduce(evaluate(matched, expressions, lambda rank, chunk: rank), expressions, world_size)


def verify_all_gather(build: Build, world_size: int) -> None:
    """Prove that `build` is an all-gather: all ranks end with the input of rank r in chunk r.

    Raises:
        ScheduleError: it is not. Names the rank, the transfer and the chunk.
    """
    matched = MatchedSchedules([build(rank, world_size) for rank in range(world_size)])
    chunks = matched.schedules[0].chunks
    if chunks != even_chunks(world_size):
        raise ScheduleError(f"rank 0 cuts chunks {chunks}, not one of weight 1 for each of {world_size} ranks")
    expressions = Expressions(world_size)
    results = evaluate(matched, expressions, lambda rank, chunk: rank if rank == chunk else expressions.garbage)
    check_all_gather(results)


def check_all_reduce(results: Mapping[RankChunk, int], expressions: "Expressions", world_size: int) -> None:
    """Check that each chunk of each rank is the complete sum of all inputs, and has the same bits on all ranks.

    Raises:
        ScheduleError: it is not.
    """
    for (rank, chunk), result in results.items():
        summands = expressions.summands[result]
        if summands != tuple(range(world_size)):
            found = f"adds up inputs {summands}, not each one once{what_is_wrong(summands, world_size)}"
            raise ScheduleError(f"rank {rank}, chunk {chunk}: {found}")
        if world_size > 1 and result not in expressions.completed:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: no rank's last write of it completes the sum")
        if result != results[0, chunk]:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: adds in another order than rank 0, or rounds elsewhere")


def what_is_wrong(summands: Sequence[int], world_size: int) -> str:
    """The ranks whose inputs a sum lacks, or has more than once, as the end of a sentence."""
    counts = Counter(summands)
    lacking = [str(rank) for rank in range(world_size) if not counts[rank]]
    repeated = [str(rank) for rank in range(world_size) if counts[rank] > 1]
    said = f"; lacks that of rank {', '.join(lacking)}" if lacking else ""
    return said + (f"; has that of rank {', '.join(repeated)} more than once" if repeated else "")


def check_all_gather(results: Mapping[RankChunk, int]) -> None:
    """Check that chunk r of each rank is the input of rank r.

    Raises:
        ScheduleError: it is not.
    """
    for (rank, chunk), result in results.items():
        if result != chunk:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: does not end as the input of rank {chunk}")


class Expressions:
    """Sums of inputs by number: the inputs come first, and equal numbers mean equal bits."""

    def __init__(self, world_size: int) -> None:
        self.garbage = world_size
        self.summands: list[tuple[int, ...]] = [(leaf,) for leaf in range(world_size + 1)]
        """The inputs that each expression adds up, sorted."""

        self.completed: set[int] = set()
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._exact = set(range(world_size + 1))

    def add(self, left: int, right: int) -> int:
        operands = min(left, right), max(left, right)
        return self._number("add", *operands, self.summands[left] + self.summands[right])

    def complete(self, value: int) -> int:
        result = self._number("complete", value, value, self.summands[value])
        self.completed.add(result)
        return result

    def round(self, value: int) -> int:
        """The value rounded to a half type; inputs and rounded values are unchanged."""
        if value in self._exact:
            return value
        result = self._number("round", value, value, self.summands[value])
        self._exact.add(result)
        if value in self.completed:
            self.completed.add(result)
        return result

    def _number(self, function: str, left: int, right: int, summands: tuple[int, ...]) -> int:
        key = function, left, right
        if key not in self._numbers:
            self._numbers[key] = len(self.summands)
            self.summands.append(tuple(sorted(summands)))
        return self._numbers[key]


def evaluate(
    matched: MatchedSchedules, expressions: Expressions, inputs: Callable[[int, int], int]
) -> dict[RankChunk, int]:
    """The final expression of each chunk of each rank, given the expressions of the inputs."""
    ranks, chunks = range(len(matched.schedules)), range(len(matched.schedules[0].chunks))
    results = {(rank, chunk): inputs(rank, chunk) for rank in ranks for chunk in chunks}
    values: dict[Node, int] = {}
    last_writes = {
        (node[0], each.chunk): node for node, each in matched.transfers.items() if each.kind is not Kind.SEND
    }
    sent = {written for node, written in matched.previous_writes.items() if matched.transfers[node].kind is Kind.SEND}
    for node in matched.order:
        rank, transfer = node[0], matched.transfers[node]
        place, own = (rank, transfer.chunk), inputs(rank, transfer.chunk)
        written = matched.previous_writes.get(node)
        value = own if written is None else values[written]
        if transfer.kind is not Kind.SEND:
            arrived = own if transfer.peer == rank else values[matched.senders[node]]
            is_first = written is None and place in matched.own_inputs
            replaces = is_first or transfer.kind is Kind.RECV
            if not replaces and expressions.completed & {value, arrived}:
                raise ScheduleError(f"rank {rank}, chunk {transfer.chunk}: adds to what is complete already")
            value = arrived if replaces else expressions.add(value, arrived)
            is_last = node == last_writes[place]
            if is_last and transfer.kind is Kind.REDUCE and transfer.chunk not in matched.schedules[rank].partial:
                value = expressions.complete(value)
            if is_last or node in sent:
                value = expressions.round(value)
            results[place] = value
        values[node] = value
    return results
