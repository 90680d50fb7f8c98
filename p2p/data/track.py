"""Progress of loaders, and its form in a state for a joiner and in a checkpoint."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final, NamedTuple

import xxhash

from ..errors import JoinRefused, RemoteProtocolError, ShoalError
from .ranges import union
from .sampler import Plan, Sampler, SamplerState

MAY_CHANGE: Final = ("global_batch=", "batch_per_peer=", "epochs=", "drop_last=", "max_attempts=")
"""Settings of a loader that may differ after a checkpoint, since they do not change the meaning of positions."""

CUT: Final = (
    "this batch is already counted, and it was handed out in parts (max_local_batch), so it allows one update: for "
    "several updates per batch, accumulate with `no_sync` instead of max_local_batch"
)


@dataclass(slots=True, eq=False)
class Track:
    """Progress of one loader; the same on all peers after the same step.

    Attributes:
        description: text that must be equal on all peers.
        sampler: None until this peer's script has made the loader.
        state: after the last committed step.
        loaded_in: epoch in the last state that was loaded from a member.
        is_spent: the last batch handed out is on a receipt.
        is_left: the script asks for no more batches of it.
        is_cut: its batches may be handed out in parts.
        is_resumed: `description` comes from a checkpoint, and the script may have other settings.
        round_s: duration of its rounds, if timed.
        dense: plans the steps before rounds begin.
        planned: inputs of the last plan, and that plan.
    """

    description: str
    sampler: Sampler | None
    state: SamplerState
    loaded_in: int = 0
    is_cut: bool = False
    is_spent: bool = True
    is_left: bool = False
    is_resumed: bool = False
    round_s: float | None = None
    dense: Sampler | None = None
    planned: tuple[SamplerState, tuple[str, ...], Sampler, Plan] | None = None


def pack_track(track: Track) -> list[Any]:
    """As plain values."""
    return [track.description, *astuple(track.state)]


def unpack_track(row: Any) -> tuple[str, SamplerState]:
    """The inverse of `pack_track`: description and state.

    Raises:
        TypeError, ValueError: malformed values.
    """
    description, position, returned, num_steps, failed, aside, grants = row
    failures = tuple((int(place), tuple(map(str, who))) for place, who in failed)
    given = tuple((str(name), int(number)) for name, number in grants)
    state = SamplerState(int(position), union(returned), int(num_steps), failures, tuple(map(int, aside)), given)
    return str(description), state


Members = tuple[str, ...]
"""Their peer_ids."""


class Samples(NamedTuple):
    """The unpacked result of `SampleTracker.pack`.

    Attributes:
        who: members on the last receipt, and on that of training.
        num_trained, num_samples, num_unused: as of `SampleTracker`.
        states: each loader's description and state.
        run: as of `SampleTracker`; empty in older checkpoints.
    """

    who: tuple[Members, Members]
    num_trained: int
    num_samples: int
    num_unused: int
    states: list[tuple[str, SamplerState]]
    run: bytes


def unpack_samples(packed: Any) -> Samples:
    """The inverse of `SampleTracker.pack`; raises RemoteProtocolError for malformed values."""
    try:
        (contributors, planned_for), num_trained, num_samples, num_unused, rows, *other = packed
        states = [unpack_track(row) for row in rows]
        who = tuple(map(str, contributors)), tuple(map(str, planned_for))
        (run,) = other or (b"",)
        if not isinstance(run, bytes):
            raise TypeError(f"{run!r} is no run")
        return Samples(who, int(num_trained), int(num_samples), int(num_unused), states, run)
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"received a state whose used samples cannot be read: {error!r}") from None


def compare(index: int, here: str, there: str, *, is_resumed: bool) -> None:
    """Compare the descriptions of loader `index` here and in the state of the members or a checkpoint.

    Raises:
        JoinRefused: they describe different loaders.
    """
    if is_resumed and _lasting(here) != _lasting(there):
        raise JoinRefused(
            f"loader {index} has other samples than the checkpoint, or another order of them: {here} here, {there} "
            "there. Use the data and settings that the checkpoint was written with"
        )
    if here != there and not is_resumed:
        raise JoinRefused(
            f"loader {index} of this script is not the swarm's: {here} here, {there} there; "
            "start it with the same data and settings, or in a swarm of its own (--swarm)"
        )


def _lasting(description: str) -> list[str]:
    return [word for word in description.split(", ") if not word.startswith(MAY_CHANGE)]


class Tracks:
    """Tracks of all loaders of a swarm, in the order in which each script creates them."""

    def __init__(self) -> None:
        self._all: list[Track] = []
        self._num_made = 0

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epoch of each loader that this peer's script has created."""
        made = ((track.sampler, track.state) for track in self._all)
        return tuple(sampler.epoch(sampler.drop_tail(state)) for sampler, state in made if sampler is not None)

    def make(self, sampler: Sampler, description: str, *, is_cut: bool) -> Track:
        """The next loader of the script, which the swarm may be using already.

        Raises:
            ShoalError: another loader hands out the same samples in the same order.
            JoinRefused: the swarm's members have another loader in its place.
        """
        if any(track.description == description for track in self._all[: self._num_made]):
            raise ShoalError(
                f"a loader with these arguments already exists ({description}), and this one would start again with "
                "the same samples in the same order: make it once, before the loop over epochs, and pass epochs=; or "
                "pass another seed to this one"
            )
        if self._num_made == len(self._all):
            self._all.append(Track(description, None, SamplerState()))
        track = self._all[self._num_made]
        compare(self._num_made, description, track.description, is_resumed=track.is_resumed)
        track.description, track.is_resumed = description, False
        track.sampler, track.state, track.is_cut = sampler, sampler.drop_tail(track.state), is_cut
        self._num_made += 1
        return track

    def has_later(self, track: Track) -> bool:
        """Whether scripts have created later loaders, here or on members whose state was loaded."""
        return self._all[-1] is not track

    def number(self, track: Track) -> int:
        """Index of this loader, on receipts and in states; peers that make loaders in another order differ in it."""
        return self._all.index(track)

    def in_words(self, track: Track, num_updates: int) -> str:
        """Which samples of this loader a step has whose batch had `num_updates` updates before."""
        words, state = f"{track.description}, of loader {self.number(track)}", track.state
        if num_updates:
            return f"{words}, update {num_updates + 1} of the batch before {state.position}"
        again = f", again {xxhash.xxh3_64_hexdigest(repr(state.returned).encode())}" if state.returned else ""
        return f"{words}, from {state.position} on{again}"

    def is_over(self, track: Track, states: Sequence[tuple[str, SamplerState]]) -> bool:
        """Whether this loader is used up in `states`."""
        number, sampler = self.number(track), track.sampler
        if sampler is None or number >= len(states):
            return False
        return sampler.epoch(sampler.drop_tail(states[number][1])) >= sampler.epochs

    def pack(self) -> list[Any]:
        """As plain values."""
        return [pack_track(each) for each in self._all]

    def load(self, states: Sequence[tuple[str, SamplerState]], *, is_resumed: bool) -> None:
        """Take over descriptions and states; `is_resumed`: of a checkpoint.

        Raises:
            JoinRefused: a loader of this peer's script differs from that in `states`.
        """
        for index, (description, state) in enumerate(states):
            if index == len(self._all):
                self._all.append(Track(description, None, state))
            track = self._all[index]
            goes_on = is_resumed or (track.is_resumed and track.description == description)  # as loaded by this peer
            track.is_resumed = goes_on and track.sampler is None
            if track.sampler is not None:
                compare(index, track.description, description, is_resumed=is_resumed)
                description = track.description
                state = track.sampler.drop_tail(state)  # as members do in their next call
                track.loaded_in = track.sampler.epoch(state)
            track.description, track.state = description, state
