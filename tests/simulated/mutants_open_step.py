"""Mutants of the open step (p2p/step) and its host: one of its transitions, or R16, is removed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gossip.commit
import gossip.given_up
from gossip import View
from gossip.commit import StepMachine
from gossip.given_up import Cause, GivenUp, GivingUp, graver
from p2p.net.frames import Segment
from p2p.step.effects import GiveUp, StepEffect
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.transitions import TRANSITIONS, Event, Stage

from .mutant import Mutant, mutant

Give = Callable[[OpenStep], list[StepEffect]]


# R16: steps that are given up


def _tell_at_once(original: Give) -> Give:
    def compare(self: OpenStep) -> list[StepEffect]:
        effects = original(self)
        if self.stage is Stage.VOID and self.submission is not None:
            effects = [*effects, *self._tell(self.submission.attempt)]
        return effects

    return compare


def _less_grave(one: GivenUp | None, other: GivenUp | None) -> GivenUp | None:
    if one is None or other is None or one.step != other.step:
        return graver(one, other)
    told = min(one, other, key=lambda each: (each.view_number, each.cause, each.reason))
    return replace(told, void_until=max(one.void_until, other.void_until))


# Transitions


def _withdraw_and_run_on(self: OpenStep, step: int, cause: Cause, reason: str, *, is_told: bool) -> GiveUp:
    """OUT is dropped: operations that are submitted next run in the view that ends."""
    return GiveUp(step, cause, reason, is_told)


def _keep_segments(original: Callable[[OpenStep, View], list[StepEffect]]) -> Callable[..., list[StepEffect]]:
    def installed(self: OpenStep, view: View) -> list[StepEffect]:
        pending = self._pending
        effects = original(self, view)
        self._pending = pending
        return effects

    return installed


def _submit_what_is_over(original: Callable[..., list[StepEffect]]) -> Callable[..., list[StepEffect]]:
    def submit(self: OpenStep, step: int, attempt: int, operation: Operation) -> list[StepEffect]:
        if self.stage is Stage.VOID and self.submission is None:
            self.stage = Stage.EMPTY
        return original(self, step, attempt, operation)

    return submit


def _sum_what_differs(original: Callable[..., Any]) -> Callable[..., Any]:
    def feed(self: OpenStep, run: Any, index: int, segment: Segment) -> Any:
        assert self.submission is not None
        return original(self, run, index, segment._replace(fingerprint=self.submission.fingerprints[index]))

    return feed


def _commit_without_ending(original: Callable[..., Any]) -> Callable[..., Any]:
    def commit(self: OpenStep, *arguments: Any) -> Any:
        first = 0 if self.run is None else self.run.first_sequence
        result = original(self, *arguments)
        if self.run is not None:
            self.run.first_sequence = first
        return result

    return commit


def _forget_to_do_over(self: OpenStep, event: Event) -> None:
    """A step that a barrier has dropped still counts as finished."""
    self.stage = Stage.FINISHED if event is Event.REDO else TRANSITIONS[self.stage, event]


def _go_on_in_the_void(self: OpenStep, step: int, reason: str) -> list[StepEffect]:
    """C11: a member does not say that its script has lost a step: its next one is summed with the others' open step."""
    return []


GOES_ON = "C11: a script goes on without a step that the others have begun"

OPEN_STEP: dict[str, Mutant] = {
    "R16: who has heard that a step is given up does not say so": mutant(
        (StepMachine, "hear", lambda self, given_up: None),
        breaks="S14",
        scenario="D1: who calls more gives the step up and leaves; the other has finished it",
    ),
    "R16: a barrier counts what was finished of a step that is given up": mutant(
        (gossip.commit, "without_void", lambda seated, given_up: seated),
        breaks="S14",
        scenario="D1: who calls more gives the step up and leaves; the other has finished it",
    ),
    "R16: of several causes scripts are told the least": mutant(
        (gossip.given_up, "graver", _less_grave), breaks="S13", seed=20_000_005
    ),
    "R16: what is said last of a step adds nothing": mutant(
        (gossip.given_up, "graver", lambda one, other: one or other), breaks="S18", scenario=GOES_ON
    ),
    "R16: scripts are told at each barrier": mutant(
        (GivingUp, "told", lambda self, view_number: None), breaks="S18", scenario=GOES_ON
    ),
    "R16: a script is told before a view starts the step over": mutant(
        (OpenStep, "_compare", _tell_at_once(OpenStep._compare)),
        breaks="S14",
        scenario="D1: who gives a step up is cut off before anybody hears of it",
    ),
    "R16: a script that goes on without a step says nothing": mutant(
        (OpenStep, "void", _go_on_in_the_void),
        breaks="S18",
        scenario=GOES_ON,
    ),
    "OUT: what was withdrawn runs on": mutant(
        (OpenStep, "_bar", _withdraw_and_run_on), breaks="S2 S7 S9 S16 IndexError", seed=216
    ),
    "segments of an older view are kept": mutant(
        (OpenStep, "installed", _keep_segments(OpenStep.installed)), breaks="S2 S7 S9", seed=54
    ),
    "VOID: what is submitted next runs": mutant(
        (OpenStep, "submit", _submit_what_is_over(OpenStep.submit)), breaks="L1 S17", seed=50
    ),
    "operations that differ are summed": mutant(
        (OpenStep, "_feed", _sum_what_differs(OpenStep._feed)), breaks="S30", seed=33
    ),
    "COMMIT: the next step begins with the same numbers": mutant(
        (OpenStep, "_commit", _commit_without_ending(OpenStep._commit)), breaks="L1 S7", seed=63
    ),
    "REDO: what a barrier has dropped counts as finished": mutant(
        (OpenStep, "_move", _forget_to_do_over), breaks="L1 AssertionError", seed=4
    ),
}
