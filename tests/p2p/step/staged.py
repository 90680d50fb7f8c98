"""A runner whose operations are not ready when they start, as with tensors on a device, but without a device."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from collectives import MissingSegment, Outgoing
from p2p.memory.shared_runner import RunState
from p2p.net.frames import Segment
from p2p.step.operation import Task
from p2p.step.runner import Runner


class StagedRunner:
    """Copies an input in when `is_ready` is true, lets `inner` run the operation, and copies the result out."""

    def __init__(self, inner: Runner, is_ready: Callable[[int], bool]) -> None:
        self._inner, self._is_ready = inner, is_ready
        self.sends = inner.sends
        self.outgoing: list[tuple[int, Outgoing]] = []
        self._tasks: list[Task] = []
        self._copies: list[Task] = []
        self._held: list[tuple[int, Segment]] = []

    def start(self, index: int, task: Task) -> None:
        self._tasks.append(task)

    def receive(self, index: int, segment: Segment) -> None:
        self._held.append((index, segment))

    def advance(self) -> RunState:
        num_copies, held = len(self._copies), self._held
        while len(self._copies) < len(self._tasks) and self._is_ready(len(self._copies)):
            task = self._tasks[len(self._copies)]
            self._copies.append(replace(task, input=task.input.copy(), result=task.result.copy()))
            self._inner.start(len(self._copies) - 1, self._copies[-1])
        self._held = [entry for entry in held if entry[0] >= len(self._copies)]
        for index, segment in [entry for entry in held if entry[0] < len(self._copies)]:
            self._inner.receive(index, segment)
        state = self._inner.advance()
        self.outgoing, self._inner.outgoing = self.outgoing + self._inner.outgoing, []
        return state if (num_copies, len(held)) == (len(self._copies), len(self._held)) else RunState.RUNNABLE

    def is_complete(self, index: int) -> bool:
        if is_complete := index < len(self._copies) and self._inner.is_complete(index):
            self._tasks[index].result[...] = self._copies[index].result
        return is_complete

    def digest(self, index: int) -> bytes:
        return self._inner.digest(index)

    def missing(self, index: int) -> Sequence[MissingSegment]:
        return self._inner.missing(index) if index < len(self._copies) else ()

    def end_step(self) -> None:
        self._inner.end_step()
        self._tasks, self._copies, self._held = [], [], []

    def stop(self) -> None:
        self._inner.stop()
