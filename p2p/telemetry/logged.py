"""Numbers that a script logs with `peer.log`: the last value of each name.

In the flight recorder each number is a separate record, with 16 bytes for the name in the fields for view and peer.
"""

from collections.abc import Callable
from typing import Any, Final

from .records import Kind, Record, RecordRing

MOST_NUMBERS: Final = 32
MOST_CHARACTERS: Final = 32
"""The longest name."""
MOST_RECORDED: Final = 4
"""Numbers per call, so that a script that logs a lot leaves room for the records of steps."""
_NAME_BYTES: Final = 16


class Logged:
    """The numbers of one peer.

    Attributes:
        values: by name, in the order of their first values.
        listeners: called with `peer.done` and the numbers of each call.
    """

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.listeners: list[Callable[[int, dict[str, float]], None]] = []

    def log(self, numbers: dict[str, Any], num_trained: int, half: RecordRing, step: int) -> None:
        """Log numbers, as `Peer.log`. If another thread takes a step at the same moment, one record may be lost."""
        checked = self.update(numbers)
        record(half, step, checked)
        for listener in self.listeners:
            listener(num_trained, dict(checked))

    def update(self, numbers: dict[str, Any]) -> dict[str, float]:
        """Store all of the numbers, or none.

        Returns:
            The numbers as floats.

        Raises:
            TypeError: one is not a number.
            ValueError: a name is too long, or there are too many.
        """
        checked = {name: _number(name, value) for name, value in numbers.items()}
        for name in checked:
            if not 0 < len(name) <= MOST_CHARACTERS or not name.isprintable():
                raise ValueError(f"a name has 1 to {MOST_CHARACTERS} characters that can be printed, got {name!r}")
        values = self.values | checked
        if len(values) > MOST_NUMBERS:
            raise ValueError(
                f"peer.log keeps {MOST_NUMBERS} names at most, and with {', '.join(checked)} they would be "
                f"{len(values)}: leave some out"
            )
        self.values = values  # atomically: another thread shows them
        return checked


def record(half: RecordRing, step: int, numbers: dict[str, float]) -> None:
    """Record the first `MOST_RECORDED` of `numbers`, logged after `step`."""
    for index, (name, value) in enumerate([*numbers.items()][:MOST_RECORDED]):
        text = name.encode("utf-8", "replace")[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
        view, peer = int.from_bytes(text[:8], "big"), int.from_bytes(text[8:], "big")
        half.note(Kind.LOGGED, step, view, peer, size=index, value=value)


def name_in(record: Record) -> str:
    """The name in a LOGGED record: its first 16 bytes."""
    text = record.view.to_bytes(8, "big") + int(record.peer_id or "0", 16).to_bytes(8, "big")
    return text.rstrip(b"\0").decode("utf-8", "ignore")


def _number(name: str, value: Any) -> float:
    """Convert an int, a float, or a zero-dimensional array or tensor, such as a loss."""
    shape = getattr(value, "shape", ())
    if len(shape):
        raise TypeError(f"{name} must be one number, got shape {tuple(shape)}: give its mean, for example")
    if hasattr(value, "item"):  # of torch, or numpy
        value = value.item()
    if not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r:.40}")
    return float(value)
