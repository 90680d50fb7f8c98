"""Compiles schedules into programs for shared memory: data that would be sent is read in place.

A REDUCE or RECV of a chunk from a peer becomes a WAIT for the progress at which the peer publishes what it would have
sent, and a read of the peer's result; or of its input, if the peer had not written the chunk before. All that a rank
reduces between two SENDs of a chunk is one instruction: so half types are rounded where a message would have been sent,
and the bits are those of the messages.

A rank executes its instructions in sequence, so their order must exclude deadlock: they are sorted by the number of
hops that must come before, then as listed. Each chunk can be cut into blocks, as a pipeline: while one block is added
up, another one is read by the next rank, `BLOCKS_BEHIND` later.

If a SEND copies, a rank might overwrite memory that others still read. But in an all-reduce all ranks end with the same
expression, so one rank can compute it for all: of each chunk only the instructions that the sum of one rank consists of
remain, rounded where they were, and the others read that sum.

A write that overwrites a chunk depends on the receipt of all that was sent from it (`matching`), so it comes after the
reads, too: a reader publishes again before anything that depends on it continues. `program_verification` proves it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from collectives.matching import MatchedSchedules, Node
from collectives.program import Copy, Instruction, Program, Publish, Reduce, Source, Wait
from collectives.schedule import Kind, Schedule, peers_after

BLOCKS_BEHIND: Final = 8
"""Distance, in blocks, between a hop and the next: near enough to find a block in a shared cache, and far enough that
ranks which share a core need not switch after each block."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The writes into a chunk between two SENDs of it: one instruction, for each block."""

    num_hops: int
    node: Node
    """The last write."""

    chunk: int
    sources: tuple[Source, ...]
    awaited: tuple[Node, ...]
    """Writes of other ranks that must be published before."""

    is_shown: bool
    is_last: bool


def compile_programs(
    schedules: Sequence[Schedule], num_blocks: int = 1, is_needed: Callable[[int, int], bool] = lambda rank, chunk: True
) -> tuple[Program, ...]:
    """The programs of all ranks of an operation over shared memory; results have the same bits as with messages.

    Args:
        schedules: in rank order; of an all-reduce, if a SEND of a result copies.
        num_blocks: per chunk. The chunks of the programs are the blocks in order; if weights are integers, no block
            crosses the border of a chunk.
        is_needed: whether (rank, chunk) of the result needs the rank's own input if no transfer writes it.

    Raises:
        ScheduleError: the schedules do not fit together.
    """
    matched = MatchedSchedules(schedules)
    runs = _find_runs(matched, is_needed)
    if any(matched.transfers[node].is_copied for node in matched.previous_writes):
        runs = _add_up_once(runs)
    orders = [_order(each, num_blocks) for each in runs]
    progress = {
        (run.node, block): number
        for order in orders
        for number, (run, block) in enumerate(((run, block) for run, block in order if run.is_shown), start=2)
    }
    chunks = tuple(weight for weight in schedules[0].chunks for _ in range(num_blocks))
    num_publishes = max(progress.values(), default=1)
    programs = []
    for rank, order in enumerate(orders):
        instructions = _list_instructions(rank, len(schedules), order, progress, num_blocks)
        programs.append(Program(chunks, tuple(instructions), num_publishes))
    return tuple(programs)


def _find_runs(matched: MatchedSchedules, is_needed: Callable[[int, int], bool]) -> list[list[_Run]]:
    """The runs of each rank."""
    transfers, num_hops = matched.transfers, _count_hops(matched)
    shown = {written for node, written in matched.previous_writes.items() if transfers[node].kind is Kind.SEND}
    last = {(node[0], each.chunk): node for node, each in transfers.items() if each.kind is not Kind.SEND}
    values: dict[tuple[int, int], list[Source]] = {}
    awaited: defaultdict[tuple[int, int], list[Node]] = defaultdict(list)
    runs: list[list[_Run]] = [[] for _ in matched.schedules]
    for rank in range(len(runs)):
        for chunk in range(len(matched.schedules[0].chunks)):
            own = Source(rank)
            values[rank, chunk] = [] if (rank, chunk) in matched.own_inputs else [own]
            if (rank, chunk) not in last and is_needed(rank, chunk):
                runs[rank].append(_Run(0, (rank, -1), chunk, (own,), (), is_shown=False, is_last=True))
    for node, transfer in transfers.items():
        if transfer.kind is Kind.SEND:
            continue
        rank, place = node[0], (node[0], transfer.chunk)
        if transfer.kind is Kind.RECV:
            values[place] = []  # what was awaited stays awaited: others may rely on it
        written = None if transfer.peer == rank else matched.previous_writes.get(matched.senders[node])
        values[place].append(Source(transfer.peer, written is not None))
        if written is not None:
            awaited[place].append(written)
        is_shown, is_last = node in shown, last[place] == node
        if is_shown or is_last:
            sources, needed = tuple(values[place]), tuple(awaited.pop(place, ()))
            is_last = is_last and transfer.chunk not in matched.schedules[rank].partial
            runs[rank].append(_Run(num_hops[node], node, transfer.chunk, sources, needed, is_shown, is_last))
            values[place] = [Source(rank, is_result=True)]
    return runs


def _add_up_once(runs: Sequence[Sequence[_Run]]) -> list[list[_Run]]:
    """The runs that remain if one rank computes the sum of each chunk, and the others copy it."""
    left: list[list[_Run]] = [[] for _ in runs]
    for chunk in dict.fromkeys(run.chunk for each in runs for run in each):
        of_chunk = [[run for run in each if run.chunk == chunk] for each in runs]
        ends = [each[-1] for each in of_chunk]
        total = next(end for end in ends if len(end.sources) > 1)  # not a copy; exists in every all-reduce
        needed = _made_of(total, of_chunk)
        for rank, end in enumerate(ends):
            left[rank] += [run for run in of_chunk[rank] if run.node in needed]
            if rank != total.node[0]:
                sources = (Source(total.node[0], is_result=True),)
                left[rank].append(replace(end, num_hops=total.num_hops + 1, sources=sources, awaited=(total.node,)))
        left[total.node[0]][-1] = replace(total, is_shown=True)
    return left


def _made_of(total: _Run, runs: Sequence[Sequence[_Run]]) -> set[Node]:
    """The runs of its chunk that `total` depends on, and itself; `runs`: of that chunk, per rank."""
    by_node = {run.node: run for each in runs for run in each}
    before = {after.node: run.node for each in runs for run, after in pairwise(each)}
    needed: set[Node] = set()
    pending = [total.node]
    while pending:
        run = by_node[pending.pop()]
        needed.add(run.node)
        pending += run.awaited
        if run.sources[0] == Source(run.node[0], is_result=True):
            pending.append(before[run.node])
    return needed


def _count_hops(matched: MatchedSchedules) -> dict[Node, int]:
    """The number of hops before each transfer is finished."""
    num_hops: dict[Node, int] = {}
    for node in matched.order:
        transfer = matched.transfers[node]
        if transfer.kind is Kind.SEND:
            earlier = [num_hops[node[0], index] for index in transfer.after]
        else:
            earlier = [num_hops[matched.previous_writes[node]]] if node in matched.previous_writes else []
            earlier += [num_hops[matched.senders[node]] + 1] if node in matched.senders else []
        num_hops[node] = max(earlier, default=0)
    return num_hops


def _order(runs: Sequence[_Run], num_blocks: int) -> list[tuple[_Run, int]]:
    """The runs and blocks of one rank, in order of execution."""
    lag = min(num_blocks, BLOCKS_BEHIND)

    def turn(pair: tuple[_Run, int]) -> tuple[int, int, int]:
        run, block = pair
        return run.num_hops * lag + block, run.node[1], run.chunk

    return sorted(((run, block) for run in runs for block in range(num_blocks)), key=turn)


def _list_instructions(
    rank: int,
    world_size: int,
    order: Sequence[tuple[_Run, int]],
    progress: dict[tuple[Node, int], int],
    num_blocks: int,
) -> list[Instruction]:
    peers = peers_after(rank, world_size)
    seen = dict.fromkeys(peers, 1)
    instructions: list[Instruction] = [Publish(), *([Wait(tuple(peers), 1)] if peers else [])]
    for run, block in order:
        late: defaultdict[int, list[int]] = defaultdict(list)
        for node in run.awaited:
            if seen[node[0]] < (needed := progress[node, block]):
                seen[node[0]] = needed
                late[needed].append(node[0])
        instructions += [Wait(tuple(ranks), needed) for needed, ranks in late.items()]
        instructions.append(_instruction(run, run.chunk * num_blocks + block))
        if run.is_shown:
            instructions.append(Publish())
    return instructions


def _instruction(run: _Run, chunk: int) -> Instruction:
    first = run.sources[0]
    if len(run.sources) == 1 and first.is_result:
        return Copy(chunk, first.rank, run.is_shown)
    return Reduce(chunk, run.sources, run.is_last)
