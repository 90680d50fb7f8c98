"""The contenders that take turns at one operation: shoal's algorithms, and other libraries (gloo.py)."""

import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np

from collectives import Medium, type_name
from collectives.goals import default_algorithm
from p2p.errors import ShoalError
from p2p.peer import Peer
from p2p.session.tensors import as_array

from ..arrays import Array
from ..plan import BY_SIZE, EARLY, IN_ARENA, OWN_SWARM, Plan
from ..roles import ALL_REDUCE, BARRIER, IN_PLACE, Role
from .storage import Storage


class Contender(Protocol):
    """One way to carry out the operation of the plan over all ranks.

    Attributes:
        rank: of this peer in this contender's group; it determines the peer's input and its expected result.
    """

    rank: int

    @property
    def name(self) -> str: ...

    @property
    def ran(self) -> str:
        """The algorithm of the last operation."""

    def barrier(self) -> None:
        """Return when every rank has called it."""

    def begin(self, array: Array, role: Role) -> None:
        """Take over `array` as the input of an operation as `role` says; not timed."""

    def run(self) -> None:
        """Carry out the operation on the array that `begin` has taken; timed."""

    def result(self) -> Array:
        """This rank's result, one-dimensional, on the host; not timed."""

    def stages_s(self, start_s: float, end_s: float) -> tuple[float, ...] | None:
        """Stages of the last `run`, which lasted from `start_s` to `end_s`; None: it has no stages."""


def check_all_are_there(peer: Peer, num_peers: int) -> None:
    """Raise ShoalError if a peer was lost by the last commit."""
    if peer.world_size != num_peers:
        raise ShoalError(f"{peer.world_size} peers are left of {num_peers}, so nothing can be measured")


class Shoal:
    """One of shoal's algorithms; each operation is committed. In-place operations replace the array by the result."""

    def __init__(self, peer: Peer, name: str, plan: Plan, storage: Storage) -> None:
        self.name, self.rank = name, peer.rank
        self._peer, self._plan, self._storage = peer, plan, storage
        self._given: Any = None
        algorithm = name.partition("@")[0]
        self._algorithm = None if algorithm == BY_SIZE else algorithm
        self._made: Any = None

    @property
    def ran(self) -> str:
        receipt = self._peer.receipt
        assert receipt is not None
        return receipt.algorithms[-1]

    def barrier(self) -> None:
        """Also raises if a peer was lost: times with fewer peers would not be comparable."""
        self._peer.barrier()
        check_all_are_there(self._peer, self._plan.num_peers)

    def begin(self, array: Array, role: Role) -> None:
        self._array, self._role = array, role
        if role.length > role.count:  # room for the inputs of all ranks, which read each other's parts of it
            self._array = self._peer._session.empty(role.length, array.dtype)
            self._array[role.own] = array
        self._peer._session.loop.resources.host_memory.end_pinning()  # else its copies would be pageable once more
        self._given = self._storage.put(self._array)

    def run(self, **how: Any) -> None:
        peer, array, algorithm, operation = self._peer, self._given, self._algorithm, self._plan.operation
        match operation:
            case "all-reduce":
                peer.all_reduce(array, algorithm=algorithm, **how)
            case "broadcast":
                peer.broadcast(array, root=self._plan.root, algorithm=algorithm, **how)
            case "all-gather":
                self._made = peer.all_gather(array, algorithm=algorithm, **how)
            case "reduce-scatter":
                self._made, _ = peer.reduce_scatter(array, algorithm=algorithm, **how)
            case "barrier":
                peer.barrier()
            case _:
                self._made = peer._calls.move(operation, array, self._plan.root, algorithm)
        self._storage.finish()

    def result(self) -> Array:
        if self._plan.operation in IN_PLACE:
            return self._storage.take(self._given)
        if self._plan.operation == BARRIER:
            return self._array[:0]
        made: Array = self._made.reshape(-1)
        return made if self._plan.operation in ("all-gather", "reduce-scatter") else self._role.pick(made)

    def stages_s(self, start_s: float, end_s: float) -> tuple[float, ...] | None:
        return self._storage.stages_s(start_s, end_s)


class ShoalInArena(Shoal):
    """The same with arrays in the arena; the result goes into another array."""

    def __init__(self, peer: Peer, name: str, plan: Plan, storage: Storage) -> None:
        super().__init__(peer, name, plan, storage)
        self._input = self._output = np.empty(0, np.float32)

    def begin(self, array: Array, role: Role) -> None:
        if self._input.size != array.size:
            import torch

            dtype = getattr(torch, type_name(array.dtype))
            self._input, self._output = (as_array(self._peer.empty(array.size, dtype=dtype)) for _ in range(2))
        self._input[:] = array
        self._array = self._given = self._input

    def run(self, **how: Any) -> None:
        super().run(out=self._output, **how)

    def result(self) -> Array:
        return self._output


class ShoalEarly(Shoal):
    """The same with results returned before their commit, which comes with the next barrier."""

    @property
    def ran(self) -> str:
        medium = Medium.WAN if os.environ.get("SHOAL_NETWORK") == "wan" else Medium.LAN
        num_bytes, num_peers, kind = self._array.nbytes, self._plan.num_peers, self._plan.operation
        view, agreed = self._peer.view, self._peer._session.loop.open_step.agreed
        if kind == "broadcast" and view is not None and (table := agreed.table(view)) is not None:
            by_size = default_algorithm(kind, num_bytes, num_peers, medium)
            return self._algorithm or table.choose_broadcast(num_bytes, self._plan.root) or by_size
        if kind != ALL_REDUCE:
            return self._algorithm or default_algorithm(kind, num_bytes, num_peers, medium)
        return self._algorithm or str(self._peer.explain(num_bytes)["algorithm"])

    def run(self, **how: Any) -> None:
        super().run(commit=False, **how)


SHOAL: Final[Mapping[str, type[Shoal]]] = {
    "": Shoal,
    IN_ARENA: ShoalInArena,
    EARLY: ShoalEarly,
    **dict.fromkeys(OWN_SWARM, Shoal),
}
"""Contender classes by way."""
