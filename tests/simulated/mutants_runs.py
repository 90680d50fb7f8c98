"""Mutants of run descriptions: one rule is removed (R19 of PROTOCOL.md)."""

from collections.abc import Callable

from gossip import Member, Run, RunDescription
from gossip.effects import Effect
from gossip.joining import Joining
from gossip.membership import Membership
from gossip.messages import Head, Join, LineageAnswer, Refuse
from gossip.progress import NOTHING_DONE

from .mutant import Mutant, mutant

UNLIKE = "RUNS: who trains another model asks for a seat"
PROVEN = "RUNS: the members agree on another model, and an observer that keeps step is not there yet"
GIVEN = "RUNS: the members agree on another model, and an observer has had its state just before"


def _ask_again(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def receive(
        self: Joining, now: float, source: Member, lineage: bytes, body: Head | Refuse | LineageAnswer
    ) -> list[Effect]:
        return [] if isinstance(body, Refuse) else original(self, now, source, lineage, body)

    return receive


def _with_what_is_run_now(self: Membership, run: Run, join: Join) -> list[str]:
    return run.description.differences(join.run)


def _by_what_it_names(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def differences(self: Membership, run: Run, join: Join) -> list[str]:
        is_named = join.done > NOTHING_DONE
        return original(self, run, join) if is_named else _with_what_is_run_now(self, run, join)

    return differences


RUNS: dict[str, Mutant] = {
    "R19: whatever a joiner trains, it has a seat": mutant(
        (RunDescription, "differences", lambda self, other: []), breaks="S32", scenario=UNLIKE
    ),
    "R19: who is refused asks again": mutant(
        (Joining, "receive", _ask_again(Joining.receive)), breaks="L1", scenario=UNLIKE
    ),
    "R19: what was run before a change counts no more": mutant(
        (Membership, "_differences", _with_what_is_run_now), breaks="S32", scenario=PROVEN
    ),
    "R19: who does not say yet how far it is has to run what the members run now": mutant(
        (Membership, "_differences", _by_what_it_names(Membership._differences)), breaks="S32", scenario=GIVEN
    ),
}
