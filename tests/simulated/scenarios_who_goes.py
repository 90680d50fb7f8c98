"""Scenarios of members that differ in calls or parameters, and of which of them go: R17 of PROTOCOL.md."""

from gossip import Member
from gossip.messages import Accept
from gossip.progress import Abort, Beat, Progress, StateQuery
from gossip.view import Policy
from p2p.step.transitions import Stage as StepStage
from tests.simulation import Failure

from .peer import Peer
from .stage import Frame, Scenarios, ScriptedSimulation
from .token_runner import Part

WHO_GOES = Scenarios()
scenario = WHO_GOES.named


def _goes_alone(stage: ScriptedSimulation, odd: Peer, *others: str, within_s: float = 30.0) -> None:
    """Check that only the script of `odd` is told, and the others continue without it."""
    stage.until(lambda: stage.excluded(odd.member, *others), within_s)
    stage.until(lambda: stage.invariants.seen["told alone"])
    stage.until_trained(2, *others)
    if [stage.peer(name).training.num_told for name in others] != [0] * len(others):
        raise Failure("S19", "who stays is told as if it had to go")


def _damage(stage: ScriptedSimulation, name: str) -> Peer:
    odd = stage.peer(name)
    odd.training.state = odd.training.state.damaged("once")
    stage.invariants.damaged.add(odd.member)
    return odd


@scenario("CALLS: one of three founders calls more than the others, who have finished the step")
def _who_calls_more_goes_alone() -> None:
    stage = ScriptedSimulation(num_peers=3, founding_size=3)
    stage.until_trained(4)
    for name in ("p1", "p3"):
        stage.peer(name).training.calls_wrong = "fewer"
    odd = stage.peer("p2")
    _goes_alone(stage, odd, "p1", "p3")
    stage.end_well()


@scenario("CALLS: two of five joiners and founders call first, and not the same")
def _nobody_goes_before_it_is_known_who_stays() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(4)
    odd = stage.peer("p2")
    stage.until(lambda: not odd.training.inputs and odd.done == stage.peer("p1").done)
    odd.training.calls_wrong = "another"
    stage.peer("p1").paused_until = stage.clock.now + 0.7
    _goes_alone(stage, odd, "p1", "p3")
    stage.end_well()


@scenario("CALLS: two joiners call something else than the founder")
def _joiners_do_not_outvote_a_founder() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(4)
    odd = [stage.peer(name) for name in ("p2", "p3")]
    for each in odd:
        each.training.calls_wrong = "another"
    stage.until(lambda: all(stage.excluded(each.member, "p1") for each in odd))
    stage.until_trained(2, "p1")
    stage.end_well()


@scenario("CALLS: what two founders say of their calls is lost once")
def _what_is_called_is_said_again() -> None:
    stage = ScriptedSimulation(num_peers=3, founding_size=3)
    stage.until_trained(4)
    odd = stage.peer("p2")
    odd.training.calls_wrong = "fewer"

    def holds(source: Member, target: Member, frame: Frame) -> bool:
        return isinstance(frame, Abort) and target == odd.member

    stage.table.holds = holds
    stage.until(lambda: len(stage.table.on_table) == 2)
    stage.table.on_table.clear()
    stage.table.release()
    _goes_alone(stage, odd, "p1", "p3", within_s=1.0)  # before any member reports the step as stalled
    stage.end_well()


@scenario("PARAMETERS: one of two founders raises first, and the other has not heard what it has finished")
def _both_founders_raise() -> None:
    stage = ScriptedSimulation(num_peers=2, founding_size=2)
    stage.until_trained(4)
    first, second = _damage(stage, "p2"), stage.peer("p1")

    def holds(source: Member, target: Member, frame: Frame) -> bool:
        is_finish = isinstance(frame, Progress | Beat)
        return is_finish and source == first.member

    stage.table.holds = holds
    stage.until(lambda: first.training.num_told)
    stage.until(lambda: not first.alive)
    stage.until(lambda: second.training.num_told)


@scenario("PARAMETERS: two joiners have others than the founder")
def _joiners_load_what_the_founder_has() -> None:
    stage = ScriptedSimulation(num_peers=3, follows=1.0)
    stage.until_trained(4)
    odd = [_damage(stage, name) for name in ("p2", "p3")]
    stage.until(lambda: all(stage.excluded(each.member, "p1") for each in odd))
    stage.until_trained(3, "p1", "p2", "p3")
    stage.end_well()


@scenario("PARAMETERS: one of two founders has finished with others, and is killed before the other one has")
def _the_last_founder_raises() -> None:
    stage = ScriptedSimulation(num_peers=2, founding_size=2)
    stage.until_trained(4)
    odd, last = _damage(stage, "p2"), stage.peer("p1")
    stage.table.holds = lambda source, target, frame: isinstance(frame, Part) and target == last.member
    stage.until(lambda: odd.core.has_finished)
    stage.wait(0.05)  # the other one has heard it
    step = last.done + 1
    stage.kill("p2")
    stage.table.on_table.clear()
    stage.table.release()
    stage.until(lambda: last.training.num_told or last.done >= step)
    if not last.training.num_told:
        raise Failure("S19", f"the last founder commits step {step}, in which the other one had other parameters")


@scenario("DAMAGED: a member whose memory changes has finished the step, which another one has committed")
def _what_others_may_have_committed_is_not_void() -> None:
    stage = ScriptedSimulation(num_peers=3, num_hosts=3, places=(0, 1, 2), policy=Policy.MAJORITY, founding_size=3)
    stage.until_trained(3)
    odd, other, victim = (stage.peer(name) for name in ("p1", "p2", "p3"))
    ends = victim.member, odd.member
    stage.table.holds = lambda source, target, frame: (source, target) == ends and isinstance(frame, Progress | Beat)
    stage.until(lambda: other.done > odd.done and odd.core.has_finished)
    stage.table.on_table.clear()
    stage.table.holds = lambda source, target, frame: isinstance(frame, Accept)
    gone = victim.member
    stage.end(victim, "dies")
    for peer in stage.alive():
        peer.declare_dead(gone, "its process has ended", None)
    stage.until(lambda: stage.table.on_table)  # a view with the two others is proposed
    _damage(stage, "p1")
    stage.act(odd.go_damaged, "its memory has changed")
    stage.wait(0.01)  # what it says of that overtakes the view
    stage.table.release()
    stage.until(lambda: stage.excluded(odd.member, "p2"))
    stage.end_well()


@scenario("DAMAGED: a member whose memory changes while it waits for the others is asked for its state")
def _a_damaged_state_is_not_given_away() -> None:
    stage = ScriptedSimulation(num_peers=3, founding_size=3, follows=1.0)
    stage.until_trained(3)
    stage.table.holds = lambda source, target, frame: isinstance(frame, StateQuery)
    stage.launch("p4")
    stage.until(lambda: stage.table.on_table)
    odd = stage.peer(stage.table.on_table[0][1].member.peer_id)
    late = next(peer for peer in stage.alive() if peer.active and peer is not odd)
    late.paused_until = stage.clock.now + 0.5
    stage.until(lambda: odd.core.has_finished or odd.training.open_step.stage is StepStage.CLOSED)
    _damage(stage, odd.member.peer_id)
    stage.table.release()
    stage.until(lambda: stage.peer("p4").active)
    if stage.peer("p4").training.state.truths != late.training.state.truths:
        raise Failure("L1", "a joiner has the state of a damaged member")
    stage.end_well()
