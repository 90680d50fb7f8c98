"""Gradients of tables of which each sample uses a few rows (`sparse=True`): as sparse at the end as they came."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .buckets import Bucket, views


@dataclass(slots=True, eq=False)
class RowBucket(Bucket):
    """Of one table. It travels whole, since nobody knows the rows of the others, with a mark for each row. On the host.

    What is handed out has the rows that somebody who counts has used, in memory of its own.
    """

    def begin_step(self) -> None:
        """Nothing is in it: it is zero where the step before has used rows."""
        Bucket.begin_step(self)
        self.inputs[0][self.marks != 0] = 0
        self.marks.zero_()

    def add(self, index: int, gradient: Tensor, fraction: float, keep: float = 1.0) -> None:
        """As for others; `gradient` is sparse, or dense where the table has another use, too."""
        values = self.inputs[index]
        if keep != 1.0 and index not in self.empty:
            values.mul_(keep)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            (rows,) = gradient.indices().cpu()
            values.index_add_(0, rows, gradient.values().cpu(), alpha=fraction)
            self.marks[rows] = 1
        else:
            values.add_(gradient.cpu(), alpha=fraction)
            self.marks.fill_(1)
        self.empty.discard(index)
        self.missing.discard(index)

    def zero_empty(self) -> None:
        """It is zero where nothing was added."""
        self.missing.clear()

    def mark(self) -> None:
        """Rows are marked as they come."""

    def hand_out(self) -> Sequence[Tensor | None]:
        """A sparse gradient, or None where nobody who counts has used any row."""
        result = torch.from_numpy(self.operation.result.view(f"i{self.flat.itemsize}")).view(self.flat.dtype)
        (values,) = views(result[: -len(self.marks)], self.parameters)
        rows = result[-len(self.marks) :].nonzero()[:, 0]
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
