"""Buckets for sparse gradients of embedding tables (`sparse=True`): sent dense, and sparse again for the script."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .buckets import Bucket, views


@dataclass(slots=True, eq=False)
class SparseBucket(Bucket):
    """The bucket of one table, on the host. The whole table is sent, with a mark per row, since rows differ by member.

    The result for the script has the rows that a counted member has used, in separate memory.
    """

    def begin_step(self) -> None:
        """Empty the bucket: zero the rows of the step before."""
        Bucket.begin_step(self)
        self.inputs[0][self.used_flags != 0] = 0
        self.used_flags.zero_()

    def add(self, index: int, gradient: Tensor, fraction: float, keep: float = 1.0) -> None:
        """As `Bucket.add`; `gradient` is sparse, or dense if the table has another use, too."""
        values = self.inputs[index]
        if keep != 1.0 and index not in self.unused:
            values.mul_(keep)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            (rows,) = gradient.indices().cpu()
            values.index_add_(0, rows, gradient.values().cpu(), alpha=fraction)
            self.used_flags[rows] = 1
        else:
            values.add_(gradient.cpu(), alpha=fraction)
            self.used_flags.fill_(1)
        self.unused.discard(index)
        self.missing.discard(index)

    def zero_empty(self) -> None:
        """Only clear `missing`: rows without a gradient are zero already."""
        self.missing.clear()

    def set_used_flags(self) -> None:
        """Does nothing: `add` marks rows."""

    def result_views(self) -> Sequence[Tensor | None]:
        """A sparse gradient, or None if no counted member has used any row."""
        result = torch.from_numpy(self.operation.result.view(f"i{self.flat.itemsize}")).view(self.flat.dtype)
        (values,) = views(result[: -len(self.used_flags)], self.parameters)
        rows = result[-len(self.used_flags) :].nonzero()[:, 0]
        found = None
        if len(rows):
            checks: Any = torch.sparse.check_sparse_tensor_invariants
            with checks(False):  # torch 2.11 warns where the argument alone says so
                found = torch.sparse_coo_tensor(rows[None], values[rows], values.shape, is_coalesced=True)
            found = found.to(self.parameters[0].device)
        self._handed_out = [found]
        return self._handed_out


def tables_of(module: nn.Module) -> set[int]:
    """The ids of the parameters in `module` whose gradients are sparse."""
    layers = [each for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.sparse]
    return {id(layer.weight) for layer in layers}
