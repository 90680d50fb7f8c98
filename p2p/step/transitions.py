"""How far an open step is, what happens to it, and what that makes of it: nothing else can happen."""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final


class Stage(Enum):
    """How far the open step is."""

    __hash__ = object.__hash__  # Enum has one in Python, and each step looks for what follows four times

    EMPTY = auto()
    """No operation is submitted."""
    OPEN = auto()
    CLOSED = auto()
    """Every operation is submitted."""
    FINISHED = auto()
    """Every operation is complete here, and the core knows."""
    VOID = auto()
    """Given up, and the script is still to be told: when a view is installed that starts the step over, so that no
    other member can commit it, or the others continue without this peer; else as soon as something is submitted."""


class Event(Enum):
    """Events of the open step."""

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
