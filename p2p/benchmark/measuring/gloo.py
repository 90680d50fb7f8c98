"""The baseline Gloo: torch.distributed's backend for CPUs, as a contender."""

import os
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from p2p.session.tensors import as_array

from ..arrays import Array, as_tensor
from ..roles import ALL_REDUCE, BARRIER, IN_PLACE, Role
from .storage import HostStorage, Storage

TIMEOUT: Final = timedelta(seconds=60)


class Gloo:
    """torch.distributed's backend for CPUs, over the loopback interface."""

    name = ran = "gloo"

    def __init__(
        self,
        store: Path,
        rank: int,
        world_size: int,
        operation: str = ALL_REDUCE,
        root: int = 0,
        storage: Storage | None = None,
    ) -> None:
        """Join the process group through the new file `store`. `storage`: of the arrays; None: host memory."""
        # Otherwise Gloo looks up the host's name, which need not have an address. Hosts of a lab set it already.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        # Imported here because that takes seconds, and a run without a baseline does not need it.
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        self.rank, self._world_size, self._operation, self._root = rank, world_size, operation, root
        self._distributed = distributed
        self._storage = storage or HostStorage()
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=TIMEOUT,
        )

    def barrier(self) -> None:
        self._distributed.barrier()

    def begin(self, array: Array, role: Role) -> None:
        self._given = self._storage.put(array)
        kind, is_root = self._operation, self.rank == self._root
        own = as_tensor(self._given) if isinstance(self._given, np.ndarray) else self._given
        num = self._world_size
        size = {"all-gather": role.count, "reduce-scatter": role.count // num, "scatter": role.count // num}
        made = own.new_empty(size.get(kind, role.count))
        parts = list(own.chunk(num)) if kind == "scatter" and is_root else None
        rows = list(made.chunk(num)) if kind == "gather" and is_root else None
        self._own, self._made, self._parts, self._rows = own, made, parts, rows

    def run(self) -> None:
        distributed, own, made, root = self._distributed, self._own, self._made, self._root
        match self._operation:
            case "all-reduce":
                distributed.all_reduce(own)
            case "broadcast":
                distributed.broadcast(own, root)
            case "all-gather":
                distributed.all_gather_into_tensor(made, own)
            case "reduce-scatter":
                distributed.reduce_scatter_tensor(made, own)
            case "reduce":
                distributed.reduce(own, root)
            case "gather":
                distributed.gather(own, self._rows, root)
            case "scatter":
                distributed.scatter(made, self._parts, root)
            case "all-to-all":
                distributed.all_to_all_single(made, own)
            case "barrier":
                distributed.barrier()
        self._storage.finish()

    def result(self) -> Array:
        kind, is_root = self._operation, self.rank == self._root
        if kind == BARRIER or (kind in ("reduce", "gather") and not is_root):
            return np.empty(0)
        return self._storage.take(self._given) if kind in (*IN_PLACE, "reduce") else as_array(self._made)

    def stages_s(self, start_s: float, end_s: float) -> tuple[float, ...] | None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.barrier()  # else ranks that still sum would see closed connections
        self._distributed.destroy_process_group()
