"""Deadlines by name, and the earliest of them."""

import math
from heapq import heapify, heappop, heappush


class Deadlines:
    """A heap whose outdated entries are skipped; it holds at most twice as many entries as names, and a few."""

    def __init__(self) -> None:
        self._when: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._when

    def __len__(self) -> int:
        return len(self._when)

    def set(self, name: str, when: float) -> None:
        """Set the deadline of `name`, instead of any older one."""
        self._when[name] = when
        heappush(self._heap, (when, name))
        if len(self._heap) > 2 * len(self._when) + 16:
            self._heap = [(when, name) for name, when in self._when.items()]
            heapify(self._heap)

    def drop(self, name: str) -> None:
        self._when.pop(name, None)

    def shift(self, by_s: float) -> None:
        """Move all deadlines by `by_s`."""
        self._when = {name: when + by_s for name, when in self._when.items()}
        self._heap = [(when, name) for name, when in self._when.items()]
        heapify(self._heap)

    def next(self) -> float:
        """The earliest deadline; inf if there is none."""
        heap = self._heap
        while heap and self._when.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop(self, now: float) -> list[str]:
        """Remove and return the names that are due, the earliest first."""
        due = []
        while self.next() <= now:
            name = heappop(self._heap)[1]
            del self._when[name]
            due.append(name)
        return due
