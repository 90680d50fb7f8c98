"""Mutants of the death of all members on several hosts: one rule is removed (R29 of PROTOCOL.md)."""

from collections.abc import Callable

from gossip import Member, View
from gossip.claim import Claim
from gossip.effects import Effect, WriteRecord
from gossip.heir_election import HeirElection
from gossip.joining import Joining
from gossip.messages import AcceptorRecord, Choice

from .mutant import Mutant, mutant


def _last_without_proof(self: HeirElection) -> View | None:
    """Members that are not heard count as dead."""
    views = [record.view for record in self._records().values() if record.view is not None]
    last = max(views, key=lambda view: view.number, default=None)
    return None if last is None or any(map(self._swim.is_alive, last.members)) else last


def _missing_without_the_silent(original: Callable[..., list[Claim]]) -> Callable[..., list[Claim]]:
    """Peers that decide before this one are awaited only as long as they are heard."""

    def missing(self: HeirElection, last: View) -> list[Claim]:
        return [claim for claim in original(self, last) if self._swim.is_alive(claim.member)]

    return missing


def _records_without_choices(original: Callable[..., dict[Member, AcceptorRecord]]) -> Callable[..., object]:
    def records(self: HeirElection) -> dict[Member, AcceptorRecord]:
        found = original(self).items()
        return {member: AcceptorRecord(each.view, each.promised, each.vote) for member, each in found}

    return records


def _choose_without_writing(original: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def write(self: HeirElection, choice: Choice) -> list[Effect]:
        return [effect for effect in original(self, choice) if not isinstance(effect, WriteRecord)]

    return write


def _oldest(self: HeirElection, now: float, last: View) -> Member | None:
    return None if not self._holds or self._missing(last) else self._me


HEIRS: dict[str, Mutant] = {
    "R29: who is not heard is dead": mutant(
        (HeirElection, "_last_view", _last_without_proof),
        breaks="S29",
        scenario="ALL DEAD: members live, and who cannot hear them does not go on",
    ),
    "R29: a second host founds, since it does not hear the first": mutant(
        (HeirElection, "_missing", _missing_without_the_silent(HeirElection._missing)),
        breaks="S29",
        scenario="ALL DEAD: a host that cannot hear the first one waits, and ends",
    ),
    "R29: what a decider has written is not read": mutant(
        (HeirElection, "_records", _records_without_choices(HeirElection._records)),
        breaks="S29",
        scenario="ALL DEAD: who decides dies once it has chosen, and who decides next finds the choice in its record",
    ),
    "R29: a choice is said, and not written": mutant(
        (HeirElection, "_write", _choose_without_writing(HeirElection._write)),
        breaks="S29",
        scenario="ALL DEAD: who decides dies once it has chosen, and who decides next finds the choice in its record",
    ),
    "R29: who hears of another lineage waits on": mutant(
        (Joining, "_turn_to", lambda self, source: []),
        breaks="L1",
        scenario="ALL DEAD: of three hosts the first decides, and who holds the newest state goes on, on another one",
    ),
    "R29: nobody passes on what is proven": mutant(
        (HeirElection, "_pass_on", lambda self, repeat: []),
        breaks="L1",
        scenario="ALL DEAD: who missed the launchers' word has it from another one, on a host where nobody decides",
    ),
    "R29: who decides goes on, whatever others hold": mutant(
        (HeirElection, "_choose", _oldest),
        breaks="S26",
        scenario="ALL DEAD: of three hosts the first decides, and who holds the newest state goes on, on another one",
    ),
}
