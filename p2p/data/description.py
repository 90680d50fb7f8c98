"""Description of a dataset, equal on all peers that have the same one."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any, Final

import numpy as np
import torch
import xxhash
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from ..errors import DatasetRefused, ShoalError
from .sampler import MIN_LOCAL_BATCH
from .sayings import OURS

BATCHES: Final = frozenset({"global_batch", "batch_per_peer"})
"""Settings of which a loader needs exactly one."""

NUM_ROWS: Final = 16
"""Number of samples of an array that enter the digest, evenly spaced."""


def check_num_samples(dataset: Any, num_samples: int) -> None:
    """Raise ShoalError if the number of samples has changed, since that decides which sample is in which batch."""
    if len(dataset) != num_samples:
        raise ShoalError(
            f"{type(dataset).__name__} has {len(dataset)} samples, but had {num_samples} when this loader was made: "
            "make a new loader for it, on every peer after the same step"
        )


def check(dataset: Any) -> int:
    """The number of samples.

    Raises:
        DatasetRefused: the dataset cannot be read by index, or is ambiguous.
        ValueError: it is empty.
    """
    name = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise DatasetRefused(
            "a loader takes a dataset, not a DataLoader: pass the DataLoader's dataset, and settings such as "
            "num_workers and collate_fn by name; global_batch replaces batch_size"
        )
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DatasetRefused(
            f"{name} has no samples that can be read by index, so the samples of a dead peer could not go to others: "
            "give it `__len__` and `__getitem__` (a map-style dataset), or train with a DataLoader of your own that "
            "gives each peer its part, and call `model.num_samples(n)`"
        )
    if isinstance(dataset, tuple) and any(isinstance(part, torch.Tensor | np.ndarray) for part in dataset):
        raise DatasetRefused(
            f"a tuple of {len(dataset)} arrays would be a dataset of {len(dataset)} samples: pass "
            "torch.utils.data.TensorDataset(*arrays), whose samples have a part of each array"
        )
    if not len(dataset):
        raise ValueError(f"{name} has no samples")
    return len(dataset)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError if options for torch's DataLoader define a batch."""
    for name, why in OURS.items():
        if name in options:
            raise TypeError(f"{name} cannot be passed to peer.loader: {why}")


def check_settings(settings: Mapping[str, Any], max_local_batch: int | None, on_poison: str) -> None:
    """Raise ValueError if a number given to a loader is out of range; `settings`: of its sampler."""
    for name, value in {**settings, "max_local_batch": max_local_batch or 1}.items():
        if not isinstance(value, Integral):  # a bool is one, too
            raise TypeError(f"{name} must be a whole number, is {value!r}")
    if on_poison not in ("skip", "raise"):
        raise ValueError(f"on_poison must be skip or raise, is {on_poison!r}")
    if settings["max_attempts"] < 0:
        raise ValueError(f"max_attempts must be at least 0, is {settings['max_attempts']}")
    if len(settings.keys() & BATCHES) != 1:
        raise TypeError(
            "a loader needs one of global_batch= (samples per step over all peers, however many there are) and "
            "batch_per_peer= (samples per step for each peer)"
        )
    for name, least in (("global_batch", 1), ("batch_per_peer", MIN_LOCAL_BATCH), ("epochs", 1), ("seed", 0)):
        if settings.get(name, least) < least:
            raise ValueError(f"{name} must be at least {least}, is {settings[name]}")
    if "batch_per_peer" in settings and settings["drop_last"]:
        raise ValueError(
            "drop_last needs global_batch: with batch_per_peer the rest of an epoch depends on the number of peers, "
            "and is shared out among them"
        )
    if max_local_batch is not None and max_local_batch < 1:
        raise ValueError(f"max_local_batch must be at least 1, is {max_local_batch}")


def in_words(settings: Mapping[str, Any], inner_steps: int | None, round_s: float | None) -> str:
    """Text of a loader's settings that must be equal on all peers; `settings`: of its sampler."""
    words = ", ".join(f"{name}={value}" for name, value in settings.items())
    words += "" if inner_steps is None else f", inner_steps={inner_steps}"
    return words if round_s is None else f"{words}, round_s={round_s:g}"


def describe(dataset: Any) -> str:
    """Type, and 32 bits of a digest of the contents, as far as those are known without loading samples."""
    digest = xxhash.xxh3_64()
    _add(dataset, digest)
    return f"{type(dataset).__name__} {digest.hexdigest()[:8]}"


def _add(dataset: Any, digest: xxhash.xxh3_64) -> None:
    digest.update(f"{type(dataset).__qualname__} {len(dataset)};".encode())
    if isinstance(dataset, TensorDataset):
        for tensor in dataset.tensors:
            _add(tensor, digest)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            _add(part, digest)
    elif isinstance(dataset, Subset):
        _add(dataset.dataset, digest)
        digest.update(np.asarray(dataset.indices, np.int64).tobytes())
    elif isinstance(dataset, torch.Tensor):
        digest.update(f"{dataset.dtype} {tuple(dataset.shape)};".encode())
        for row in dataset[_rows(len(dataset))].detach().cpu():
            digest.update(row.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(dataset, np.ndarray) and not dataset.dtype.hasobject:
        digest.update(f"{dataset.dtype} {dataset.shape};".encode())
        digest.update(np.ascontiguousarray(dataset[_rows(len(dataset))]).tobytes())
    elif isinstance(dataset, list | tuple):
        chosen = [dataset[row] for row in _rows(len(dataset))]
        digest.update("".join(repr(each) for each in chosen if isinstance(each, int | float | str | bytes)).encode())
    elif isinstance(known := getattr(dataset, "_fingerprint", None), str):  # Hugging Face's datasets
        digest.update(known.encode())


def _rows(length: int) -> list[int]:
    return sorted({i * (length - 1) // (NUM_ROWS - 1) for i in range(NUM_ROWS)})
