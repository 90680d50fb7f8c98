"""Samples of a peer: those in the open step, and those of each loader that are used up, folded over receipts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..errors import ShoalError
from ..step.collective import AllGather
from ..step.operation import Operation
from ..step.receipts import FAILS_BEHIND, NO_SAMPLES, UNKNOWN_SAMPLE, WEIGHT, Counts, Receipt
from .counting import ONLY_COUNTS, counts_operation, whole_number
from .located import located, with_rest
from .own_data import UNUSED
from .parts import Parts
from .ranges import count, union
from .round_end import AMID_TIMED, RoundEnd
from .sampler import Order, Plan, Sampler, Slice
from .sayings import PASSED_OVER
from .track import CUT, Track, Tracks, unpack_samples


class SampleTracker:
    """What one peer adds to the open step: samples of one of our loaders, or a number given by the script.

    A slice weighs its number of samples, or a number set by the script, in one backward pass or several micro-batches.
    A batch may have several updates, each a step of its own: all weigh the same, the first counts the samples.

    Attributes:
        contributors: peer_ids of the members on the last receipt, in rank order.
        planned_for: the same on the last receipt of training, or else on the first: members with a slice of the next
            batch. Members may change in an operation that a script calls between a batch and its step.
        tracks, parts: of all loaders; micro-batches of the current slice.
        is_void: this peer adds nothing to the open step; is_skipped: at the request of its script.
        is_after_batch: the last step used a loader's batch, and since then neither was another batch requested nor has
            a pass begun. The script's actions meanwhile (a schedule) belong to the state, a forward pass evaluates.
        num_loads: how often a member's state has replaced all this.
        num_trained: committed training steps; num_samples: of all members in these; num_batches: handed to the script.
        run: its first lineage, which is common to all lineages that continue its state; empty: not known.
        rounds: if steps are rounds of local steps: a slice counts as far as it was handed out before the round's end.
        is_amid_round: the parameters are this peer's alone; is_anchor_shown: within a round, they are the anchor.
        is_resuming: a checkpoint is being loaded, not a member's state.
        num_unused: forward passes of the last step without a backward pass, on samples of the script's own.
        dense_steps: number of training steps before `rounds` begin, of one batch each.
        check_model: raises ShoalError if the model is not the one that was wrapped.
        change_model: applies the changes of the model that its script has planned and that are due.
        how: way the model is trained in this step, as of `Watch.in_words`.
        schedule_ends: number of steps after which a schedule of the script raises, by its name.
        only_looks_on: other members have also evaluated this peer's last part, since it had no seat at the split.
    """

    def __init__(self) -> None:
        self.contributors = self.planned_for = tuple[str, ...]()
        self.parts = Parts()
        self.is_void = self.only_looks_on = self.is_resuming = self.is_after_batch = False
        self.how, self.run, self.schedule_ends = "", b"", dict[str, int]()
        self.check_model: Callable[[], None] = lambda: None
        self.change_model: Callable[[], None] = lambda: None
        self.rounds: RoundEnd | None = None
        self.num_loads = self.num_trained = self.num_samples = self.num_unused = self.num_batches = 0
        self.tracks, self.dense_steps, self._number = Tracks(), 0, 1
        self._current: Track | None = None
        self._slice: Slice | None = None
        self._accumulated = self._joined = self._num_updates = self._usual_updates = 0
        self._is_weighed = self.is_skipped = self._fails_behind = self.is_amid_round = self.is_anchor_shown = False

    # Loaders.

    def make(self, sampler: Sampler, description: str, *, is_cut: bool = False) -> Track:
        """As `Tracks.make`."""
        return self.tracks.make(sampler, description, is_cut=is_cut)

    def plan(self, track: Track) -> Plan:
        """The plan of the next step, if that uses this loader."""
        assert track.sampler is not None
        sampler = track.dense if self.is_dense and track.dense is not None else track.sampler
        if track.planned is None or track.planned[:3] != (track.state, self.planned_for, sampler):
            track.state = track.sampler.drop_tail(track.state)
            plan = sampler.plan(track.state, self.planned_for)
            track.planned = track.state, self.planned_for, sampler, plan
        return track.planned[3]

    def begin_loader_batch(self, track: Track, part: Slice | None) -> None:
        """Note that the script receives a batch of this loader, which adds `part` to the open step."""
        self.parts.begin()
        self._current, self._slice, track.is_spent = track, part, False
        track.is_left = self._is_weighed = self._fails_behind = self.only_looks_on = False
        self._usual_updates = max(self._usual_updates, self._num_updates)
        self._accumulated = self._joined = self._num_updates = 0

    def begin_micro_batch(self, fraction: float, *, is_last: bool, num_samples: int = 0) -> None:
        """Note that the script receives `fraction` of its slice."""
        if self.in_rounds and self.parts.is_used:
            self.accumulate()  # the previous batch, however many updates it had
        self.num_batches += 1
        self.parts.hand_out(fraction, num_samples, is_last=is_last)

    def end_iteration(self, track: Track) -> None:
        """Note that the script requests no more batches of this loader; it may still train on the last one.

        Its step then counts the micro-batches that were handed out.
        """
        if self._current is track:
            track.is_left, is_whole = True, self.parts.is_last
            if not (self.parts.leave() or self.in_rounds):
                track.is_spent, self._accumulated, self._joined = True, 0, 0
            elif not is_whole and self._slice is not None:
                self._slice = self._slice._replace(length=min(self._slice.length, self.parts.num_samples))
            self._forget()

    def pass_over(self, track: Track) -> None:
        """Note that the samples of this loader's last batch are left out: no step may use that batch."""
        if self._current is track and not track.is_spent:
            self.parts.refusal = PASSED_OVER
            if track.is_left:
                self.end_iteration(track)

    def _forget(self) -> None:
        if self._current is not None and self._current.is_left and self._current.is_spent:
            self._current, self._slice, self._num_updates = None, None, 0  # later samples are the script's own
            self.parts.end()

    # Open step.

    @property
    def is_of_loader(self) -> bool:
        """Whether the open step uses a batch of a loader; else samples of the script's own."""
        return self._current is not None

    @property
    def training_step(self) -> int:
        """The number of the open step among the training steps.

        Turns follow this number: scripts may call operations of their own, which are other steps, in between.
        """
        return self.num_trained + 1

    @property
    def is_dense(self) -> bool:
        """Whether the open step averages gradients, as `DataParallel` does, before rounds begin."""
        return self.num_trained < self.dense_steps

    @property
    def in_rounds(self) -> bool:
        """Whether the open step is a round."""
        return self.rounds is not None and not self.is_dense

    @property
    def is_round_open(self) -> bool:
        """Whether a batch of a loader was handed out in this round, which is on no receipt yet."""
        return self.in_rounds and self._current is not None and not self._current.is_spent

    @property
    def round_s(self) -> float | None:
        """Duration of a timed round of the current batch's loader."""
        return None if self._current is None else self._current.round_s

    def ends_round_here(self, track: Track) -> bool:
        """Whether no further batch belongs to the round: it has ended, or its time is over and the batch had no update.

        Otherwise the next update ends it, so that most peers end it at the same position of their scripts.
        """
        if self.rounds is None or not self.in_rounds:
            return False
        return track.is_spent or (not self.parts.is_used and self.rounds.is_time_over())

    def check_is_not_timed(self) -> None:
        """Raise ShoalError in the middle of a timed round, in which the progress of the others is not known."""
        if self.is_amid_round and self.rounds is not None and self.rounds.length_s is not None:
            raise ShoalError(AMID_TIMED)

    def end_round(self, *, is_left: bool = True) -> None:
        """End a round whose last update the script may leave out; if not `is_left`, only if its loop was left."""
        is_due = is_left or (self._current is not None and self._current.is_left)
        if self.rounds is not None and is_due and not self.is_anchor_shown:
            self.rounds.end_if_open()

    @property
    def is_amid_batch(self) -> bool:
        """Whether the last batch had an update and may have another: no joiner can begin between these."""
        return self._num_updates > 0

    @property
    def is_batch_cut(self) -> bool:
        """Whether the last batch had an update, but fewer than earlier ones, as far as is known."""
        return 0 < self._num_updates < self._usual_updates

    @property
    def counts(self) -> Counts:
        """The counts of this peer.

        Raises:
            ShoalError: the batch is on a receipt already, and may have only one update; or its epoch was ended.
        """
        if self.is_void:
            return NO_SAMPLES
        if self.parts.refusal and not self.in_rounds:
            raise ShoalError(self.parts.refusal)
        if self._current is None:
            number = self._accumulated if self.in_rounds else self._accumulated + self._number
            return (UNKNOWN_SAMPLE, 0, 0) if self.is_skipped else (UNKNOWN_SAMPLE, number, number)
        if self._num_updates and self._current.is_cut:
            raise ShoalError(CUT)
        if self._slice is None:
            return NO_SAMPLES
        part = self._slice
        is_unused = self.in_rounds and not self.parts.is_used and bool(self._current.is_left or self.parts.refusal)
        if self.in_rounds and part.length:
            used = self.parts.num_samples - is_unused * self.parts.num_last
            part = part._replace(length=min(part.length, used)) if used else Slice(*NO_SAMPLES[:WEIGHT])
        if self._fails_behind and not is_unused:
            part = part._replace(start=FAILS_BEHIND - part.start)
        samples = (UNKNOWN_SAMPLE, 0) if self._num_updates else part
        if self.is_skipped or not part.length:
            return *samples, 0
        weight = self._accumulated + self._number * (not is_unused)
        return *samples, weight if self._is_weighed else part.length

    @property
    def indices(self) -> list[int]:
        """Indices into the loader's dataset of the samples that the open step uses up for this peer."""
        track = self._current
        if track is None or track.sampler is None or self._slice is None or self.is_void or self._num_updates:
            return []
        return Order(track.sampler).indices(self.plan(track).positions(self._slice))

    @property
    def weight(self) -> int:
        """Weight of this peer's gradients in the mean."""
        return self.counts[WEIGHT]

    @property
    def collective(self) -> AllGather:
        """Collective of the counts; its label, samples and way of training, must be equal on all peers."""
        words = [*filter(None, (self._samples_in_words(), self.how))]
        return AllGather(is_counts=True, label=", while ".join(words)) if words else ONLY_COUNTS

    def _samples_in_words(self) -> str:
        if (track := self._current) is None:
            unused = UNUSED.format(self.num_unused, "es"[: 2 * (self.num_unused > 1)])
            return unused if self.num_unused else self.how and "samples of its own"
        return self.tracks.in_words(track, self._num_updates)

    def operation(self) -> Operation:
        """Operation 0 of a step: which samples each member adds, and how many.

        Raises:
            ShoalError: as `counts`.
        """
        return counts_operation(self.counts, self.collective)

    def set_number(self, number: int) -> None:
        """Add `number` samples of the script's own in each further pass; for a batch of a loader, its weight.

        Raises:
            ShoalError: an earlier pass of the batch had another weight.
        """
        number = whole_number(number)
        if self._current is not None and self._accumulated and not self._is_weighed:
            raise ShoalError("num_samples was called after a backward pass of this batch: call it before the first one")
        self._number, self._is_weighed = number, True

    def accumulate(self, *, is_joined: bool = False) -> None:
        """Add a backward pass that does not end the step; `is_joined`: to the micro-batches, not to `grad`."""
        self._accumulated += self._number
        self.parts.is_used = True
        if is_joined:
            self.parts.add()
            self._join(self._accumulated)

    def end(self) -> None:
        """Add the backward pass that ends the step."""
        self._join(self._accumulated + self._number)

    def _join(self, total: int) -> None:
        """Join the passes since the previous micro-batch with it: a mean of the two, by the script's weights."""
        if self._is_weighed and self._current is not None and total:
            self.parts.fraction, self.parts.keep = 1 - self._joined / total, self._joined / total
            self._joined = total

    def skip(self) -> None:
        """Add nothing to the open step; its samples are used up all the same."""
        self.is_skipped = True

    def drop(self, *, is_whole: bool = False) -> None:
        """Drop the weight of passes that have not ended the step; `is_whole`: their parts in buckets, too."""
        if is_whole or not self._joined:
            self._accumulated = self._joined = 0

    def fail(self, place: int) -> None:
        """Add nothing to the open step: this peer cannot load the sample at index `place` of its slice."""
        if self._slice is not None:
            self._slice = Slice(self._slice.start + place, 0)

    def end_in_front(self, number: int) -> bool:
        """In a timed round, hand out `number` more samples and end there, since the next one cannot be loaded.

        Returns whether this is a timed round with any samples.
        """
        if self._slice is None or not (self.in_rounds and self.round_s and self.parts.num_samples + number):
            return False
        self._slice, self._fails_behind = self._slice._replace(length=self.parts.num_samples + number), True
        return True

    def void(self) -> None:
        """Add nothing to the open step, since a pass of it was interrupted; its samples are returned."""
        self.is_void = True

    def spend(self) -> None:
        """Note that the step with this share is committed."""
        self._accumulated = self._joined = 0
        self.is_void = self.is_skipped = False
        self.parts.spend()
        self.is_after_batch = self._current is not None
        if self._current is not None:
            self._current.is_spent = True
            self._num_updates += self.rounds is None or self.is_dense
            self._forget()

    def give_up_step(self) -> None:
        """Discard this peer's share of a step, since a member's state is about to be loaded."""
        self.spend()
        self._num_updates = 0

    def give_up_batch(self) -> None:
        """Add nothing of a loader's batch to any step: it is of a plan before those that this peer has missed."""
        if self._current is not None:
            self.give_up_step()
            self.is_void = True

    # Committed steps.

    def apply_receipt(self, receipt: Receipt, *, is_training: bool = True) -> Receipt:
        """Count a committed step. Returns its receipt, with positions of samples in the stream of their loader."""
        self.num_samples += receipt.num_samples
        track = self._current
        plan = None if track is None else self.plan(track)
        self.contributors = tuple([each.peer_id for each in receipt.contributions])
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
            track.state = track.sampler.update_quotas(track.state, plan, used, self.contributors)
        track.state = track.sampler.fold(track.state, counted, failures, self.contributors)
        receipt = replace(receipt, contributions=tuple(contributions), loader=self.tracks.number(track))
        return with_rest(receipt, plan, is_timed=track.round_s is not None)

    # State for a joiner.

    def pack(self) -> list[Any]:
        """As plain values."""
        who = [list(self.contributors), list(self.planned_for)]
        return [who, self.num_trained, self.num_samples, self.num_unused, self.tracks.pack(), self.run]

    def is_past(self, packed: Any) -> bool:
        """Whether the loader of the open step is used up in `packed`, a result of `pack`; raises as `load`."""
        if self._current is None:
            return False
        return self.tracks.is_over(self._current, unpack_samples(packed).states)

    def load(self, packed: Any) -> None:
        """Take over a result of `pack`.

        Raises:
            JoinRefused: a loader of this peer's script differs from that of the members.
            RemoteProtocolError: malformed values.
        """
        who, self.num_trained, self.num_samples, self.num_unused, states, run = unpack_samples(packed)
        if not self.is_resuming:
            (self.contributors, self.planned_for), self.run = who, b""
        self.run = run or self.run
        self.tracks.load(states, is_resumed=self.is_resuming)
        self.num_loads += 1
        self._num_updates = 0

    def state_dict(self) -> dict[str, Any]:
        """Progress of the run, independent of its members."""
        counted = {"done": self.num_trained, "samples": self.num_samples}
        return {**counted, "loaders": self.tracks.pack(), "run": self.run.hex()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a result of `state_dict`. Raises as `load`."""
        with self.resuming():
            counts, run = (state.get("done", 0), state.get("samples", 0), 0), bytes.fromhex(state.get("run", ""))
            self.load([[[], []], *counts, state.get("loaders", []), run])

    @contextmanager
    def resuming(self) -> Iterator[None]:
        """Context in which states are loaded from a checkpoint."""
        self.is_resuming = True
        try:
            yield
        finally:
            self.is_resuming = False
