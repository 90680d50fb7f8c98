"""Those who take turns at summing the same array: a peer's algorithms, and others' libraries."""

import os
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from p2p.errors import ShoalError
from p2p.peer import Peer

from .plan import BY_SIZE

Array = npt.NDArray[np.float32]

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

    def all_reduce(self, array: Array) -> None:
        """Replace `array` by the sum over all ranks."""


class Shoal:
    """An algorithm of ours, each operation committed."""

    def __init__(self, peer: Peer, algorithm: str, world_size: int) -> None:
        self.name = algorithm
        self._peer = peer
        self._algorithm = None if algorithm == BY_SIZE else algorithm
        self._world_size = world_size

    @property
    def ran(self) -> str:
        receipt = self._peer.receipt
        assert receipt is not None
        return receipt.algorithm

    def barrier(self) -> None:
        """Also notices a peer that was lost: with fewer, the times would be of something else."""
        self._peer.barrier()
        if self._peer.world_size != self._world_size:
            raise ShoalError(
                f"{self._peer.world_size} of {self._world_size} peers are left, so nothing can be measured"
            )

    def all_reduce(self, array: Array) -> None:
        self._peer.all_reduce(array, algorithm=self._algorithm)


class Gloo:
    """torch.distributed's backend for CPUs, over the loopback interface."""

    name = ran = "gloo"

    def __init__(self, store: Path, rank: int, world_size: int) -> None:
        """Meet the others through the file `store`, which nobody has used before."""
        # Otherwise it looks up the host's name, which need not have an address.
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

    def all_reduce(self, array: Array) -> None:
        self._distributed.all_reduce(self._from_numpy(array))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.barrier()  # or those who still sum would see us hang up
        self._distributed.destroy_process_group()
