"""What an observer does: takes committed steps, one after the other, without a seat.

It is in no view, barrier or count, so it delays nobody. A step is applied only upon the digest of the chain before
it; where one is missing, the state is asked for instead.
"""

from dataclasses import dataclass

from .effects import Apply

MOST_WAITING = 1024
"""Fed steps that are kept while an older one, or the state, is on its way. The host bounds their bytes."""


@dataclass(frozen=True, slots=True)
class _Step:
    previous: bytes
    digest: bytes


class Follower:
    """The committed steps on their way to one observer."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Step] = {}
        self._applying: int | None = None
        self._head: tuple[int, bytes] | None = None

    def fed(self, step: int, previous: bytes, digest: bytes, done: int) -> None:
        """`step` has arrived, as bytes. Kept if it is beyond `done` and there is room; else it is asked for again."""
        if step > done and len(self._waiting) < MOST_WAITING:
            self._waiting[step] = _Step(previous, digest)

    def heard(self, step: int, digest: bytes) -> None:
        """A member has committed up to `step`."""
        self._head = step, digest

    def next_step(self, done: int, digest: bytes) -> Apply | None:
        """What can be applied upon step `done`, if nothing is under way."""
        self._waiting = {step: fed for step, fed in self._waiting.items() if step > done}
        fed = self._waiting.get(done + 1)
        if self._applying is not None or fed is None or fed.previous != digest:
            return None
        self._applying = done + 1
        return Apply(done + 1, fed.digest)

    def applied(self) -> None:
        """Something was loaded, or run."""
        self._applying = None

    def missing(self, done: int, digest: bytes) -> int | None:
        """The step whose state is needed, because no fed one follows step `done`; None if there is no gap."""
        if self._applying is not None or self._head is None or self._head == (done, digest):
            return None
        fed = self._waiting.get(done + 1)
        is_ahead = self._head[0] < done
        return None if is_ahead or (fed is not None and fed.previous == digest) else self._head[0]
