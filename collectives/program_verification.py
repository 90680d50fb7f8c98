"""A proof that the programs of all ranks are a collective operation, whatever the timing.

The happens-before relation is a graph: the instructions of a rank in their order, and each WAIT after the PUBLISH that
it names. A vector *clock* per instruction says how many instructions of each rank certainly happen before it. A read of
a chunk has one possible value if every write of the chunk happens either before the read, or after it: the value of the
last write before. Expressions for values are those of `verification`.
"""

from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter

from collectives.goals import GOALS, check_goal
from collectives.matching import MatchedSchedules, Node, RankChunk, ScheduleError
from collectives.program import Copy, Instruction, Program, Publish, Reduce, Source, Wait
from collectives.schedule import Schedule
from collectives.verification import Expressions, check_all_gather, check_all_reduce, evaluate


def verify_programs(programs: Sequence[Program], schedules: Sequence[Schedule] | None = None) -> None:
    """Prove that `programs`, one per rank, are an all-reduce.

    Args:
        programs: in rank order.
        schedules: from which they were compiled, to prove that the bits are the same as with messages.

    Raises:
        ScheduleError: they would hang, read data that may be missing or written meanwhile, or leave another result.
            Names the rank, the instruction and the chunk.
    """
    expressions = Expressions(len(programs))
    results = _Proof(programs, expressions).results()
    check_all_reduce(results, expressions, len(programs))
    if schedules is None:
        return
    expected = evaluate(MatchedSchedules(schedules), expressions, lambda rank, _: rank)
    num_blocks = programs[0].num_chunks // len(schedules[0].chunks)
    for (rank, chunk), result in results.items():
        if result != expected[rank, chunk // num_blocks]:
            raise ScheduleError(
                f"rank {rank}, chunk {chunk}: adds in another order than the schedule, or rounds elsewhere"
            )


def verify_gather_programs(programs: Sequence[Program]) -> None:
    """Prove that `programs`, one per rank, are an all-gather: all end with the input of rank r in chunk r.

    Raises:
        ScheduleError: they are not.
    """
    check_all_gather(_Proof(programs, Expressions(len(programs)), lambda rank, chunk: rank == chunk).results())


def verify_goal_programs(collective: str, programs: Sequence[Program], root: int = 0, num_blocks: int = 1) -> None:
    """Prove that `programs`, one per rank, are this collective, of `GOALS`; each chunk is cut into `num_blocks`.

    Raises:
        ScheduleError: they are not.
    """
    goal, world_size = GOALS[collective], len(programs)

    def has(rank: int, chunk: int) -> bool:
        return goal.has_input(rank, chunk // num_blocks, world_size, root)

    expressions = Expressions(world_size)
    proof = _Proof(programs, expressions, has)
    results = {
        (rank, chunk // num_blocks): proof.result(rank, chunk)
        for rank in range(world_size)
        for chunk in range(programs[0].num_chunks)
        if goal.needed(rank, chunk // num_blocks, world_size, root) is not None
    }
    check_goal(goal, results, expressions, world_size, root)


class _Proof:
    """One pass over all instructions, which covers all possible runs."""

    def __init__(
        self,
        programs: Sequence[Program],
        expressions: Expressions,
        has: Callable[[int, int], bool] = lambda rank, chunk: True,
    ) -> None:
        """`has`: whether a rank has an input in a chunk."""
        self._programs, self._expressions, self._has = programs, expressions, has
        self._instructions: dict[Node, Instruction] = {
            (rank, index): instruction
            for rank, program in enumerate(programs)
            for index, instruction in enumerate(program.instructions)
        }
        self._publishes = [
            [index for index, each in enumerate(program.instructions) if isinstance(each, Publish)]
            for program in programs
        ]
        self._check_shapes()
        self._writes: dict[RankChunk, list[Node]] = {}
        for node, instruction in self._instructions.items():
            if isinstance(instruction, Reduce | Copy):
                self._writes.setdefault((node[0], instruction.chunk), []).append(node)
        order = self._sort()
        self._clocks = self._find_clocks(order)
        self._values: dict[Node, int] = {}
        self._digested: set[Node] = set()
        for node in order:
            self._carry_out(node)

    def results(self) -> dict[RankChunk, int]:
        """The final expression of each chunk of each rank."""
        ranks, chunks = range(len(self._programs)), range(self._programs[0].num_chunks)
        return {(rank, chunk): self.result(rank, chunk) for rank in ranks for chunk in chunks}

    # Checks of single programs.

    def _check_shapes(self) -> None:
        first = self._programs[0]
        for rank, program in enumerate(self._programs):
            if (program.chunks, program.num_publishes) != (first.chunks, first.num_publishes):
                raise ScheduleError(
                    f"rank {rank} has chunks {program.chunks} and counts up by {program.num_publishes}, "
                    f"rank 0 has {first.chunks} and counts up by {first.num_publishes}"
                )
            if not 1 <= (count := len(self._publishes[rank])) <= program.num_publishes:
                raise ScheduleError(f"rank {rank} publishes {count} times, and counts up by {program.num_publishes}")
        for node, instruction in self._instructions.items():
            if not self._is_sound(node[0], instruction):
                raise ScheduleError(f"{self._name(node)}: no such rank, chunk or progress")

    def _is_sound(self, rank: int, instruction: Instruction) -> bool:
        ranks, chunks = range(len(self._programs)), range(self._programs[0].num_chunks)
        match instruction:
            case Publish():
                return True
            case Wait(peers, progress):
                return all(
                    peer in ranks and peer != rank and 1 <= progress <= len(self._publishes[peer]) for peer in peers
                )
            case Reduce(chunk, sources):
                own_result = Source(rank, is_result=True)
                return (
                    chunk in chunks
                    and bool(sources)
                    and all(source.rank in ranks for source in sources)
                    and own_result not in sources[1:]  # overwritten while the others are added
                )
        return instruction.chunk in chunks and instruction.peer in ranks and instruction.peer != rank

    # Happens-before.

    def _sort(self) -> list[Node]:
        """All instructions, each after those that it waits for."""
        graph = {node: self._waits_for(node) for node in self._instructions}
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            cycle = "; ".join(self._name(node) for node in error.args[1])
            raise ScheduleError(f"these wait for each other: {cycle}") from None

    def _waits_for(self, node: Node) -> list[Node]:
        (rank, index), instruction = node, self._instructions[node]
        earlier = [(rank, index - 1)] if index else []
        if isinstance(instruction, Wait):
            earlier += [(peer, self._publishes[peer][instruction.progress - 1]) for peer in instruction.peers]
        return earlier

    def _find_clocks(self, order: Sequence[Node]) -> dict[Node, list[int]]:
        """For each instruction, how many instructions of each rank have happened once it is done."""
        clocks: dict[Node, list[int]] = {}
        for node in order:
            rank, index = node
            earlier = [clocks[each] for each in self._waits_for(node)]
            clock = list(map(max, zip(*earlier, strict=True))) if earlier else [0] * len(self._programs)
            clock[rank] = index + 1
            clocks[node] = clock
        return clocks

    def _is_before(self, earlier: Node, later: Node) -> bool:
        return self._clocks[later][earlier[0]] > earlier[1]

    # Reads and writes.

    def _carry_out(self, node: Node) -> None:
        instruction = self._instructions[node]
        if isinstance(instruction, Publish | Wait):
            return
        for peer, publishes in enumerate(self._publishes):
            if peer != node[0] and not self._is_before((peer, publishes[0]), node):
                raise ScheduleError(
                    f"{self._name(node)}: does not wait until rank {peer} has begun, "
                    "which may still read what was there before"
                )
        if isinstance(instruction, Copy):
            read = self._find_write(node, instruction.peer, instruction.chunk)
            self._values[node] = self._values[read]
            if read in self._digested:
                self._digested.add(node)
            return
        values = [self._read(node, source, instruction.chunk) for source in instruction.sources]
        total = values[0]
        for value in values[1:]:
            total = self._expressions.add(total, value)
        if instruction.completes:
            self._digested.add(node)
            total = self._expressions.complete(total) if len(values) > 1 else total
        self._values[node] = self._expressions.round(total)

    def _read(self, node: Node, source: Source, chunk: int) -> int:
        if source.is_result:
            return self._values[self._find_write(node, source.rank, chunk)]
        return source.rank if self._has(source.rank, chunk) else self._expressions.garbage

    def _find_write(self, reader: Node, rank: int, chunk: int) -> Node:
        """The write of the chunk of `rank`'s result that `reader` reads, whatever the timing."""
        found: Node | None = None
        for write in self._writes.get((rank, chunk), ()):
            if write != reader and self._is_before(write, reader):
                found = write
            elif not self._is_before(reader, write):
                raise ScheduleError(f"{self._name(reader)}: while it reads, {self._name(write)} may be under way")
        if found is None:
            raise ScheduleError(f"{self._name(reader)}: rank {rank} has written nothing there by then")
        instruction = self._instructions[found]
        is_lent = not isinstance(instruction, Copy) or instruction.is_passed_on
        if not is_lent or not self._programs[rank].lends_results:
            raise ScheduleError(f"{self._name(reader)}: reads what is not lent, {self._name(found)}")
        return found

    def result(self, rank: int, chunk: int) -> int:
        """The final expression of a chunk of `rank`."""
        writes = self._writes.get((rank, chunk))
        if not writes or writes[-1] not in self._digested:
            raise ScheduleError(f"rank {rank}, chunk {chunk}: nothing is written there at last that has a digest")
        return self._values[writes[-1]]

    def _name(self, node: Node) -> str:
        return f"rank {node[0]}, instruction {node[1]} ({self._instructions[node]})"
