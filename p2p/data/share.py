"""What this peer adds to the open step, and what of each loader's samples is used up: folded over receipts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import xxhash

from ..errors import ShoalError
from ..step.collective import AllGather
from ..step.operation import Operation
from ..step.receipts import FAILS_BEHIND, NO_SAMPLES, UNKNOWN_SAMPLE, WEIGHT, Counts, Receipt
from .counting import ONLY_COUNTS, count_samples, whole_number
from .located import located, unused
from .own_data import UNUSED
from .ranges import count, union
from .round_end import AMID_TIMED, RoundEnd
from .sampler import Order, Plan, Sampler, Slice
from .track import CUT, Track, Tracks, unpack_samples

PEER_ID: Final = attrgetter("peer_id")


class Share:
    """Of one peer, in the open step: samples of a loader of ours, or as many as the script says.

    A slice of a loader weighs its samples, or what the script says, in one backward pass or in several micro-batches.
    A batch may have several updates, each a step of its own: all weigh the same, and the first one counts the samples.

    Attributes:
        contributors: peer_ids of the members on the last receipt, in rank order.
        planned_for: as these were on the last receipt of training, or else on the first: who has a slice of the next
            batch. Members may change in an operation that a script calls between a batch and its step.
        fraction: of this peer's weight in the micro-batches so far, or of all of them, which the current one has.
        keep: what the micro-batches before it are multiplied by.
        is_last: no further micro-batch of the step follows; is_used: the current one had a backward pass.
        is_void: this peer adds nothing to the open step; is_skipped: since its script has said so.
        is_behind_batch: the last step was of a loader's batch, and neither was another one asked for since, nor has a
            pass begun. What the script does meanwhile (a schedule) belongs to the state, a forward pass evaluates.
        num_loads: how often a member's state took the place of all this.
        num_trained: committed steps that were training; num_batches: parts of slices that the script was given.
        num_samples: committed, of all members.
        run: the first lineage of it, which all lineages that go on with its state have in common; empty: not known.
        rounds: where a step is a round of local steps: of a slice counts what was handed out before its end.
        is_amid_round: the parameters are this peer's alone; is_anchor_shown: in its middle they are what all have.
        is_resuming: what is loaded now is of a checkpoint, and not of a member.
        num_unused: forward passes of the last one that had no backward pass, on samples of the script's own.
        dense_steps: where `rounds` is there: so many steps of training come before them, of one batch each.
        check_model: raises ShoalError if the model is not the one that was wrapped.
        change_model: makes those changes of the model that its script has planned, and that are due.
        how: the model is trained in this step, as of `Watch.in_words`.
        schedule_ends: after how many steps a schedule of the script raises, by its name.
        only_looks_on: what this peer has evaluated last, others have, too: it had no seat when the dataset was split.
    """

    def __init__(self) -> None:
        self.contributors = self.planned_for = tuple[str, ...]()
        self.fraction = self.keep = 1.0
        self.is_last = True
        self.is_void = self.is_used = self.only_looks_on = self.is_resuming = self.is_behind_batch = False
        self.how, self.run, self.schedule_ends = "", b"", dict[str, int]()
        self.check_model: Callable[[], None] = lambda: None
        self.change_model: Callable[[], None] = lambda: None
        self.rounds: RoundEnd | None = None
        self.dense_steps = 0
        self.num_loads = self.num_trained = self.num_samples = self.num_unused = self.num_batches = 0
        self._tracks = Tracks()
        self._current: Track | None = None
        self._slice: Slice | None = None
        self._number, self._usual_updates = 1, 0
        self._accumulated = self._joined = self._num_updates = self._num_given = 0
        self._is_weighed = self.is_skipped = self._fails_behind = self.is_amid_round = self.is_anchor_shown = False

    # Loaders.

    @property
    def epochs(self) -> tuple[int, ...]:
        """In which each loader is that this peer's script has made."""
        return self._tracks.epochs

    def make(self, sampler: Sampler, description: str, *, is_cut: bool = False) -> Track:
        """The next loader of the script, which may be under way in the swarm.

        Raises:
            ShoalError: there is one that hands out the same samples in the same order.
            JoinRefused: at the swarm's members this loader is another one.
        """
        return self._tracks.make(sampler, description, is_cut=is_cut)

    def has_later(self, track: Track) -> bool:
        """Whether scripts have made other loaders behind this one, here or at members whose state was loaded."""
        return self._tracks.has_later(track)

    def plan(self, track: Track) -> Plan:
        """The next step's, if it is one of this loader."""
        assert track.sampler is not None
        sampler = track.dense if self.is_dense and track.dense is not None else track.sampler
        if track.planned is None or track.planned[:3] != (track.state, self.planned_for, sampler):
            track.state = track.sampler.settle(track.state)
            plan = sampler.plan(track.state, self.planned_for)
            track.planned = track.state, self.planned_for, sampler, plan
        return track.planned[3]

    def hand_out(self, track: Track, part: Slice | None) -> None:
        """The script is given a batch of this loader, which adds `part` to the open step."""
        self._current, self._slice, track.is_spent = track, part, False
        track.is_left = self._is_weighed = self._fails_behind = self.only_looks_on = self.is_used = False
        self._usual_updates = max(self._usual_updates, self._num_updates)
        self._accumulated = self._joined = self._num_updates = self._num_given = 0

    def begin_micro_batch(self, fraction: float, *, is_last: bool, num_samples: int = 0) -> None:
        """The script is given so much of its slice."""
        if self.in_rounds and self.is_used:
            self.accumulate()  # the batch before, however many updates it had
        self.num_batches += 1
        self.fraction, self.keep, self.is_last, self.is_used = fraction, 1.0, is_last, False
        self._num_given += num_samples

    def take_back(self, track: Track) -> None:
        """The script asks for no more batches of this loader, and may still train on the last one."""
        if self._current is track:
            self.fraction, self.keep, self.is_last, track.is_left = 1.0, 1.0, True, True
            self._forget()

    def _forget(self) -> None:
        if self._current is not None and self._current.is_left and self._current.is_spent:
            self._current, self._slice, self._num_updates = None, None, 0  # what comes now is the script's own

    # What is added to the open step.

    @property
    def is_of_loader(self) -> bool:
        """The open step uses a batch of a loader; else samples of the script's own."""
        return self._current is not None

    @property
    def training_step(self) -> int:
        """The number of the open step among those of training.

        What takes turns does so by this one: a script that calls an operation of its own behind each has all others.
        """
        return self.num_trained + 1

    @property
    def is_dense(self) -> bool:
        """The open step averages gradients, as `DataParallel` does, before rounds begin: a function of its number."""
        return self.num_trained < self.dense_steps

    @property
    def in_rounds(self) -> bool:
        """The open step is a round."""
        return self.rounds is not None and not self.is_dense

    @property
    def is_round_open(self) -> bool:
        """A batch of a loader was handed out in this round, which is on no receipt."""
        return self.in_rounds and self._current is not None and not self._current.is_spent

    @property
    def round_s(self) -> float | None:
        """After so long a round of the current batch's loader ends."""
        return None if self._current is None else self._current.round_s

    def ends_round_here(self, track: Track) -> bool:
        """Whether no further batch belongs to the round: it has ended, or its time is over where no update came.

        Else the next update ends it: so most peers see that at the same place of their scripts.
        """
        if self.rounds is None or not self.in_rounds:
            return False
        return track.is_spent or (not self.is_used and self.rounds.is_time_over())

    def check_is_not_timed(self) -> None:
        """Raise ShoalError in the middle of a round that ends by time, of which nobody knows how far the others are."""
        if self.is_amid_round and self.rounds is not None and self.rounds.length_s is not None:
            raise ShoalError(AMID_TIMED)

    def end_round(self, *, is_left: bool = True) -> None:
        """The script goes on behind a round, whose last update may be left out; not `is_left`: if its loop was left."""
        is_due = is_left or (self._current is not None and self._current.is_left)
        if self.rounds is not None and is_due and not self.is_anchor_shown:
            self.rounds.end_if_open()

    @property
    def is_amid_batch(self) -> bool:
        """The last batch had an update, and may have another one: nobody can begin with what comes now."""
        return self._num_updates > 0

    @property
    def is_batch_cut(self) -> bool:
        """As far as can be told: the last batch had an update, and fewer than others had."""
        return 0 < self._num_updates < self._usual_updates

    @property
    def counts(self) -> Counts:
        """Of this peer.

        Raises:
            ShoalError: the batch is on a receipt already, and has one update.
        """
        if self.is_void:
            return NO_SAMPLES
        if self._current is None:
            number = self._accumulated if self.in_rounds else self._accumulated + self._number
            return (UNKNOWN_SAMPLE, 0, 0) if self.is_skipped else (UNKNOWN_SAMPLE, number, number)
        if self._num_updates and self._current.is_cut:
            raise ShoalError(CUT)
        if self._slice is None:
            return NO_SAMPLES
        part = self._slice
        if self.in_rounds:
            part = part._replace(number=min(part.number, self._num_given))
        if self._fails_behind:
            part = part._replace(start=FAILS_BEHIND - part.start)
        samples = (UNKNOWN_SAMPLE, 0) if self._num_updates else part
        if self.is_skipped or not part.number:
            return *samples, 0
        return *samples, self._accumulated + self._number if self._is_weighed else part.number

    @property
    def indices(self) -> list[int]:
        """Of the samples that the open step uses up for this peer, in the dataset of their loader."""
        track = self._current
        if track is None or track.sampler is None or self._slice is None or self.is_void or self._num_updates:
            return []
        return Order(track.sampler).indices(self.plan(track).positions(self._slice))

    @property
    def weight(self) -> int:
        """What this peer's gradients count in the mean, beside those of others."""
        return self.counts[WEIGHT]

    @property
    def collective(self) -> AllGather:
        """Of the counts: what all peers must have in common of the open step's samples, and of what they train."""
        words = [*filter(None, (self._samples_in_words(), self.how))]
        return AllGather(is_counts=True, label=", while ".join(words)) if words else ONLY_COUNTS

    def _samples_in_words(self) -> str:
        if (track := self._current) is None:
            unused = UNUSED.format(self.num_unused, "es"[: 2 * (self.num_unused > 1)])
            return unused if self.num_unused else self.how and "samples of its own"
        if self._num_updates:
            number = self._num_updates + 1
            return f"{track.description}, update {number} of the batch before {track.state.position}"
        returned = track.state.returned
        again = f", again {xxhash.xxh3_64_hexdigest(repr(returned).encode())}" if returned else ""
        return f"{track.description}, from {track.state.position} on{again}"

    def operation(self) -> Operation:
        """Operation 0 of a step: who adds which samples, and how many.

        Raises:
            ShoalError: the batch is on a receipt already, and has one update.
        """
        return count_samples(self.counts, self.collective)

    def set_number(self, number: int) -> None:
        """Add `number` samples of the script's own in each further pass; a batch of a loader weighs so much.

        Raises:
            ShoalError: a pass of the batch has come before, with another weight.
        """
        number = whole_number(number)
        if self._current is not None and self._accumulated and not self._is_weighed:
            raise ShoalError("num_samples was called after a backward pass of this batch: call it before the first one")
        self._number, self._is_weighed = number, True

    def accumulate(self, *, is_joined: bool = False) -> None:
        """A backward pass adds to the step, and does not end it; `is_joined`: to the micro-batches, not to `grad`."""
        self._accumulated += self._number
        self.is_used = True
        if is_joined:
            self._join(self._accumulated)

    def end(self) -> None:
        """A backward pass ends the step."""
        self._join(self._accumulated + self._number)

    def _join(self, total: int) -> None:
        """What has come since the micro-batch before joins it: a mean of the two, by the script's weights."""
        if self._is_weighed and self._current is not None and total:
            self.fraction, self.keep = 1 - self._joined / total, self._joined / total
            self._joined = total

    def skip(self) -> None:
        """This peer adds nothing to the open step, whose samples are used up all the same."""
        self.is_skipped = True

    def drop(self) -> None:
        """The script has dropped the gradients of passes that have not ended the step: they weigh nothing."""
        if not self._joined:  # else parts of it are in the buckets
            self._accumulated = 0

    def fail(self, place: int) -> None:
        """This peer cannot load the sample at this place of its slice, and adds nothing to the open step."""
        if self._slice is not None:
            self._slice = Slice(self._slice.start + place, 0)

    def end_in_front(self, number: int) -> bool:
        """In a round by time `number` samples more are given, and that behind them cannot be loaded: it ends with them.

        Returns whether that is so: whether there are any, in such a round.
        """
        if self._slice is None or not (self.in_rounds and self.round_s and self._num_given + number):
            return False
        self._slice, self._fails_behind = self._slice._replace(number=self._num_given + number), True
        return True

    def void(self) -> None:
        """This peer adds nothing to the open step, since a pass of it was interrupted; its samples come back."""
        self.is_void = True

    def spend(self) -> None:
        """The step that this peer has added to is committed."""
        self._accumulated = self._joined = 0
        self.is_void = self.is_skipped = False
        self.is_behind_batch = self._current is not None
        if self._current is not None:
            self._current.is_spent = True
            self._num_updates += self.rounds is None or self.is_dense
            self._forget()

    def give_up_step(self) -> None:
        """What this peer has added to a step counts for nothing, since a member's state is about to be loaded."""
        self.spend()
        self._num_updates = 0

    # Committed steps.

    def count(self, receipt: Receipt, *, is_training: bool = True) -> Receipt:
        """A step is committed. Returns its receipt, on which samples have positions in the stream of their loader."""
        self.num_samples += receipt.num_samples
        track = self._current
        plan = None if track is None else self.plan(track)
        self.contributors = tuple(map(PEER_ID, receipt.contributions))
        if is_training or not receipt.step:
            self.planned_for = self.contributors
        if track is None or plan is None or not any(each.samples for each in receipt.contributions):
            return receipt
        contributions, failures = located(receipt, plan)
        counted = union(part for each in contributions for part in each.samples)
        assert track.sampler is not None
        assert count(counted) == receipt.num_samples, f"samples of {receipt} are not those of {plan}"
        used = {each.peer_id: each.num_samples for each in receipt.contributions}
        if not self.is_dense:
            track.state = track.sampler.grant(track.state, plan, used, self.contributors)
        track.state = track.sampler.fold(track.state, counted, failures, self.contributors)
        left = unused(receipt, plan) if track.round_s is not None else ()
        return replace(receipt, contributions=tuple(contributions), loader=self._tracks.number(track), unused=left)

    # What a joiner is given.

    def pack(self) -> list[Any]:
        """Plain values."""
        who = [list(self.contributors), list(self.planned_for)]
        return [who, self.num_trained, self.num_samples, self.num_unused, self._tracks.pack(), self.run]

    def is_past(self, packed: Any) -> bool:
        """Whether the loader that the open step begins a batch of is used up in what `pack` made; raises as `load`."""
        if self._current is None:
            return False
        return self._tracks.is_over(self._current, unpack_samples(packed).states)

    def load(self, packed: Any) -> None:
        """Take over what `pack` made.

        Raises:
            JoinRefused: a loader of this peer's script is another one at the members.
            RemoteProtocolError: it is not of that form.
        """
        who, self.num_trained, self.num_samples, self.num_unused, states, run = unpack_samples(packed)
        if not self.is_resuming:
            (self.contributors, self.planned_for), self.run = who, b""
        self.run = run or self.run
        self._tracks.load(states, is_resumed=self.is_resuming)
        self.num_loads += 1
        self._num_updates = 0

    def state_dict(self) -> dict[str, Any]:
        """How far the run is, whoever takes part in it."""
        counted = {"done": self.num_trained, "samples": self.num_samples}
        return {**counted, "loaders": self._tracks.pack(), "run": self.run.hex()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` made. Raises as `load`."""
        with self.resuming():
            counts, run = (state.get("done", 0), state.get("samples", 0), 0), bytes.fromhex(state.get("run", ""))
            self.load([[[], []], *counts, state.get("loaders", []), run])

    @contextmanager
    def resuming(self) -> Iterator[None]:
        """What is loaded in this block is of a checkpoint."""
        self.is_resuming = True
        try:
            yield
        finally:
            self.is_resuming = False
