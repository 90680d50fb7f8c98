"""How far an open step is, what happens to it, and what that makes of it: nothing else can happen."""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final


class Stage(Enum):
    """How far the open step is."""

    __hash__ = object.__hash__  # Enum has one in Python, and each step looks for what follows four times

    EMPTY = auto()
    """Nothing is submitted of it."""
    OPEN = auto()
    CLOSED = auto()
    """All of it is submitted."""
    FINISHED = auto()
    """All of it is complete here, and the core knows."""
    VOID = auto()
    """It is given up, and the script is still to be told: when a view is installed that starts it over, so that no
    other member can commit it, or the others go on without this peer; if it has submitted nothing yet, when it does."""


class Event(Enum):
    """What happens to it."""

    __hash__ = object.__hash__

    SUBMIT = auto()
    CLOSE = auto()
    COMPLETE = auto()
    REDO = auto()
    """The barrier of a view has dropped what was finished."""
    COMMIT = auto()
    WITHDRAW = auto()
    GIVE_UP = auto()
    TELL = auto()


TRANSITIONS: Final[Mapping[tuple[Stage, Event], Stage]] = MappingProxyType(
    {
        (Stage.EMPTY, Event.SUBMIT): Stage.OPEN,
        (Stage.OPEN, Event.SUBMIT): Stage.OPEN,
        (Stage.OPEN, Event.CLOSE): Stage.CLOSED,
        (Stage.CLOSED, Event.COMPLETE): Stage.FINISHED,
        (Stage.FINISHED, Event.REDO): Stage.CLOSED,
        (Stage.FINISHED, Event.COMMIT): Stage.EMPTY,
        (Stage.CLOSED, Event.COMMIT): Stage.EMPTY,  # an observer is fed what the members have committed
        (Stage.EMPTY, Event.COMMIT): Stage.EMPTY,  # step 0
        (Stage.EMPTY, Event.WITHDRAW): Stage.EMPTY,
        (Stage.OPEN, Event.WITHDRAW): Stage.EMPTY,
        (Stage.CLOSED, Event.WITHDRAW): Stage.EMPTY,  # an observer is given a state, and begins its round anew
        **{(stage, Event.GIVE_UP): Stage.VOID for stage in Stage if stage is not Stage.VOID},
        (Stage.VOID, Event.TELL): Stage.EMPTY,
    }
)
