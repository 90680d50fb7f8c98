"""Batches of a dataset, loaded ahead by torch's own DataLoader.

The samples of a step are known only when the previous step commits, and workers begin before that. So they load a
*forecast*: the slices of this peer if the members stay the same. A batch is used only if it has exactly the requested
samples; wrong ones are discarded, and a new forecast is made.
"""

import multiprocessing
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

from torch.utils.data import DataLoader

from ..errors import ShoalError
from .attributes import digest_of_attributes
from .worker_deaths import WORKER_DEATHS

Indices = list[int]


NOT_STARTED: Final = (
    "could not start the %d workers of this loader (%s: %s): pass a smaller `num_workers=`, or allow more processes "
    "and files (`ulimit -u`, `ulimit -n`)"
)
NOT_IMPORTED: Final = (
    "a worker of this loader ended with exit code 1, which no sample causes: under start method {0} it imports the "
    "script and unpickles the dataset, and has said why it could not. Put what trains under `if __name__ == "
    "'__main__':`, and what the dataset needs above that; or pass `multiprocessing_context='fork'`"
)


class Forecast:
    """The sampler of the DataLoader: batches that will probably be requested. May continue after its end.

    Attributes:
        in_hand: taken by the DataLoader, and not returned as a batch yet: number of the forecast, samples.
        number: of the current forecast; all earlier ones were wrong.
    """

    def __init__(self) -> None:
        self.in_hand: deque[tuple[int, Indices]] = deque()
        self.number = 0
        self._source: Iterator[Indices] = iter(())

    def is_right(self, indices: Indices) -> bool:
        """Whether the next batch will have these samples."""
        return bool(self.in_hand) and self.in_hand[0] == (self.number, indices)

    def begin_anew(self, source: Iterator[Indices]) -> None:
        """Start a new forecast: all batches in hand are wrong."""
        self.number += 1
        self._source = source

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        indices = next(self._source)
        self.in_hand.append((self.number, indices))
        return indices


class Prefetch:
    """One peer's batches.

    A wrong forecast costs a wait for the batches that the workers have in hand, in order. This object has no reference
    to its user, so that the workers end when the user is gone.
    """

    def __init__(self, dataset: Any, options: dict[str, Any]) -> None:
        """Without workers: loading starts with the first request.

        Args:
            dataset: of map style.
            options: of torch's DataLoader, without those that define a batch.
        """
        self._forecast = Forecast()
        self._loader = DataLoader(dataset, batch_sampler=self._forecast, **options)
        self._iterator: Iterator[Any] | None = None
        self._begun_with = 0
        self._is_amid = False  # between a batch of the DataLoader and its end in the forecast

    def renew(self) -> None:
        """At the start of an epoch: restart workers if the script has changed the dataset since they began.

        Not with `persistent_workers`, which do not see changes in torch's DataLoader either.
        """
        if self._iterator is not None and self._has_copies and self._attributes() != self._begun_with:
            self.close()

    @property
    def _has_copies(self) -> bool:
        return self._loader.num_workers > 0 and not self._loader.persistent_workers

    def _attributes(self) -> int:
        return digest_of_attributes(self._loader.dataset, self._loader.collate_fn)

    def get(self, parts: Sequence[Indices], ahead: Iterator[Indices]) -> Any:
        """The batch of the first of `parts`; the others are requested next, and then probably those of `ahead`.

        Raises:
            Exception: of the dataset; RuntimeError, if a worker dies of this batch.
            ShoalError: no worker can be started, or import the script, which no sample has caused.
        """
        try:
            return self._get(parts[0], chain(parts, ahead))
        except (RuntimeError, ConnectionError, EOFError) as error:
            if not self._is_of_dead_worker(error):
                raise
            method = self._failed_method()
            self.close()
            if method:
                raise ShoalError(NOT_IMPORTED.format(method)) from error
        return self._get(parts[0], iter(parts[:1]))  # it may have died of a later batch

    def _get(self, wanted: Indices, source: Iterator[Indices]) -> Any:
        forecast = self._forecast
        if self._is_amid:  # a signal handler has raised: which batch comes next is not known
            self.close()
        if not forecast.is_right(wanted):
            forecast.begin_anew(source)
        while True:
            if self._iterator is None:
                self._begun_with = self._attributes() if self._has_copies else 0
                self._iterator = self._start()
                WORKER_DEATHS.take_over()
            batch: Any = None
            failure: Exception | None = None
            self._is_amid = True
            try:
                with WORKER_DEATHS.raised_here():
                    batch = next(self._iterator)
            except StopIteration as end:
                if not forecast.in_hand:  # the forecast was exhausted
                    self._iterator = None
                    continue
                failure = RuntimeError(f"the dataset raised {type(end).__name__}")
            except Exception as error:
                if self._is_of_no_batch(error) or not forecast.in_hand:
                    self.close()
                    raise
                failure = error
            except BaseException:  # Ctrl-C: which batch comes next is not known any more
                self.close()
                raise
            is_wanted = forecast.in_hand.popleft() == (forecast.number, wanted)
            self._is_amid = False
            if failure is not None and (is_wanted or self._is_of_dead_worker(failure)):
                raise failure
            if is_wanted:
                return batch

    def _start(self) -> Iterator[Any]:
        try:
            return iter(self._loader)
        except (OSError, RuntimeError, MemoryError) as error:  # from fork, pipes, or the pinning thread
            if not self._loader.num_workers:
                raise
            words = self._loader.num_workers, type(error).__name__, error
            raise ShoalError(NOT_STARTED % words) from error

    def _failed_method(self) -> str:
        """Start method of workers of which one has ended as if it could not import the script; empty: none has."""
        context = self._loader.multiprocessing_context or multiprocessing
        ends = [each.exitcode for each in getattr(self._iterator, "_workers", ())]
        method: str = context.get_start_method()
        return method if method != "fork" and 1 in ends else ""

    def close(self) -> None:
        """End the workers. The next batch starts new ones."""
        end = getattr(self._iterator, "_shutdown_workers", None)  # else the garbage collector waits 5 s for them
        self._iterator = None
        if end is not None:
            end()
        WORKER_DEATHS.forget()
        self._forecast.in_hand.clear()
        self._is_amid = False

    def _is_of_no_batch(self, error: Exception) -> bool:
        """Whether the error belongs to no batch, whose worker continues: from `timeout=`, or a signal handler."""
        is_of_worker = str(error).startswith("Caught ") or self._is_of_dead_worker(error)
        return self._loader.num_workers > 0 and not is_of_worker

    def _is_of_dead_worker(self, error: Exception) -> bool:
        """Whether torch reports a dead worker, or a batch was cut off in transfer; not for errors of the dataset."""
        if not self._loader.num_workers or str(error).startswith("Caught "):
            return False
        torn = isinstance(error, ConnectionError | EOFError)
        return torn or (isinstance(error, RuntimeError) and "DataLoader worker" in str(error))
