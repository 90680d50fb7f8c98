"""Scenarios: all members die on several hosts, and an observer continues in another lineage, or none does (R29)."""

from collections.abc import Sequence

from gossip import Member
from gossip.messages import Accept, Prepare
from tests.simulation import Failure

from .catchup import Fed, Snapshot
from .stage import Frame, Scenarios, ScriptedSimulation

HEIRS = Scenarios()
scenario = HEIRS.named


def _observed(members: Sequence[int], observers: Sequence[int]) -> ScriptedSimulation:
    """Members `p1` and so on, then observers, on the given hosts; each observer was fed for longer than the one before.

    After that the observers' states stay the same, and no peer is admitted.
    """
    stage = ScriptedSimulation(
        num_peers=len(members), num_hosts=3, follows=1.0, restarts=True, places=(*members, *observers)
    )
    stage.until_trained(2)
    behind: set[str] = set()
    stage.table.holds = lambda source, target, frame: (
        isinstance(frame, Accept | Prepare) or (target.peer_id in behind and isinstance(frame, Snapshot | Fed))
    )
    for number in range(len(members) + 1, len(members) + len(observers) + 1):
        name = f"p{number}"
        stage.launch(name)
        _follow_until(stage, name, stage.peer("p1").done + 3)
        behind.add(name)
    stage.wait(2.0)
    return stage


def _follow_until(stage: ScriptedSimulation, name: str, step: int) -> None:
    stage.until(lambda: stage.peer(name).done >= step)


def _all_die(stage: ScriptedSimulation, *members: str) -> None:
    stage.kill(*members)
    stage.table.on_table.clear()
    stage.table.holds = lambda source, target, frame: False


def _goes_on(stage: ScriptedSimulation, name: str, *others: str) -> None:
    """Check that `name` founds, with the state that it held, and the others take part."""
    old, held = next(iter(stage.invariants.lineages)), stage.peer(name).core.held_step
    if held != max(stage.peer(each).core.held_step for each in (name, *others)):
        raise Failure("stage", f"{name} is to hold the newest state, which is that after step {held}")
    stage.until(lambda: stage.peer(name).view is not None)
    if stage.view_of(name).lineage == old or stage.view_of(name).members[0].peer_id != name:
        raise Failure("S26", f"{name} is to begin another lineage, and is in {stage.view_of(name)}")
    stage.until_trained(3, name, *others)


def _links(*groups: Sequence[str]) -> set[tuple[str, str]]:
    """Links in both directions between peers of different groups."""
    return {(a, b) for one in groups for other in groups if one is not other for a in one for b in other}


@scenario("ALL DEAD: of three hosts the first decides, and who holds the newest state goes on, on another one")
def _three_hosts() -> None:
    stage = _observed([0, 1, 1], [0, 2, 1])
    _all_die(stage, "p1", "p2", "p3")
    _goes_on(stage, "p6", "p4", "p5")
    stage.end_well()


@scenario("ALL DEAD: who missed the launchers' word has it from another one, on a host where nobody decides")
def _missed_word() -> None:
    stage = _observed([0, 1, 1], [2, 1])
    stage.hosts.is_lost = lambda peer, dead: peer.member.peer_id == "p4"
    _all_die(stage, "p1", "p2", "p3")
    _goes_on(stage, "p5", "p4")
    stage.end_well()


@scenario("ALL DEAD: a host that cannot hear the first one waits, and ends")
def _first_is_cut_off() -> None:
    stage = _observed([0, 1, 1], [0, 1])
    stage.cut(_links(["p4"], ["p5"]))
    _all_die(stage, "p1", "p2", "p3")
    _goes_on(stage, "p4")
    stage.until(lambda: stage.named("p5") is None, within_s=90.0)
    stage.end_well()


@scenario("ALL DEAD: members live, and who cannot hear them does not go on")
def _some_live() -> None:
    stage = _observed([0, 1, 1], [0])
    cut = stage.cut(_links(["p2", "p3"], ["p4"]))
    first = stage.peer("p1").member
    _all_die(stage, "p1")
    stage.until(lambda: stage.excluded(first, "p2", "p3"))
    stage.wait(60.0)
    stage.network.remove(cut)
    stage.until_trained(3, "p2", "p3", "p4")
    stage.end_well()


@scenario("ALL DEAD: who decides dies once it has chosen, and who decides next finds the choice in its record")
def _decider_dies() -> None:
    stage = _observed([0, 1, 1], [0, 1, 2])
    first, next_one, heir = stage.peer("p4"), stage.peer("p5"), stage.peer("p6").member

    def is_unheard(source: Member, target: Member, frame: Frame) -> bool:
        """Holds messages from the heir once it has begun anew, and all messages to the next one."""
        begins_anew = source.peer_id == heir.peer_id and source != heir
        return target.peer_id == "p5" or begins_anew

    stage.acquaintances_of = lambda peer: []  # type: ignore[method-assign]
    _all_die(stage, "p1", "p2", "p3")
    stage.until(lambda: next_one.core.election_status(next_one.now()) is not None)
    stage.table.holds = is_unheard
    stage.until(lambda: stage.peer("p6").view is not None)
    stage.until(lambda: not next_one.core._swim.is_alive(heir), within_s=90.0)
    if stage.peer("p4") is not first:
        raise Failure("stage", "who decides is to die before it joins the heir")
    stage.kill("p4")
    stage.until(lambda: stage.named("p5") is None or stage.peer("p5").view is not None, within_s=90.0)
    stage.end_well()
