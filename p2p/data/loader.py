"""`Peer.loader`: epochs of a script, each a loop over this peer's part of each global batch."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collectives import Array

from ..errors import ShoalError
from .cutter import Cutter, check_is_enough, check_rounds
from .description import BATCHES, check, check_num_samples, check_options, check_settings, describe, in_words
from .failing import find_failing
from .prefetch import Indices, Prefetch
from .ranges import count, cut, difference, union
from .sample_tracker import SampleTracker
from .sampler import MIN_LOCAL_BATCH, Order, Plan, Sampler, SamplerState, Slice
from .sayings import AGAIN, ANOTHER_EPOCH, LEFT, NO_LENGTH, NOT_COUNTED, OTHER_BATCH, OVER, ROUNDS, UNUSED, explain_ends
from .timed import TimedSampler

logger = logging.getLogger("p2p")

NUM_OTHERS: Final = 32
"""Number of samples of the dataset that are tried as substitutes, if a batch has none that can be loaded."""

MOST_EMPTY: Final = 10_000
"""A script that iterates a finished loader this often loops forever, as `while True: yield from loader` does."""


@dataclass(frozen=True, slots=True)
class PeerInterface:
    """Interface of a peer for its loaders.

    Attributes:
        peer_id: of this peer.
        share: of this peer.
        enter: waits for a seat.
        begin: called when the script asks for its next batch; returns the last committed step.
        gather: runs an operation of its own; returns the rows of the members on the last receipt, in their order.
    """

    peer_id: str
    share: SampleTracker
    enter: Callable[[], object]
    begin: Callable[[], int]
    gather: Callable[[Array, str], Array]


class Loader:
    """This peer's part of each global batch, epoch by epoch. Created by `Peer.loader`.

    Iterating it is one epoch, or the rest of the epoch that the swarm is in:

        for epoch in loader.epochs():
            for batch in loader:
                ...

    A loop left by `break` skips no samples: the next one continues with the rest of its epoch. See `end_epoch`.

    Attributes:
        dataset: as given.
    """

    def __init__(
        self,
        script: PeerInterface,
        dataset: Any,
        *,
        max_local_batch: int | None,
        inner_steps: int | None = None,
        round_s: float | None = None,
        on_poison: str,
        options: dict[str, Any],
        **settings: Any,
    ) -> None:
        # See `Peer.loader`; `settings` are of the `Sampler`, without the number of samples.
        check_options(options)
        check_settings(settings, max_local_batch, on_poison)
        check_rounds(inner_steps, round_s, script.share, max_local_batch, drop_last=settings["drop_last"])
        self.dataset = dataset
        self._inner_steps = inner_steps
        words = in_words(settings, inner_steps, round_s)
        dense = Sampler(check(dataset), **settings)
        settings |= {name: settings[name] * (inner_steps or 1) for name in BATCHES & settings.keys()}
        self._sampler = (Sampler if round_s is None else TimedSampler)(check(dataset), **settings)
        if self._sampler.drop_last and self._sampler.num_samples < self._sampler.global_batch:
            raise ValueError(
                f"drop_last leaves no batch: an epoch has {self._sampler.num_samples} samples, fewer than "
                f"global_batch, {self._sampler.global_batch}. Pass a smaller global_batch"
            )
        self._cutter = Cutter(self._sampler, Order(self._sampler), max_local_batch, inner_steps)
        self._script, self._share = script, script.share
        self._what = f"{self._sampler.num_samples} samples ({describe(dataset)})"
        self._track = self._share.make(self._sampler, f"{self._what}, {words}", is_cut=max_local_batch is not None)
        self._track.round_s, self._track.dense = round_s, dense
        self._dense_cutter = Cutter(dense, self._cutter.order, max_local_batch)
        self._max_local_batch = max_local_batch
        self._prefetch = Prefetch(dataset, options)
        self._on_poison = on_poison
        self._num_aside = len(self._track.state.poisoned)
        self._turn = object()
        self._entered, self._num_loads = -1, 0
        self._named = -1, 0  # the epoch, by `epochs`, and how many loads before
        self._has_advised = self._has_said_left = self._has_said_unused = self._has_said_shorter = False
        self._has_said_again, self._counted_before, self._num_empty = False, 0, 0
        self._passed_over: SamplerState | None = None

    def __len__(self) -> int:
        """Steps of an epoch without deaths; steps of `optimizer`, if a step of the swarm is a round.

        For timed rounds: of a peer as fast as the mean of all.

        Raises:
            TypeError: with `batch_per_peer`, since the length is not known in advance.
        """
        if self._sampler.batch_per_peer is not None:
            raise TypeError(NO_LENGTH)
        return self._cutter.num_steps

    @property
    def epoch(self) -> int:
        """The epoch that the swarm is in, from 0; when all are over, `epochs`, or more if a checkpoint had more.

        When a batch begins, it is that of the batch; after the last batch of an epoch it is the next one.
        """
        return self._sampler.epoch(self._sampler.drop_tail(self._track.state))

    def epochs(self) -> Iterator[int]:
        """The remaining epochs, the current one first.

        An epoch that was left early is repeated with the rest of its samples, unless none of it was trained on. A peer
        that receives the members' state within an epoch may continue in a later one, `epoch`; it logs that.

        Yields:
            The number of the epoch, from 0.

        Raises:
            As `Loader.__iter__`.
        """
        self._script.enter()
        self._has_advised = True
        if self.epoch >= self._sampler.epochs:
            self._say_over()
        try:
            while (epoch := self.epoch) < self._sampler.epochs:
                before, self._named = self._track.state, (epoch, self._share.num_loads)
                yield epoch
                self._share.end_round()
                if self._track.state == before:
                    if not self._has_said_unused:
                        logger.warning("%s", UNUSED.format(epoch, count(self._sampler.left(before))))
                    self._has_said_unused = True
                    self._track.state = self._sampler.skip_to(before, epoch + 1)
                elif self.epoch == epoch:
                    self._say_left(epoch)
        finally:
            self._named = -1, 0

    def end_epoch(self) -> None:
        """Skip the rest of the epoch that was iterated last: call this on every peer, after the same step.

        A batch that was handed out belongs to the rest, if no step has used it.
        """
        self._share.pass_over(self._track)
        self._share.end_round()
        self._follow()
        self._track.state = self._sampler.skip_to(self._track.state, self._entered + 1)

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of it.

        Raises:
            JoinRefused, JoinTimeout, RegistryError, RemovedFromView, QuorumLost: as `Peer.wait_view`, called first.
            OperationMismatch, ReplicasDiverged, StepTimeout: a backward pass has raised, and the step that it had begun
                cannot be withdrawn.
            ValueError: in rounds, a global batch has fewer samples than there are members.
            ShoalError: a batch was asked for before the step of the last one was committed, or a micro-batch had no
                backward pass; or the dataset has another number of samples than when the loader was made.
            TooSlow: all wait for this peer, and it is configured to leave then (`slow_peers` of `p2p.join`).
            Any exception of the dataset, unless a single sample fails and `max_attempts` is not 0.
        """
        self._turn = turn = object()
        share, track = self._share, self._track
        check_num_samples(self.dataset, self._sampler.num_samples)
        if share.rounds is not None and self._inner_steps is None and track.round_s is None:
            raise ValueError(ROUNDS)
        self._script.enter()
        share.end_round()
        done = self._script.begin()
        if share.rounds is not None and self._entered < 0:
            members = {*share.contributors, self._script.peer_id}
            check_is_enough(self._dense_cutter.sampler.batch_of(len(members)), members)
        if self._entered < 0 and self._sampler.batch_per_peer is None:
            for each in explain_ends(share.schedule_ends, self._sampler.epochs * len(self)):
                logger.warning("%s", each)
        self._advise()
        self._enter(self.epoch)
        self._prefetch.renew()
        self._tell_of_passed_over()
        track.is_spent = True
        try:
            while (epoch := self.epoch) < self._sampler.epochs:
                self._follow()
                if epoch != self._entered:
                    return  # the script's actions between two epochs belong to the state
                before, done = done, self._script.begin()
                if share.num_loads != self._num_loads:
                    continue  # a member's state was loaded
                if not (track.is_spent or share.is_void):
                    share.check_model()
                    raise ShoalError(NOT_COUNTED if done == before else OTHER_BATCH)
                plan = share.plan(track)
                part = None if share.is_void else plan.slices.get(self._script.peer_id)
                share.begin_loader_batch(track, part)
                self._counted_before = share.num_samples
                self._tell_of_failed()
                yield from self._micro_batches(plan, part)
                share.end_round()
            self._prefetch.close()
        finally:
            if self._turn is turn:  # and no other iteration has begun
                share.end_iteration(track)

    def _follow(self) -> None:
        """After a member's state was loaded, continue in its epoch, to end where the members' loops end."""
        if self._num_loads != self._share.num_loads:
            self._enter(self._track.loaded_in)

    def _enter(self, epoch: int) -> None:
        self._entered, self._num_loads = epoch, self._share.num_loads
        named, num_loads = self._named
        if named not in (-1, epoch) and num_loads != self._num_loads:
            logger.warning("%s", ANOTHER_EPOCH.format(epoch, named))

    def evaluate(self) -> Iterator[Any]:
        """This peer's part of the whole dataset, in its order: each sample is evaluated by one member.

        The dataset is split over the members on the last receipt. When all have finished, an operation gathers what
        each has evaluated; the parts of members that are gone are split again, until none are left. Costs no training
        step, and consumes no samples. An observer receives two samples; its results do not count.

            for batch in valid.evaluate():
                ...
            loss, number = peer.combine(loss, samples=number)

        Yields:
            Batches of at most `max_local_batch` samples, or this peer's part of `global_batch`, or `batch_per_peer`.

        Raises:
            OperationMismatch: a member evaluates another dataset, or none; raised on every member.
            JoinRefused, JoinTimeout, RegistryError, QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout,
                ShoalError: as `Peer.barrier`.
            Any exception of the dataset.
        """
        self._script.enter()
        share, peer_id = self._share, self._script.peer_id
        share.end_round(is_left=False)
        if share.is_amid_round and not share.is_anchor_shown:
            raise ShoalError(
                "evaluate was called in the middle of a round, where each peer has its own parameters: call it after "
                "a round (`model.has_committed`) or inside `with model.anchor():`"
            )
        check_num_samples(self.dataset, self._sampler.num_samples)
        self._prefetch.renew()
        left = union([(0, self._sampler.num_samples)])
        while left:
            members = share.contributors
            rank = members.index(peer_id) if peer_id in members else -1
            share.only_looks_on = rank < 0
            start = count(left) * rank // len(members) if rank >= 0 else 0
            stop = count(left) * (rank + 1) // len(members) if rank >= 0 else MIN_LOCAL_BATCH
            mine = [p for first, number in cut(left, start, stop - start) for p in range(first, first + number)]
            size = self._max_local_batch or -(-self._dense_cutter.sampler.batch_of(len(members)) // len(members))
            for at in range(0, len(mine), size):
                yield self._prefetch.get([mine[at : at + size] for at in range(at, len(mine), size)], iter(()))
            rows = self._script.gather(np.array([start, stop - start], np.int64), f"an evaluation of {self._what}")
            told = zip(share.contributors, rows.tolist(), strict=True)
            done = union(part for who, row in told if who in members for part in cut(left, *row))
            left = difference(left, done)

    def _micro_batches(self, plan: Plan, part: Slice | None) -> Iterator[Any]:
        share, peer_id = self._share, self._script.peer_id
        cutter = self._dense_cutter if share.is_dense else self._cutter
        parts = cutter.cut(plan, peer_id if part else "")
        ahead = cutter.ahead(self._track.state, share.planned_for, peer_id)
        total = sum(map(len, parts))
        if share.in_rounds and not self._has_said_shorter and (why := cutter.explain_shorter(plan, len(parts))):
            logger.warning("%s", why)
            self._has_said_shorter = True
        for number, indices in enumerate(parts, start=1):
            is_last = number == len(parts)
            try:
                batch = self._prefetch.get(parts[number - 1 :], ahead)
            except ShoalError:  # of no sample
                raise
            except Exception as error:
                indices, others = self._substitute(plan, part, indices, error)
                parts = [*parts[:number], *[others] * (len(parts) - number)]
                if not indices:
                    return
                batch = self._prefetch.get([indices], iter(()))
                is_last = is_last or not (share.in_rounds and others)
            share.begin_micro_batch(len(indices) / total, is_last=is_last, num_samples=len(indices))
            yield batch
            if is_last or share.ends_round_here(self._track):
                return
            if not (share.parts.is_used or share.is_void or share.in_rounds):
                raise ShoalError("a micro-batch had no backward pass: call backward once per batch")

    # Samples that cannot be loaded.

    def _substitute(
        self, plan: Plan, part: Slice | None, indices: Indices, error: Exception
    ) -> tuple[Indices, Indices]:
        """Substitutes for `indices`, and for all batches after them until the step ends.

        These are a few other samples, which do not count: the script runs its step with them, and this peer adds
        nothing. In a timed round: the samples before the one that failed, and none after it.

        Raises:
            Exception: `error`, if none of `indices` fails alone, or all others, too.
        """
        in_batch = self._cutter.order.indices(plan.batch)
        others = [*in_batch, *range(min(self._sampler.num_samples, NUM_OTHERS))]
        found = find_failing(self._load_first, indices, others)
        if found.index is None or len(found.good) < MIN_LOCAL_BATCH or not self._sampler.max_attempts:
            self._prefetch.close()
            raise error
        if part is None:
            return found.good, found.good
        what = "this peer cannot load sample %d, so it"
        place = indices.index(found.index)
        if self._share.end_in_front(place):
            logger.warning(f"{what} ends its round before that sample: %s", found.index, found.why)
            return indices[:place] * (MIN_LOCAL_BATCH if place == 1 else 1), []
        self._share.fail(in_batch.index(found.index) - part.start)
        logger.warning(f"{what} adds nothing to this step: %s", found.index, found.why)
        return found.good, [] if self._share.round_s else found.good

    def _load_first(self, indices: Indices) -> Any:
        """Load the first of several samples that are tried one by one."""
        return self._prefetch.get([[index] for index in indices], iter(()))

    def _tell_of_failed(self) -> None:
        """Report samples that were set aside in the last step, the same on every peer."""
        aside = self._track.state.poisoned
        new, self._num_aside = aside[self._num_aside :], len(aside)
        if not new:
            return
        which = ", ".join(map(str, self._cutter.order.indices(union((position, 1) for position in new))))
        text = f"sample {which} is left out of epoch {new[0] // self._sampler.num_samples}: no peer could load it"
        if self._on_poison == "raise":
            raise ShoalError(f"{text}; pass on_poison='skip' to continue without it")
        logger.warning("%s", text)

    def _tell_of_passed_over(self) -> None:
        """Warn of a batch that is repeated while steps count those of another loader; one look at it is no mistake."""
        state = self._track.state
        if not self._track.is_spent and self._share.num_samples > self._counted_before and not self._has_said_again:
            self._has_said_again = state == self._passed_over
            self._passed_over = state
            if self._has_said_again:
                logger.warning("%s", AGAIN)

    def _advise(self) -> None:
        """Warn once if a loop is not the whole epoch that it looks like."""
        epoch, track = self.epoch, self._track
        if epoch >= self._sampler.epochs:
            self._say_over()
            return
        began = epoch * self._sampler.num_samples
        if self._has_advised or (track.state.position <= began and epoch == self._entered + 1):
            return
        self._has_advised = True
        if self._entered >= 0:
            self._say_left(epoch)
        elif 1 < self._sampler.epochs > epoch:
            logger.warning(
                "this loop starts in epoch %d, where the swarm is, and ends with the swarm's last epoch. To get the "
                "right epoch numbers, write: for epoch in loader.epochs(): for batch in loader",
                epoch,
            )

    def _say_over(self) -> None:
        """Warn once that all epochs are over, unless the swarm had gone on to another loader before this peer."""
        self._num_empty += 1
        if self._num_empty > MOST_EMPTY:
            raise ShoalError(OVER.format(self._sampler.epochs, f"{MOST_EMPTY} loops over it were empty"))
        if self._num_empty == 1 and not (self._entered < 0 and self._share.tracks.has_later(self._track)):
            logger.warning("%s", OVER.format(self._sampler.epochs, "this loop is empty"))

    def _say_left(self, epoch: int) -> None:
        if not self._has_said_left:
            self._has_said_left = True
            logger.warning("%s", LEFT.format(epoch))
