"""Batches of a dataset, loaded ahead by torch's own DataLoader.

Which samples a peer is to train on is known only when the step before commits, and workers begin before that. So what
they load is a *forecast*: the slices that this peer would be given if the members stayed as they are. A batch is used
only if it is of the very samples that are asked for; whatever is wrong is thrown away, and forecast anew.
"""

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
    "the %d workers of this loader could not be started (%s: %s): ask for fewer (`num_workers=`), or allow more "
    "processes and files (`ulimit -u`, `ulimit -n`)"
)


class Forecast:
    """The sampler of the DataLoader: batches that will probably be asked for. Goes on after its end, if there is more.

    Attributes:
        in_hand: what was taken from it and has not come back as a batch: number of the forecast, samples.
        number: of the forecast, of which all before were wrong.
    """

    def __init__(self) -> None:
        self.in_hand: deque[tuple[int, Indices]] = deque()
        self.number = 0
        self._source: Iterator[Indices] = iter(())

    def is_right(self, indices: Indices) -> bool:
        """Whether the next batch will be of these samples."""
        return bool(self.in_hand) and self.in_hand[0] == (self.number, indices)

    def begin_anew(self, source: Iterator[Indices]) -> None:
        """Whatever is in hand is wrong."""
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

    A wrong forecast costs what the workers have in hand, which is waited for, in its order. Nothing here refers to who
    uses it, so that the workers end as soon as nobody does.
    """

    def __init__(self, dataset: Any, options: dict[str, Any]) -> None:
        """Nothing is loaded, and no worker started, before the first batch is asked for.

        Args:
            dataset: of map style.
            options: of torch's DataLoader, without those that say what a batch is.
        """
        self._forecast = Forecast()
        self._loader = DataLoader(dataset, batch_sampler=self._forecast, **options)
        self._iterator: Iterator[Any] | None = None
        self._begun_with = 0

    def renew(self) -> None:
        """An epoch begins: workers see what the script has set in the dataset since they began.

        Not if it wants `persistent_workers`, which with torch's DataLoader do not see that either.
        """
        if self._iterator is not None and self._has_copies and self._attributes() != self._begun_with:
            self.close()

    @property
    def _has_copies(self) -> bool:
        return self._loader.num_workers > 0 and not self._loader.persistent_workers

    def _attributes(self) -> int:
        return digest_of_attributes(self._loader.dataset, self._loader.collate_fn)

    def get(self, parts: Sequence[Indices], ahead: Iterator[Indices]) -> Any:
        """The batch of the first of `parts`; the others are asked for next, and then probably those of `ahead`.

        Raises:
            Exception: whatever the dataset raises for it; RuntimeError, if a worker dies of it.
            ShoalError: no worker can be started, of which no sample is the cause.
        """
        try:
            return self._get(parts[0], chain(parts, ahead))
        except (RuntimeError, ConnectionError, EOFError) as error:
            if not self._is_of_dead_worker(error):
                raise
            self.close()
        return self._get(parts[0], iter(parts[:1]))  # it may have died of a batch that comes later

    def _get(self, wanted: Indices, source: Iterator[Indices]) -> Any:
        forecast = self._forecast
        if not forecast.is_right(wanted):
            forecast.begin_anew(source)
        while True:
            if self._iterator is None:
                self._begun_with = self._attributes() if self._has_copies else 0
                self._iterator = self._start()
                WORKER_DEATHS.take_over()
            batch: Any = None
            failure: Exception | None = None
            try:
                with WORKER_DEATHS.raised_here():
                    batch = next(self._iterator)
            except StopIteration as end:
                if not forecast.in_hand:  # it had loaded all that there seemed to be
                    self._iterator = None
                    continue
                failure = RuntimeError(f"the dataset has raised {type(end).__name__}")
            except Exception as error:
                if self._is_of_no_batch(error):
                    self.close()
                    raise
                failure = error
            is_wanted = forecast.in_hand.popleft() == (forecast.number, wanted)
            if failure is not None and (is_wanted or self._is_of_dead_worker(failure)):
                raise failure
            if is_wanted:
                return batch

    def _start(self) -> Iterator[Any]:
        try:
            return iter(self._loader)
        except (OSError, RuntimeError, MemoryError) as error:  # of fork, of pipes, of the thread that pins
            if not self._loader.num_workers:
                raise
            words = self._loader.num_workers, type(error).__name__, error
            raise ShoalError(NOT_STARTED % words) from error

    def close(self) -> None:
        """End the workers. The next batch starts others."""
        end = getattr(self._iterator, "_shutdown_workers", None)  # else they wait for a collector, which waits 5 s
        self._iterator = None
        if end is not None:
            end()
        WORKER_DEATHS.forget()
        self._forecast.in_hand.clear()

    def _is_of_no_batch(self, error: Exception) -> bool:
        """Whether it may have come while a worker loads, which goes on: of `timeout=`, or of a signal's handler."""
        is_of_worker = str(error).startswith("Caught ") or self._is_of_dead_worker(error)
        return self._loader.num_workers > 0 and not is_of_worker

    def _is_of_dead_worker(self, error: Exception) -> bool:
        """Whether torch says so, or the batch came to an end on its way; not what the dataset raised in a worker."""
        if not self._loader.num_workers or str(error).startswith("Caught "):
            return False
        torn = isinstance(error, ConnectionError | EOFError)
        return torn or (isinstance(error, RuntimeError) and "DataLoader worker" in str(error))
