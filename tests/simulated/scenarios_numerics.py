"""Scenarios of several numerics classes: the comparison of parameters, and re-synchronisation (R20 and R21)."""

from dataclasses import replace

from gossip import Member
from tests.simulation import Failure

from .parameters import Parameters
from .peer import Peer
from .stage import Frame, Scenarios, ScriptedSimulation
from .token_runner import Part
from .training import NUM_OPERATIONS

NUMERICS = Scenarios()
scenario = NUMERICS.named


def _mixed(kinds: str, **plan: object) -> ScriptedSimulation:
    usual = {"num_peers": len(kinds), "founding_size": len(kinds), "num_kinds": 2, "kinds": kinds, "follows": 1.0}
    return ScriptedSimulation(**{**usual, **plan})


def _odd(stage: ScriptedSimulation, name: str, state: Parameters) -> Peer:
    odd = stage.peer(name)
    odd.training.state = state
    stage.invariants.damaged.add(odd.member)
    return odd


@scenario("CLASSES: one of three computes other bits than the others, and founds the run")
def _several_classes_train() -> None:
    stage = _mixed("100")
    stage.until_trained(9)
    stage.until(lambda: len({stage.peer(name).done for name in ("p1", "p2", "p3")}) == 1)
    first, second, third = (stage.peer(f"p{number}").training.state for number in (1, 2, 3))
    if second != third or first.bits == second.bits or first.truths != second.truths:
        raise Failure("S12", "parameters are not equal within each class, and near across them")
    stage.end_well()


@scenario("CLASSES: two of one class differ by roundings, and the others are of another one")
def _who_differs_in_a_class_voids_the_step_for_all() -> None:
    stage = _mixed("1011")
    stage.until_trained(4)
    state = stage.peer("p4").training.state
    odd = _odd(stage, "p4", replace(state, bits=tuple([bits[::-1] for bits in state.bits])))
    stage.until(lambda: not odd.alive and stage.excluded(odd.member, "p1", "p2", "p3"))
    stage.until_trained(3, "p1", "p2", "p3", "p4")
    stage.end_well()


@scenario("CLASSES: the member whose slice is taken is killed before the others have it")
def _a_redo_has_a_source() -> None:
    stage = _mixed("011")
    stage.until_trained(3)
    view = stage.view_of("p1")
    source, other = (seat.member for seat in view.seats if seat.numerics != view.numerics_of(view.members[0]))

    def holds(sender: Member, target: Member, frame: Frame) -> bool:
        if not isinstance(frame, Part) or sender != source:
            return False
        return frame.region[1] == NUM_OPERATIONS and frame.step % 2 == 0  # no result of it is used before its commit

    stage.table.holds = holds
    stage.until(lambda: len(stage.table.on_table) == 2)
    stage.kill(source.peer_id)
    stage.table.on_table.clear()
    stage.table.release()
    stage.until(lambda: stage.excluded(source, "p1", other.peer_id))
    stage.until_trained(3, "p1", other.peer_id)
    stage.end_well()


@scenario("CLASSES: other hardware joins a run of one class, and dies out")
def _a_class_comes_and_goes() -> None:
    stage = _mixed("001", num_peers=2, founding_size=2)
    stage.until_trained(3)
    stage.launch("p3")
    stage.until(lambda: stage.invariants.seen["slices"] > 9)
    stage.kill("p3")
    stage.until_trained(3, "p1", "p2")
    before = stage.invariants.seen["slices"]
    stage.until_trained(3, "p1", "p2")
    if stage.invariants.seen["slices"] != before:
        raise Failure("S20", "one class alone is synchronised")
    stage.end_well()


@scenario("CLASSES: the only one of its class has had other updates")
def _who_is_far_from_the_source_goes() -> None:
    stage = _mixed("001")
    stage.until_trained(3)
    odd = _odd(stage, "p3", stage.peer("p3").training.state.damaged("once"))
    stage.until(lambda: not odd.alive and stage.excluded(odd.member, "p1", "p2"))
    stage.until_trained(3, "p1", "p2", "p3")
    if stage.peer("p3").training.state.truths != stage.peer("p1").training.state.truths:
        raise Failure("S12", "it has come back with other parameters")
    stage.end_well()
