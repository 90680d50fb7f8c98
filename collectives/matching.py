"""The schedules of all ranks together: pairs of SENDs and their receivers, and the order of all transfers."""

from collections import defaultdict
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import count

from collectives.schedule import Kind, Schedule, Transfer, wire_numbers

Node = tuple[int, int]
"""A rank, and an index into its transfers."""

RankChunk = tuple[int, int]
"""A rank, and one of its chunks."""


class ScheduleError(ValueError):
    """These schedules would hang, or leave a wrong result, or different results on different ranks."""


class MatchedSchedules:
    """All transfers, checked against each other one by one.

    Raises:
        ScheduleError: at the first fault. Names the rank, the transfer and the chunk.
    """

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.schedules = schedules
        self.transfers: dict[Node, Transfer] = {
            (rank, index): transfer
            for rank, schedule in enumerate(schedules)
            for index, transfer in enumerate(schedule.transfers)
        }
        self.own_inputs: dict[RankChunk, Node] = {
            (node[0], transfer.chunk): node for node, transfer in self.transfers.items() if transfer.peer == node[0]
        }
        """The transfer that adds the own input, if it is listed."""

        self.previous_writes = self._find_previous_writes()
        self._check_each()
        self.senders = self._match()
        self.order = self._sort()
        self._check_lending()

    def _find_previous_writes(self) -> dict[Node, Node]:
        """For each transfer the last write of its chunk that is listed before it, if there is one."""
        latest: dict[RankChunk, Node] = {}
        previous = {}
        for node, transfer in self.transfers.items():
            place = node[0], transfer.chunk
            if place in latest:
                previous[node] = latest[place]
            if transfer.kind is not Kind.SEND:
                latest[place] = node
        return previous

    def _check_each(self) -> None:
        chunks = self.schedules[0].chunks
        for rank, schedule in enumerate(self.schedules):
            if schedule.chunks != chunks:
                raise ScheduleError(f"rank {rank} cuts chunks {schedule.chunks}, but rank 0 {chunks}")
        for node in self.transfers:
            if fault := self._find_fault(node):
                raise ScheduleError(f"{self._name(node)}: {fault}")

    def _find_fault(self, node: Node) -> str | None:
        """What is wrong with this transfer, judged by the schedule of its own rank; None: nothing."""
        (rank, index), transfer = node, self.transfers[node]
        if not 0 <= transfer.chunk < len(self.schedules[0].chunks):
            return "there is no such chunk"
        if not 0 <= transfer.peer < len(self.schedules):
            return "there is no such rank"
        if transfer.peer == rank and transfer.kind is not Kind.REDUCE:
            return "only a REDUCE may name the rank itself"
        if not all(0 <= earlier < index for earlier in transfer.after):
            return f"waits for {transfer.after}, which are not all earlier transfers"
        written = self.previous_writes.get(node)
        if transfer.kind is not Kind.SEND or written is None:
            return None
        if written[1] not in transfer.after:
            return f"has to wait for transfer {written[1]}, which writes the chunk"
        if transfer.is_copied and len(transfer.after) > 1:
            return f"is copied, so it has to wait for transfer {written[1]} alone: later the chunk may be another"
        if self.own_inputs.get((rank, transfer.chunk), node) > node:
            return "sends a sum before the own input is in"
        return None

    def _match(self) -> dict[Node, Node]:
        """For each transfer that receives from another rank, the SEND."""
        sent: dict[tuple[int, int, int], Node] = {}
        taken: dict[tuple[int, int, int], Node] = {}
        for rank, schedule in enumerate(self.schedules):
            for index, number in enumerate(wire_numbers(schedule.transfers)):
                transfer = schedule.transfers[index]
                if transfer.kind is Kind.SEND:
                    sent[rank, transfer.peer, number] = rank, index
                elif transfer.peer != rank:
                    taken[transfer.peer, rank, number] = rank, index
        for key in sent | taken:
            if key not in taken:
                raise ScheduleError(f"{self._name(sent[key])}: never received")
            if key not in sent:
                raise ScheduleError(f"{self._name(taken[key])}: never sent")
            if self.transfers[sent[key]].chunk != self.transfers[taken[key]].chunk:
                raise ScheduleError(f"{self._name(sent[key])}: taken for another, {self._name(taken[key])}")
        return {taken[key]: sent[key] for key in sent}

    def _waits_for(self, node: Node) -> list[Node]:
        transfer = self.transfers[node]
        if transfer.kind is Kind.SEND:
            return [(node[0], earlier) for earlier in transfer.after]
        return [before[node] for before in (self.previous_writes, self.senders) if node in before]

    def _sort(self) -> list[Node]:
        """All transfers in an order in which they can happen."""
        try:
            return list(TopologicalSorter({node: self._waits_for(node) for node in self.transfers}).static_order())
        except CycleError as error:
            cycle = " waits for ".join(self._name(node) for node in reversed(error.args[1]))
            raise ScheduleError(f"deadlock: {cycle}") from None

    def _check_lending(self) -> None:
        """Check that each write of a chunk depends on the receipt of all that was sent from the chunk before.

        Otherwise the write could change bytes that a transport has not sent yet. Only dependencies within the chunk
        count: others vanish for buckets in which the other chunk is empty. Copied payloads do not count.
        """
        past = self._past_in_chunk()
        receivers = {sender: receiver for receiver, sender in self.senders.items()}
        lent: defaultdict[Node, list[Node]] = defaultdict(list)
        for node, written in self.previous_writes.items():
            if self.transfers[node].kind is Kind.SEND:
                if not self.transfers[node].is_copied:
                    lent[written].append(node)
                continue
            for send in lent[written]:
                if past[receivers[send]] & ~past[node]:
                    raise ScheduleError(f"{self._name(node)}: may overwrite what is still lent to {self._name(send)}")

    def _past_in_chunk(self) -> dict[Node, int]:
        """For each transfer a bit set: itself, and all transfers of the same chunk that certainly happen before it."""
        numbers: defaultdict[int, count[int]] = defaultdict(count)
        past: dict[Node, int] = {}
        for node in self.order:
            chunk = self.transfers[node].chunk
            past[node] = 1 << next(numbers[chunk])
            for earlier in self._waits_for(node):
                if self.transfers[earlier].chunk == chunk:
                    past[node] |= past[earlier]
        return past

    def _name(self, node: Node) -> str:
        transfer = self.transfers[node]
        return f"rank {node[0]}, transfer {node[1]} ({transfer.kind.name} chunk {transfer.chunk}, peer {transfer.peer})"
