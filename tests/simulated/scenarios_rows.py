"""Scenarios of measured links: all members learn the rows, and then take the algorithms of their table (R22)."""

from functools import partial

from p2p.step.transitions import Stage as StepStage
from tests.simulation import Failure

from .stage import Scenarios, ScriptedSimulation

ROWS = Scenarios()
scenario = ROWS.named


def _measuring(num_peers: int, **plan: object) -> ScriptedSimulation:
    usual = {"num_peers": num_peers, "founding_size": num_peers, "follows": 1.0, "measured_s": 2.0}
    return ScriptedSimulation(**{**usual, **plan})


def _uses_table(stage: ScriptedSimulation, *names: str) -> bool:
    """Whether these peers are in one view, and all have taken an algorithm from the table of its members."""
    peers = [peer for name in names if (peer := stage.named(name)) is not None and peer.view is not None]
    tables = {peer.view: peer.training.open_step.agreed.table(peer.view) for peer in peers if peer.view is not None}
    return len(peers) == len(names) and len(tables) == 1 and None not in tables.values()


@scenario("ROWS: a table is agreed on, kept in a view of the same members, and replaced in one of others")
def _tables_come_and_go() -> None:
    stage = _measuring(3)
    stage.until_trained(2)
    stage.until(lambda: _uses_table(stage, "p1", "p2", "p3"))
    number = stage.view_of("p1").number
    odd = stage.peer("p2")
    odd.training.goes_on_with = "zeros"
    stage.until(lambda: odd.training.open_step.stage is StepStage.OPEN)
    stage.act(odd.give_up, True)  # part of the step was sent, so it is redone in another view
    stage.until_trained(3)
    assert stage.view_of("p1").number > number and _uses_table(stage, "p1", "p2", "p3")
    stage.kill("p3")
    stage.until_trained(2, "p1", "p2")
    stage.until(lambda: _uses_table(stage, "p1", "p2"))
    used = stage.invariants.seen["operations by tables"]
    stage.until_trained(3, "p1", "p2")
    if stage.invariants.seen["operations by tables"] == used:
        raise Failure("S24", "nobody has taken what the table says")
    stage.end_well()


@scenario("ROWS: two hosts of several peers have one table")
def _hosts_are_those_of_the_view() -> None:
    """The ranks that share a line are in the table, and so the same at all members."""
    stage = _measuring(4, num_hosts=2)
    stage.until_trained(2)
    names = "p1", "p2", "p3", "p4"
    stage.until(lambda: _uses_table(stage, *names))
    if len({seat.contact.host for seat in stage.view_of("p1").seats}) != 2:
        raise Failure("S24", "this story needs two hosts")
    stage.until_trained(2, *names)
    stage.end_well()


@scenario("ROWS: broadcasts go by the table of the view, from the rank that their root has in it")
def _broadcasts_go_by_tables() -> None:
    """Broadcasts from p1, p2 and p3 in turn; then p1 is gone, and the others' ranks change."""
    stage = _measuring(3, broadcasts=True)
    stage.until_trained(2)
    for names in (("p1", "p2", "p3"), ("p2", "p3")):
        stage.until(partial(_uses_table, stage, *names))
        before = stage.invariants.seen["broadcasts by tables"]
        stage.until_trained(4, *names)
        if stage.invariants.seen["broadcasts by tables"] == before:
            raise Failure("S24", f"no broadcast of {names} has gone by what the table says")
        if "p1" in names:
            stage.kill("p1")
            stage.until_trained(2, "p2", "p3")
    stage.end_well()


@scenario("ROWS: a peer joins when rows are due")
def _a_joiner_gathers_with_all() -> None:
    """Rows are gathered in every second step."""
    stage = _measuring(2, measured_s=0.1)
    stage.until_trained(2)
    for count in (3, 4, 5):
        stage.launch(f"p{count}")
        stage.until_trained(2, *(f"p{number + 1}" for number in range(count)))
    stage.end_well()
