"""How far one loader is, and what of that travels to a joiner and into a checkpoint."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final, NamedTuple

from ..errors import JoinRefused, RemoteProtocolError, ShoalError
from .ranges import union
from .sampler import Plan, Sampler, SamplerState

MAY_CHANGE: Final = ("global_batch=", "batch_per_peer=", "epochs=", "drop_last=", "max_attempts=")
"""What of a loader may be another when a run goes on from a checkpoint: a position in its samples means the same."""

CUT: Final = (
    "this batch is counted already, and was given in parts (max_local_batch), so it has one update: accumulate with "
    "`no_sync` instead of max_local_batch where each batch has several"
)


@dataclass(slots=True, eq=False)
class Track:
    """How far one loader is; the same at all peers after the same step.

    Attributes:
        description: what all peers must have in common, in words.
        sampler: None until this peer's script has made the loader.
        state: after the last committed step.
        loaded_in: the epoch of the member's state that was loaded last.
        is_spent: the last batch that was handed out of it is on a receipt.
        is_left: the script asks for no more batches of it.
        is_cut: its batches may be handed out in parts.
        is_resumed: `description` is that of a checkpoint, and the script may have other settings.
        round_s: its rounds end by time.
        dense: plans the steps before rounds begin.
        planned: the plan that was made last, after what it was made of.
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
    """Plain values."""
    return [track.description, *astuple(track.state)]


def unpack_track(row: Any) -> tuple[str, SamplerState]:
    """Description and state, as `pack_track` made them.

    Raises:
        TypeError, ValueError: it is not of that form.
    """
    description, position, returned, num_steps, failed, aside, grants = row
    failures = tuple((int(place), tuple(map(str, who))) for place, who in failed)
    given = tuple((str(name), int(number)) for name, number in grants)
    state = SamplerState(int(position), union(returned), int(num_steps), failures, tuple(map(int, aside)), given)
    return str(description), state


Members = tuple[str, ...]
"""Their peer_ids."""


class Samples(NamedTuple):
    """What `Share.pack` made.

    Attributes:
        who: is on the last receipt, and on that of training.
        num_trained, num_samples, num_unused: as of `Share`.
        states: each loader's description and state.
        run: as of `Share`; a checkpoint of before has none.
    """

    who: tuple[Members, Members]
    num_trained: int
    num_samples: int
    num_unused: int
    states: list[tuple[str, SamplerState]]
    run: bytes


def unpack_samples(packed: Any) -> Samples:
    """Raises RemoteProtocolError: `Share.pack` has not made it."""
    try:
        (contributors, planned_for), num_trained, num_samples, num_unused, rows, *other = packed
        states = [unpack_track(row) for row in rows]
        who = tuple(map(str, contributors)), tuple(map(str, planned_for))
        (run,) = other or (b"",)
        if not isinstance(run, bytes):
            raise TypeError(f"{run!r} is no run")
        return Samples(who, int(num_trained), int(num_samples), int(num_unused), states, run)
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"a state that says wrongly which samples are used up: {error!r}") from None


def compare(index: int, here: str, there: str, *, is_resumed: bool) -> None:
    """Loader number `index` has one description here, and one in the state of the members or in the checkpoint.

    Raises:
        JoinRefused: they are not of the same loader.
    """
    if is_resumed and _lasting(here) != _lasting(there):
        raise JoinRefused(f"loader {index} has other samples, or another order of them: {here} here, {there} there")
    if here != there and not is_resumed:
        raise JoinRefused(
            f"loader {index} of this script is not the swarm's: {here} here, {there} there; "
            "start it with the same data and settings, or in a swarm of its own (--swarm)"
        )


def _lasting(description: str) -> list[str]:
    return [word for word in description.split(", ") if not word.startswith(MAY_CHANGE)]


class Tracks:
    """Of all loaders of a swarm, in the order in which each script makes them."""

    def __init__(self) -> None:
        self._all: list[Track] = []
        self._num_made = 0

    @property
    def epochs(self) -> tuple[int, ...]:
        """In which each loader is that this peer's script has made."""
        made = ((track.sampler, track.state) for track in self._all)
        return tuple(sampler.epoch(sampler.settle(state)) for sampler, state in made if sampler is not None)

    def make(self, sampler: Sampler, description: str, *, is_cut: bool) -> Track:
        """As `Share.make`."""
        if any(track.description == description for track in self._all[: self._num_made]):
            raise ShoalError(
                f"a loader of these arguments is there already ({description}), and this one would begin anew with "
                "the same samples in the same order: make it once, before the loop over epochs, and say epochs=; "
                "or give this one another seed"
            )
        if self._num_made == len(self._all):
            self._all.append(Track(description, None, SamplerState()))
        track = self._all[self._num_made]
        compare(self._num_made, description, track.description, is_resumed=track.is_resumed)
        track.description, track.is_resumed = description, False
        track.sampler, track.state, track.is_cut = sampler, sampler.settle(track.state), is_cut
        self._num_made += 1
        return track

    def has_later(self, track: Track) -> bool:
        """As `Share.has_later`."""
        return self._all[-1] is not track

    def number(self, track: Track) -> int:
        """Of this one."""
        return self._all.index(track)

    def is_over(self, track: Track, states: Sequence[tuple[str, SamplerState]]) -> bool:
        """Whether this loader is used up where all of them are as in `states`."""
        number, sampler = self.number(track), track.sampler
        if sampler is None or number >= len(states):
            return False
        return sampler.epoch(sampler.settle(states[number][1])) >= sampler.epochs

    def pack(self) -> list[Any]:
        """Plain values."""
        return [pack_track(each) for each in self._all]

    def load(self, states: Sequence[tuple[str, SamplerState]], *, is_resumed: bool) -> None:
        """Take over descriptions and states; `is_resumed`: of a checkpoint.

        Raises:
            JoinRefused: a loader of this peer's script is another one there.
        """
        for index, (description, state) in enumerate(states):
            if index == len(self._all):
                self._all.append(Track(description, None, state))
            track = self._all[index]
            goes_on = is_resumed or (
                track.is_resumed and track.description == description
            )  # as this peer has loaded it
            track.is_resumed = goes_on and track.sampler is None
            if track.sampler is not None:
                compare(index, track.description, description, is_resumed=is_resumed)
                description = track.description
                state = track.sampler.settle(state)  # a call of the members says where they are after that
                track.loaded_in = track.sampler.epoch(state)
            track.description, track.state = description, state
