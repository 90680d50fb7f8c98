"""What the script of a case sees: a loader, a wrapper, and a place for its losses. In one process, and under DDP."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .data import GLOBAL_BATCH, NUM_SAMPLES, dataset

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class NotThere(Exception):
    """DDP has nothing of the kind."""


class Run:
    """How a script runs.

    Attributes:
        rank: of this process.
        world_size: how many processes train.
        is_alone: one process has all samples.
        rows: step, loss and weight, as the script has logged them.
    """

    rank = 0
    world_size = 1
    is_alone = False

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float]] = []
        self._model: nn.Module | None = None
        self._parts: tuple[Any, ...] = ()
        self._kept: dict[str, Any] = {}
        self._num_batches = 0
        self._num_last = 0

    def wrap(
        self,
        model: nn.Module | dict[str, nn.Module],
        optimizer: Any,
        *,
        extra: Sequence[Any] = (),
        ddp: Mapping[str, Any] = NOTHING,
        **options: Any,
    ) -> Any:
        """What the script calls: one model, or several by name; `ddp` and `options` are for DDP and for us."""
        if isinstance(model, dict):
            self._model, self._parts = nn.ModuleDict(model), (*optimizer.values(), *extra)
        else:
            self._model, self._parts = model, (optimizer, *extra)
        return self._wrap(model, optimizer, extra, ddp, options)

    def loader(self, data: str = "points", number: int = NUM_SAMPLES, **options: Any) -> Iterator[Any]:
        """This process' part of each global batch; `options` are of `Peer.loader`."""
        for batch in self._batches(data, number, options):
            self._begin(len(batch[0]))
            yield batch

    def own_loader(self, data: str = "points", number: int = NUM_SAMPLES, batch: int = GLOBAL_BATCH) -> Iterator[Any]:
        """The same parts, by a sampler of the script's own, which knows rank and world size."""
        for part in self._in_order(data, number, batch):
            self._begin(len(part[0]))
            yield part

    def log(self, loss: Any) -> None:
        """The mean loss of a step, after its update."""
        self.rows.append((self._num_batches, float(loss), self._num_last))

    def keep(self, **values: Any) -> None:
        """More that has to be equal at the end."""
        self._kept |= values

    def mean(self, value: Any) -> float:
        """Over all processes."""
        return float(value)

    def make_largest(self, values: Tensor) -> None:
        """The largest of all processes, in each of them."""

    def state(self) -> dict[str, Any]:
        """All that the next step would depend on, by name: lists of numbers, and plain values."""
        assert self._model is not None, "the script has wrapped no model"
        named = dict(self._model.named_parameters())
        others = {"buffer": dict(self._model.named_buffers()), "extra": self._kept}
        others |= {f"part {i}": part.state_dict() for i, part in enumerate(self._parts)}
        others["mask"] = {name: parameter.requires_grad for name, parameter in named.items()}
        others["strides"] = {name: list(parameter.stride()) for name, parameter in named.items()}
        return dict(flat({"parameter": named, **others}, ""))

    def _wrap(self, model: Any, optimizer: Any, extra: Any, ddp: Mapping[str, Any], options: Any) -> Any:
        raise NotImplementedError

    def _batches(self, data: str, number: int, options: Any) -> Iterator[Any]:
        raise NotImplementedError

    def _begin(self, size: int) -> None:
        """A batch of so many samples."""
        self._num_batches += 1
        self._num_last = size

    def _in_order(self, data: str, number: int, batch: int = GLOBAL_BATCH) -> Iterator[Any]:
        for start in range(0, number, batch):
            size = min(batch, number - start)
            bounds = [start + size * rank // self.world_size for rank in (self.rank, self.rank + 1)]
            yield tuple(tensor[slice(*bounds)] for tensor in dataset(data).tensors)


def flat(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Leaves of a tree by their paths; tensors as lists."""
    if isinstance(node, Tensor):
        if node.layout is not torch.strided:
            node = node.to_dense()
        yield path, (torch.view_as_real(node) if node.is_complex() else node).detach().flatten().tolist()
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list | tuple) and not all(isinstance(each, int | float) for each in node):
        for index, value in enumerate(node):
            yield from flat(value, f"{path}.{index}")
    else:
        is_plain = isinstance(node, list | tuple | int | float | str | None)
        yield path, list(node) if isinstance(node, tuple) else node if is_plain else type(node).__name__


class OneProcess(nn.Module):
    """Has the methods of `p2p.DataParallel`, and nobody to talk to."""

    has_committed = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def num_samples(self, number: int) -> None:
        pass

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def skip_step(self) -> None:
        self.module.zero_grad()

    def refresh(self) -> None:
        pass

    def reduce_gradients(self, gradients: Any) -> Any:
        needed = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        named = dict(self.module.named_parameters())
        pairs = gradients.items() if isinstance(gradients, Mapping) else zip(needed, gradients, strict=True)
        for key, gradient in pairs:
            (named[key] if isinstance(key, str) else key).grad = gradient
        return gradients


class Several:
    """Wrappers by name, with the methods of one `p2p.DataParallel` of several models."""

    has_committed = True

    def __init__(self, wrapped: Mapping[str, Any]) -> None:
        self._wrapped = wrapped

    def __getitem__(self, name: str) -> Any:
        return self._wrapped[name]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        with ExitStack() as stack:
            for each in self._wrapped.values():
                stack.enter_context(each.no_sync())
            yield

    def skip_step(self, *models: str) -> None:
        for name in models:
            self._wrapped[name].skip_step()

    def reduce_gradients(self, gradients: Mapping[str, Any]) -> Any:
        return {name: self._wrapped[name].reduce_gradients(each) for name, each in gradients.items()}


def each_of(model: Any, wrap: Callable[[nn.Module], Any]) -> Any:
    """`model` wrapped, or the models in it."""
    return Several({name: wrap(each) for name, each in model.items()}) if isinstance(model, dict) else wrap(model)


class Alone(Run):
    """One process, which has the samples of all in one batch."""

    is_alone = True

    def __init__(self, batches: Sequence[Sequence[int]] = ()) -> None:
        """`batches`: indices of the samples of each; none: in order."""
        super().__init__()
        self._indices = batches

    def _wrap(self, model: Any, optimizer: Any, extra: Any, ddp: Mapping[str, Any], options: Any) -> Any:
        return each_of(model, OneProcess)

    def _batches(self, data: str, number: int, options: Any) -> Iterator[Any]:
        if not self._indices:
            yield from self._in_order(data, number)
        for indices in self._indices:
            yield tuple(tensor[list(indices)] for tensor in dataset(data).tensors)


class OfDdp(DistributedDataParallel):
    """Has the methods of `p2p.DataParallel`, as far as DDP has a counterpart."""

    has_committed = True

    def num_samples(self, number: int) -> None:
        pass

    def skip_step(self) -> None:
        raise NotThere("nothing like skip_step")

    def refresh(self) -> None:
        raise NotThere("nothing like refresh")

    def reduce_gradients(self, gradients: Any) -> Any:
        raise NotThere("nothing like reduce_gradients")


class Ddp(Run):
    """One of the processes of DistributedDataParallel over Gloo."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.rank, self.world_size = rank, world_size

    def _wrap(self, model: Any, optimizer: Any, extra: Any, ddp: Mapping[str, Any], options: Any) -> Any:
        return each_of(model, partial(OfDdp, **ddp))

    def _batches(self, data: str, number: int, options: Any) -> Iterator[Any]:
        yield from self._in_order(data, number)

    def mean(self, value: Any) -> float:
        total = torch.tensor(float(value), dtype=torch.float64)
        torch.distributed.all_reduce(total)
        return float(total) / self.world_size

    def make_largest(self, values: Tensor) -> None:
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
