"""The list of cases: small pieces of training code as people write them, and what becomes of each."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .run import Run

Script = Callable[["Run"], None]

FAMILIES: Final = {
    "optimizers": "Optimizers",
    "layouts": "Layouts and containers of parameters",
    "types": "Types, autocast and loss scaling",
    "schedules": "Schedules and averages of weights",
    "gradients": "Between backward and the update",
    "accumulation": "Several passes per update, uneven parts",
    "freezing": "Frozen, unused and changing parameters",
    "updates": "Several updates per batch, several models",
    "models": "Several models by name, each with its optimizer",
    "derivatives": "Gradients of gradients, gradients by hand",
    "autograd": "Hooks, checkpoints, functions, compilers",
    "layers": "Layers and losses",
    "statistics": "Normalization, buffers, dropout",
    "control": "Loops, skipped steps, evaluation",
}
"""Modules of `families`, in the order of the page."""

ROUNDING: Final = 2e-6


class Verdict(StrEnum):
    """What trains here in comparison with one process that has all samples in one batch."""

    EQUAL = "equal"
    AS_DDP = "as DDP"
    REFUSED = "refused"
    WARNED = "warned"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A script, and what is expected of it; at most one of `refused`, `warned`, `as_ddp` and `wrong` is said.

    Attributes:
        name: in words, with underscores.
        family: one of FAMILIES.
        script: runs in one process, as a peer, and under DDP.
        refused: the part of the error that says why.
        warned: the part of what the log of each peer says of it. It trains on, and not as one process.
        as_ddp: how it differs from one process, as DDP does.
        wrong: how it is wrong today. It fails when it is right.
        rounding: what losses may differ by, and all that is in parameters, buffers, optimizers and `extra`; and why it
            is not ROUNDING.
        quick: `make test` runs it.
        elastic: `make equivalence` also kills one of its peers, lets one join, and replays the receipts.
        joiner_refused: as `refused`, of a peer that joins in the middle.
        joiner_warned: as `warned`, where peers come and go.
        joiner_wrong: as `wrong`, likewise.
    """

    name: str
    family: str
    script: Script
    refused: str = ""
    warned: str = ""
    as_ddp: str = ""
    wrong: str = ""
    rounding: tuple[float, str] = (ROUNDING, "")
    quick: bool = False
    elastic: bool = False
    joiner_refused: str = ""
    joiner_warned: str = ""
    joiner_wrong: str = ""

    @property
    def expected(self) -> Verdict:
        return verdict(self.refused, self.warned, self.as_ddp, self.wrong)

    @property
    def text(self) -> str:
        """Why it is not equal."""
        return self.refused or self.warned or self.as_ddp or self.wrong

    @property
    def tolerance(self) -> float:
        return self.rounding[0]

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")


def verdict(refused: str, warned: str, as_ddp: str, wrong: str) -> Verdict:
    texts = {Verdict.REFUSED: refused, Verdict.WARNED: warned, Verdict.AS_DDP: as_ddp, Verdict.WRONG: wrong}
    return next((verdict for verdict, text in texts.items() if text), Verdict.EQUAL)


CASES: Final[dict[str, Case]] = {}


def add(name: str, script: Script, **options: Any) -> None:
    """A further case; `options` are the attributes of `Case`."""
    function = script.func if isinstance(script, partial) else script
    assert name not in CASES, f"two cases are called {name}"
    CASES[name] = Case(name=name, family=function.__module__.rpartition(".")[2], script=script, **options)


def case(**options: Any) -> Callable[[Script], Script]:
    """`add` for a function, by its name."""

    def register(script: Script) -> Script:
        add(script.__name__, script, **options)
        return script

    return register


def load() -> dict[str, Case]:
    """All cases, in the order of the page."""
    for family in FAMILIES:
        importlib.import_module(f"tests.equivalence.families.{family}")
    return CASES
