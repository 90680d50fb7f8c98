"""Mutants: one rule of the protocol is removed temporarily, to see which invariant breaks."""

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Patch = tuple[object, str, Any]

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is missing.

    Attributes:
        patches: what is replaced: the object, the attribute's name, and the replacement.
        breaks: the expected invariants; the first one that breaks must be among them.
        seed: a run that shows it; None if drawn runs do not.
        scenario: a scenario that shows it (scenarios.py); empty if there is none.
    """

    patches: tuple[Patch, ...]
    breaks: frozenset[str]
    seed: int | None = None
    scenario: str = ""


def mutant(*patches: Patch, breaks: str, seed: int | None = None, scenario: str = "") -> Mutant:
    """`breaks`: names of invariants, with spaces between."""
    return Mutant(patches, frozenset(breaks.split()), seed, scenario)


@contextmanager
def without(missing: Mutant) -> Iterator[None]:
    """A context in which the rule is removed."""
    before: list[Patch] = []
    try:
        for where, name, replacement in missing.patches:
            if not (hasattr(where, name) or hasattr(builtins, name)):
                raise AttributeError(f"{where} has no {name} that could be missing")
            before.append((where, name, vars(where).get(name, _ABSENT)))
            setattr(where, name, replacement)
        yield
    finally:
        for where, name, value in reversed(before):
            if value is _ABSENT:
                delattr(where, name)
            else:
                setattr(where, name, value)
