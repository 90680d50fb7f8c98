"""Calls to seeds: a peer calls each seed at whose address it knows no living peer."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gossip import Core, State
from p2p.errors import RemoteProtocolError
from p2p.loop.seeds import CALL_S, Seeds
from p2p.net.links import Verdict
from p2p.version import VERSION, OtherVersion
from tests.gossip.cores import core
from tests.gossip.members import A, B, C, claim

SEEDS = "control a", "control b", "control c"


class Calls:
    """Replaces the calls and frames of `Seeds`: counts them, and has the same outcome for all."""

    def __init__(self, verdict: Verdict = Verdict.SILENT) -> None:
        self.verdict = verdict
        self.called: list[str] = []
        self.ended: list[str] = []

    def encode(self, body: object) -> bytes:
        return b""

    def call(self, address: str, frames: Iterable[bytes]) -> Verdict:
        self.called.append(address)
        return self.verdict

    def hang_up(self, address: str) -> None:
        self.ended.append(address)


def look(peer: Core, now: float = 1.0) -> Calls:
    calls = Calls()
    Seeds(SEEDS, calls, calls, founds=True).call(now, peer)  # type: ignore[arg-type]
    return calls


def test_seeds_at_which_nobody_was_met_are_called_and_one_s_own_is_not() -> None:
    assert look(core(A)).called == ["control b", "control c"]


@pytest.mark.parametrize("state", [State.SUSPECT, State.LOST, State.LEFT, State.DEAD])
def test_a_seed_is_called_again_unless_who_was_met_there_is_alive_for_certain(state: State) -> None:
    peer = core(A)
    for member in (B, C):
        peer.meet(0.0, claim(member))
    assert look(peer).called == [] and look(peer).ended == list(SEEDS)
    peer.meet(0.0, replace(claim(B), state=state))
    assert look(peer).called == ["control b"]


def test_calls_are_repeated_after_a_while() -> None:
    calls = Calls()
    seeds = Seeds(SEEDS[:2], calls, calls, founds=True)  # type: ignore[arg-type]
    for now in (1.0, 1.0 + CALL_S / 2, 1.0 + CALL_S):
        seeds.call(now, core(A))
    assert calls.called == ["control b", "control b"]


def test_who_calls_in_another_version_is_named_as_long_as_nobody_is_met() -> None:
    calls, peer = Calls(), core(A)
    seeds = Seeds(SEEDS[:1], calls, calls, founds=True)  # type: ignore[arg-type]
    seeds.hear_invalid(1.0, peer, RemoteProtocolError("garbage"))
    assert seeds.explain() == ""
    seeds.hear_invalid(1.0, peer, OtherVersion(9))
    assert seeds.explain() == (
        f"a peer speaks version 9 of the wire, and this one version {VERSION}: run the same version of shoal everywhere"
    )


def test_a_seed_that_leads_back_to_the_peer_itself_is_named_with_what_it_tells_others() -> None:
    calls, peer = Calls(Verdict.ANSWERS), core(A)
    seeds = Seeds(("control nat",), calls, calls, founds=True)  # type: ignore[arg-type]
    seeds.call(1.0, peer)
    seeds.hear(B, peer)
    assert seeds.explain() == f"seed control nat {Verdict.ANSWERS.value}"
    seeds.hear(A, peer)
    assert seeds.explain() == (
        "seed control nat leads back to this peer, which advertises control a: "
        "start this peer with that seed as --advertise"
    )


def test_of_two_seeds_that_answer_none_is_taken_for_the_peer_itself() -> None:
    calls, peer = Calls(Verdict.ANSWERS), core(A)
    seeds = Seeds(("control nat", "control b"), calls, calls, founds=True)  # type: ignore[arg-type]
    seeds.call(1.0, peer)
    seeds.hear(A, peer)
    assert "leads back" not in seeds.explain()
