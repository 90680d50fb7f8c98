"""Scenarios of run descriptions: peers with another model than the members, members that change the model (R19)."""

from dataclasses import replace

from gossip import Member
from gossip.messages import Accept, Join, Prepare
from tests.simulation import Failure

from .stage import Frame, Scenarios, ScriptedSimulation

RUNS = Scenarios()
scenario = RUNS.named


@scenario("RUNS: who trains another model asks for a seat")
def _another_model() -> None:
    stage = ScriptedSimulation(num_peers=2, follows=1.0, unlike=("p3",))
    stage.until_trained(2)
    stage.launch("p3")
    stage.until(lambda: stage.named("p3") is None, within_s=5.0)
    stage.launch("p4")
    stage.until_trained(2, "p1", "p2", "p4")
    stage.end_well()


@scenario("RUNS: the members agree on another model, and an observer that keeps step is not there yet")
def _the_model_changes_for_who_keeps_step() -> None:
    _the_model_changes(is_proven=True)


@scenario("RUNS: the members agree on another model, and an observer has had its state just before")
def _the_model_changes_for_who_has_a_state() -> None:
    _the_model_changes(is_proven=False)


def _the_model_changes(*, is_proven: bool) -> None:
    """No peer is admitted until the members are far past the change. `is_proven`: the observer reports its progress."""
    stage, said = ScriptedSimulation(num_peers=3, follows=1.0), {-1}

    def holds(source: Member, target: Member, frame: Frame) -> bool:
        said.update([frame.done] if isinstance(frame, Join) else [])
        return isinstance(frame, Accept | Prepare)

    stage.until_trained(2)
    stage.table.holds = holds
    stage.launch("p4")
    observer = stage.peer("p4")
    stage.until(lambda: max(said) > 0 if is_proven else observer.core.digest)
    observer.catch_up.slowness = 10.0
    change = stage.peer("p1").done + 2
    stage.plan = replace(stage.plan, changes_in=change)
    stage.until(lambda: stage.peer("p1").done >= change)
    if (max(said) > 0) != is_proven or observer.done >= change:
        raise Failure("stage", f"the observer is at {observer.done}, and has named {max(said)}")
    stage.wait(1.0)
    stage.table.release()
    stage.until_trained(2, "p1", "p2", "p3", "p4")
    stage.end_well()
