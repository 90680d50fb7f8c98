"""How far one loader is, and what of that travels to a joiner and into a checkpoint."""

from dataclasses import astuple, dataclass
from typing import Any, Final

from ..errors import JoinRefused
from .ranges import union
from .sampler import Sampler, SamplerState

MAY_CHANGE: Final = ("global_batch=", "epochs=", "drop_last=", "max_attempts=")
"""What of a loader may be another when a run goes on from a checkpoint: a position in its samples means the same."""


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
    """

    description: str
    sampler: Sampler | None
    state: SamplerState
    loaded_in: int = 0
    is_cut: bool = False
    is_spent: bool = True
    is_left: bool = False
    is_resumed: bool = False


def pack_track(track: Track) -> list[Any]:
    """Plain values."""
    return [track.description, *astuple(track.state)]


def unpack_track(row: Any) -> tuple[str, SamplerState]:
    """Description and state, as `pack_track` made them.

    Raises:
        TypeError, ValueError: it is not of that form.
    """
    description, position, returned, num_steps, failed, aside = row
    failures = tuple((int(place), tuple(map(str, who))) for place, who in failed)
    state = SamplerState(int(position), union(returned), int(num_steps), failures, tuple(map(int, aside)))
    return str(description), state


def compare(index: int, here: str, there: str, *, is_resumed: bool = False) -> None:
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
