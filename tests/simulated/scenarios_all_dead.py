"""Scenarios: all members die, and observers continue with the states that they hold, in another lineage (R18)."""

from gossip.messages import Accept, Prepare
from tests.simulation import Failure

from .catchup import Fed, Snapshot
from .stage import Scenarios, ScriptedSimulation

ALL_DEAD = Scenarios()
scenario = ALL_DEAD.named


def _observers(*names: str) -> ScriptedSimulation:
    """Members `p1`, `p2` and `p3`, and observers `names`, each of which was fed for longer than the one before."""
    stage = ScriptedSimulation(num_peers=3, follows=1.0)
    stage.until_trained(2)
    behind: set[str] = set()
    stage.table.holds = lambda source, target, frame: (
        isinstance(frame, Accept | Prepare) or (target.peer_id in behind and isinstance(frame, Snapshot | Fed))
    )
    for name in names:
        stage.launch(name)
        _follow_until(stage, name, stage.peer("p1").done + 3)
        behind.add(name)
    stage.wait(1.0)
    stage.kill("p1", "p2", "p3")
    stage.table.on_table.clear()
    stage.table.holds = lambda source, target, frame: False
    return stage


def _follow_until(stage: ScriptedSimulation, name: str, step: int) -> None:
    stage.until(lambda: stage.peer(name).done >= step)


def _goes_on(stage: ScriptedSimulation, heir: str, *waiting: str) -> None:
    held = {name: stage.peer(name).core.held_step for name in waiting}
    if held[heir] != max(held.values()) or (len(held) > 1 and len({*held.values()}) == 1):
        raise Failure("stage", f"{heir} is to hold the newest state of {held}")
    stage.act(stage.go_on_without_members, [stage.peer(name) for name in waiting])


@scenario("ALL DEAD: of two that observed, who holds the newer state goes on, and the other joins it")
def _two_are_left() -> None:
    stage = _observers("p4", "p5")
    _goes_on(stage, "p5", "p4", "p5")
    stage.until_trained(3, "p4", "p5")
    stage.end_well()


@scenario("ALL DEAD: of three that observed, one does not see the others, and goes on alone")
def _one_is_apart() -> None:
    stage = _observers("p4", "p5", "p6")
    _goes_on(stage, "p4", "p4")
    _goes_on(stage, "p6", "p5", "p6")
    stage.until_trained(3, "p4")
    stage.until_trained(3, "p5", "p6")
    if stage.view_of("p4").lineage == stage.view_of("p5").lineage:
        raise Failure("S15", "two that do not see each other go on in one lineage")
