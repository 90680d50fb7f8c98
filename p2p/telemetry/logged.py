"""What a script says of itself by `peer.log`: a few numbers by name, the last of each."""

from typing import Any, Final

MOST_NUMBERS: Final = 32
MOST_CHARACTERS: Final = 32
"""Of a name."""


class Logged:
    """The numbers of one peer.

    Attributes:
        values: by name, in the order in which they came first.
    """

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def update(self, numbers: dict[str, Any]) -> None:
        """Take all of them, or none.

        Raises:
            TypeError: one is no number.
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
        self.values = values  # at one go: another thread shows them


def _number(name: str, value: Any) -> float:
    """An int, a float, or what has no dimensions and one of them in it, like a loss."""
    shape = getattr(value, "shape", ())
    if len(shape):
        raise TypeError(f"{name} must be one number, and has shape {tuple(shape)}: give its mean, say")
    if hasattr(value, "item"):  # of torch, or numpy
        value = value.item()
    if not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} {value!r:.40}")
    return float(value)
