"""Scripts with loaders, in lockstep, without peers: what one commits, all do."""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from collectives import Array
from p2p.data.loader import Loader, PeerInterface
from p2p.data.sample_tracker import SampleTracker
from p2p.step.receipts import NO_SAMPLES, UNKNOWN_SAMPLE, Contribution, Receipt

HANG_S: Final = 20.0


def receipt(step: int, parts: Sequence[tuple[str, tuple[int, int, int]]]) -> Receipt:
    """A receipt with each member's samples, as from `write_receipt`."""
    contributions = [
        Contribution(name, 1, ((start, number),) if start != UNKNOWN_SAMPLE else (), number, weight)
        for name, (start, number, weight) in parts
    ]
    return Receipt(
        lineage="",
        view_number=1,
        step=step,
        contributions=tuple(contributions),
        algorithms=("",),
        digest="",
        state_digest="",
    )


class Lockstep:
    """Members by name, each with the same loaders.

    Attributes:
        shares: of the members, by name.
        meeting: where they gather.
        done: the last committed step.
    """

    def __init__(self, *names: str) -> None:
        self.done = -1
        self.meeting = Meeting(self)
        self.shares = {name: SampleTracker() for name in names}
        self.commit()

    def loader(self, name: str, dataset: Any, **settings: Any) -> Loader:
        """The loader of one member's script."""
        script = PeerInterface(
            name, self.shares[name], lambda: None, lambda: self.done, partial(self.meeting.gather, name)
        )
        given = {"epochs": 1, "seed": 0, "shuffle": True, "drop_last": False, "max_attempts": 2} | settings
        options = given.pop("options", {})
        local, on_poison = given.pop("max_local_batch", None), given.pop("on_poison", "skip")
        return Loader(script, dataset, max_local_batch=local, on_poison=on_poison, options=options, **given)

    def loaders(self, dataset: Any, **settings: Any) -> dict[str, Loader]:
        return {name: self.loader(name, dataset, **settings) for name in self.shares}

    def commit(self, dying: str = "") -> Receipt:
        """Commit a step of all members except `dying`."""
        self.done += 1
        rows = [(name, share.counts if self.done else NO_SAMPLES) for name, share in self.shares.items()]
        told = receipt(self.done, [row for row in rows if row[0] not in dying])
        self.shares = {name: share for name, share in self.shares.items() if name not in dying}
        counted = [share.apply_receipt(told) for share in self.shares.values()]
        assert all(each == counted[0] for each in counted)
        for share in self.shares.values():
            share.spend()
        return counted[0]

    def train(self, loaders: Mapping[str, Loader], dying: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
        """Train one epoch, in which members die; returns the counted batches of each step by member."""
        running = {name: iter(loaders[name]) for name in self.shares}
        steps: list[dict[str, Any]] = []
        while True:
            batches: dict[str, Any] = {name: next(running[name], None) for name in self.shares}
            if all(batch is None for batch in batches.values()):
                return steps
            assert all(batch is not None for batch in batches.values()), "all end after the same step"
            made = self.commit((dying or {}).get(self.done + 1, ""))
            numbers = {each.peer_id: each.num_samples for each in made.contributions}
            steps.append({name: batches[name][:number] for name, number in numbers.items()})


class Meeting:
    """Members in threads of their own, which wait for each other in `gather`."""

    def __init__(self, swarm: Lockstep) -> None:
        self._swarm = swarm
        self._rows: dict[str, Array] = {}
        self._results: list[Array] = []
        self._changed = threading.Condition()

    def gather(self, name: str, row: Array, label: str) -> Array:
        """The rows of all remaining members, in order."""
        with self._changed:
            self._rows[name] = row
            turn = len(self._results)
            self._meet()
            assert self._changed.wait_for(lambda: len(self._results) > turn, timeout=HANG_S)
            return self._results[turn]

    def die(self, name: str) -> None:
        with self._changed:
            del self._swarm.shares[name]
            self._meet()

    def _meet(self) -> None:
        names = list(self._swarm.shares)
        if names and set(names) <= set(self._rows):
            self._results.append(np.stack([self._rows[name] for name in names]))
            self._rows = {}
            self._swarm.commit()
            self._changed.notify_all()
