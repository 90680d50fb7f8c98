"""Those who take turns at summing the same array: a peer's algorithms, and others' libraries."""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from collectives import choose_algorithm
from p2p.errors import ShoalError
from p2p.peer import Peer

from .plan import BY_SIZE, EARLY, IN_ARENA, OWN_SWARM

Array = npt.NDArray[Any]

TIMEOUT: Final = timedelta(seconds=60)


class Contender(Protocol):
    """One way to sum an array over all ranks."""

    @property
    def name(self) -> str: ...

    @property
    def ran(self) -> str:
        """The algorithm of the last `all_reduce`."""

    def barrier(self) -> None:
        """Return when every rank has called it."""

    def begin(self, array: Array) -> None:
        """Take `array`, which is no longer the caller's; not timed."""

    def all_reduce(self) -> None:
        """Sum over all ranks what was taken."""

    def result(self) -> Array:
        """The sum; not timed."""


class Shoal:
    """An algorithm of ours, each operation committed; the array is replaced by the sum."""

    def __init__(self, peer: Peer, name: str, world_size: int) -> None:
        self.name = name
        self._peer = peer
        algorithm = name.partition("@")[0]
        self._algorithm = None if algorithm == BY_SIZE else algorithm
        self._world_size = world_size

    @property
    def ran(self) -> str:
        receipt = self._peer.receipt
        assert receipt is not None
        return receipt.algorithms[-1]

    def barrier(self) -> None:
        """Also notices a peer that was lost: with fewer, the times would be of something else."""
        self._peer.barrier()
        if self._peer.world_size != self._world_size:
            raise ShoalError(
                f"{self._peer.world_size} of {self._world_size} peers are left, so nothing can be measured"
            )

    def begin(self, array: Array) -> None:
        self._array = array

    def all_reduce(self) -> None:
        self._peer.all_reduce(self._array, algorithm=self._algorithm)

    def result(self) -> Array:
        return self._array


class ShoalInArena(Shoal):
    """The same with arrays in the arena; the sum goes into another one."""

    def __init__(self, peer: Peer, name: str, world_size: int) -> None:
        super().__init__(peer, name, world_size)
        self._input = self._output = np.empty(0, np.float32)

    def begin(self, array: Array) -> None:
        if self._input.size != array.size:
            import torch

            dtype = getattr(torch, array.dtype.name)
            self._input, self._output = (self._peer.empty(array.size, dtype=dtype).numpy() for _ in range(2))
        self._input[:] = array

    def all_reduce(self) -> None:
        self._peer.all_reduce(self._input, out=self._output, algorithm=self._algorithm)

    def result(self) -> Array:
        return self._output


class ShoalEarly(Shoal):
    """The same with results before their commit, which comes with the next barrier."""

    @property
    def ran(self) -> str:
        is_wan = os.environ.get("SHOAL_NETWORK") == "wan"
        return self._algorithm or choose_algorithm(self._array.nbytes, self._world_size, is_wan=is_wan)

    def all_reduce(self) -> None:
        self._peer.all_reduce(self._array, algorithm=self._algorithm, commit=False)


SHOAL: Final[Mapping[str, type[Shoal]]] = {
    "": Shoal,
    IN_ARENA: ShoalInArena,
    EARLY: ShoalEarly,
    **dict.fromkeys(OWN_SWARM, Shoal),
}
"""By way."""


class Gloo:
    """torch.distributed's backend for CPUs, over the loopback interface."""

    name = ran = "gloo"

    def __init__(self, store: Path, rank: int, world_size: int) -> None:
        """Meet the others through the file `store`, which nobody has used before."""
        # Otherwise it looks up the host's name, which need not have an address. A host of a lab has set it.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        # Only here: it takes seconds, and a run without a baseline does not need it.
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        self._distributed, self._from_numpy = distributed, torch.from_numpy
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=TIMEOUT,
        )

    def barrier(self) -> None:
        self._distributed.barrier()

    def begin(self, array: Array) -> None:
        self._array = array

    def all_reduce(self) -> None:
        self._distributed.all_reduce(self._from_numpy(self._array))

    def result(self) -> Array:
        return self._array

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.barrier()  # or those who still sum would see us hang up
        self._distributed.destroy_process_group()
