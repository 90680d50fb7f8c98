"""Scenarios of broadcasts: each is from the named peer, or void (R23)."""

from functools import partial

from p2p.step.transitions import Stage as StepStage

from .peer import Peer
from .roots import broadcast
from .stage import Scenarios, ScriptedSimulation

ROOTS = Scenarios()
scenario = ROOTS.named


@scenario("ROOTS: roots die in the middle of a step, and others join")
def _roots_come_and_go() -> None:
    """Three peers are roots in turn."""
    stage = ScriptedSimulation(num_peers=3, founding_size=3, follows=1.0, broadcasts=True)
    stage.until_trained(3)
    for victim, left in (("p1", ("p2", "p3")), ("p3", ("p2", "p4"))):
        stage.until(partial(_is_root_of_open_step, stage.peer(victim)))
        stage.kill(victim)
        stage.until_trained(4, *(name for name in left if stage.named(name) is not None))
        if stage.named("p4") is None:
            stage.launch("p4")
            stage.until_trained(4, "p2", "p3", "p4")
    seen = stage.invariants.seen
    assert seen["broadcasts of nobody"] and seen["broadcasts"] > seen["broadcasts of nobody"]
    stage.end_well()


def _is_root_of_open_step(peer: Peer) -> bool:
    open_step = peer.training.open_step
    return open_step.stage is StepStage.OPEN and broadcast(open_step.done + 1).collective.root == peer.member.peer_id
