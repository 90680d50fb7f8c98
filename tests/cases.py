"""Selects the cases of a test that `make test` runs; the others are marked `long`."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

LARGER: Final = (*range(10, 16), 19, 24, 27, 31, 32, 33)
"""Larger numbers of ranks: 10 to 15, then odd, even and prime ones, and those around a power of two."""


def some_of(cases: Sequence[Any], *chosen: int) -> list[Any]:
    """All `cases` of a parametrization; those at the places `chosen` run in `make test`, the others are `long`.

    A case is an argument of `pytest.param`: a tuple of values, or one value that is not a tuple.
    """
    assert chosen and set(chosen) <= set(range(len(cases))), f"of {len(cases)} cases, {chosen} were chosen"
    parts = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*values, marks=() if place in chosen else pytest.mark.long) for place, values in enumerate(parts)
    ]
