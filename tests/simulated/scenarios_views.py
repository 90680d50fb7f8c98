"""Scenarios of votes, reports and joiners that drawn runs contain too seldom, or never."""

from gossip import Envelope
from gossip.messages import Accept, Accepted, Body, Decide, Join, Prepare, Promise
from gossip.progress import Beat, Ready
from gossip.swim import Body as GOSSIP
from gossip.view import Policy
from p2p.step.transitions import Stage as StepStage
from tests.simulation import Failure

from .catchup import Fed, Snapshot
from .stage import Scenarios, ScriptedSimulation
from .token_runner import Part

STORIES = Scenarios()
scenario = STORIES.named


def _is(message: object, kind: type[Body]) -> bool:
    return isinstance(message, Envelope) and isinstance(message.body, kind)


@scenario("who decided a view is killed when it has told of it nobody but a joiner")
def _only_the_dead_know_of_a_decision() -> None:
    stage = ScriptedSimulation(num_peers=3, policy=Policy.MAJORITY)
    stage.until_trained(2)
    number = stage.view_of("p1").number
    stage.table.holds = lambda source, target, frame: isinstance(frame, Decide) and target.peer_id in ("p1", "p2", "p3")
    stage.launch("p4")
    stage.until(lambda: any(stage.view_of(name).number > number for name in ("p1", "p2", "p3")))
    stage.table.on_table.clear()
    (decider,) = [name for name in ("p1", "p2", "p3") if stage.view_of(name).number > number]
    stage.kill(decider)
    if stage.named("p4") is not None:
        stage.kill("p4")
    stage.table.holds = lambda source, target, frame: False
    stage.end_well()


@scenario("answers of an older view arrive in the next one")
def _answers_arrive_a_view_too_late() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    number = stage.view_of("p1").number
    stage.table.keeps = lambda source, target, frame: isinstance(frame, Promise | Accepted)
    stage.launch("p4")
    stage.until(lambda: all(stage.view_of(name).number > number for name in ("p1", "p2", "p3")))
    stage.table.keeps = lambda source, target, frame: False
    proposer = stage.peer(next(target.member.peer_id for _, target, _, m in stage.table.kept if _is(m, Accepted)))
    others = [name for name in ("p1", "p2", "p3", "p4") if name != proposer.member.peer_id]
    stage.until_trained(2)
    stage.cut_off(proposer.member.peer_id)
    proposer.training.goes_on_with = "zeros"
    stage.until(lambda: proposer.training.open_step.stage is StepStage.OPEN)
    stage.act(proposer.give_up, True)
    stage.wait(0.5)
    for kind in (Promise, Accepted):
        for _, target, action, message in stage.table.kept:
            if target is proposer and _is(message, kind):
                stage.act(action, message)
    stage.until(lambda: stage.excluded(proposer.member, *others))
    stage.end_well()


@scenario("two ask for a seat where a member is cut off that has proposed a view")
def _observers_ask_a_proposer() -> None:
    stage = ScriptedSimulation(num_peers=3, policy=Policy.MAJORITY)
    stage.until_trained(2)
    proposer, others = stage.peer("p1").member, ("p2", "p3")
    stage.table.holds = lambda source, target, frame: (
        isinstance(frame, Accept) or (isinstance(frame, Join) and target.peer_id in others)
    )
    stage.launch("p4")
    stage.until(lambda: any(_is(message, Accept) for *_, message in stage.table.on_table))
    stage.table.holds = lambda source, target, frame: (source.peer_id in others) != (target.peer_id in others)
    stage.launch("p5")
    stage.until(lambda: stage.excluded(proposer, *others))
    stage.table.on_table.clear()
    stage.end_well()


@scenario("the first of two members is stopped for five seconds")
def _the_first_of_two_sleeps() -> None:
    stage = ScriptedSimulation(num_peers=2)
    stage.until_trained(2)
    members = stage.view_of("p1").members
    stage.table.holds = lambda source, target, frame: source.peer_id == "p2" and not isinstance(frame, Part)
    stage.peer("p1").paused_until = stage.clock.now + 5.0
    stage.wait(5.6)  # messages of that time are read only after what it takes for silence has settled
    stage.table.release()
    stage.wait(3.0)
    if stage.view_of("p1").members != members:
        raise Failure("I14", "a member is removed because another one did not listen")
    stage.end_well()


@scenario("G2: one of four is stopped, and heard again just before the others would remove it")
def _the_last_of_four_is_heard_in_time() -> None:
    stage = ScriptedSimulation(num_peers=4)
    stage.until_trained(2)
    sleeper = stage.peer("p4")
    sleeper.paused_until = stage.clock.now + 1.8
    stage.wait(4.5)
    if stage.view_of("p1").since(sleeper.member) is None:
        raise Failure("I14", "a member is removed for a silence that is over")
    stage.end_well()


@scenario("two join one member at once, and die at once")
def _two_joiners_die() -> None:
    stage = ScriptedSimulation(num_peers=1, policy=Policy.MAJORITY)
    stage.until_trained(2)
    stage.table.holds = lambda source, target, frame: (
        isinstance(frame, Decide) or (isinstance(frame, Join) and frame.view_number > 0)
    )
    stage.launch("p2")
    stage.launch("p3")
    stage.until(lambda: len({source.member for source, *_ in stage.table.on_table}) == 2)
    stage.table.holds = lambda source, target, frame: isinstance(frame, Decide)
    for _, _, action, message in [item for item in stage.table.on_table if _is(item[3], Join)]:
        stage.act(action, message)
    stage.until(lambda: stage.view_of("p1").number > 1)
    stage.kill("p2", "p3")
    stage.table.on_table.clear()
    stage.until_trained(3, "p1")
    stage.end_well()


@scenario("two members have their seats before they know, and all but one die")
def _the_dead_did_not_know_of_their_seats() -> None:
    stage = ScriptedSimulation(num_peers=2)
    stage.until_trained(2)
    number = stage.view_of("p1").number
    stage.table.holds = lambda source, target, frame: (
        target.peer_id in ("p3", "p4") and isinstance(frame, Decide | Ready | Beat)
    )
    stage.launch("p3")
    stage.launch("p4")
    stage.until(lambda: stage.view_of("p1").number > number)
    stage.kill("p2", "p3", "p4")
    stage.table.on_table.clear()
    stage.until_trained(3, "p1")
    stage.end_well()


@scenario("a joiner has a seat and loses it, and hears of neither")
def _a_seat_in_vain() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    number = stage.view_of("p1").number
    stage.launch("p4")
    joiner = stage.peer("p4").member
    stage.table.holds = lambda source, target, frame: (
        (target == joiner and isinstance(frame, Decide))
        or (joiner in (source, target) and any(stage.view_of(name).number > number for name in ("p1", "p2", "p3")))
    )
    stage.until(lambda: stage.view_of("p1").since(joiner) is not None)
    stage.until(lambda: stage.excluded(joiner, "p1", "p2", "p3"))
    stage.table.on_table.clear()
    stage.end_well()


@scenario("the state does not get through to an observer")
def _an_observer_gets_nothing() -> None:
    stage = ScriptedSimulation(num_peers=2, follows=1.0)
    stage.table.holds = lambda source, target, frame: target.peer_id == "p3" and isinstance(frame, Snapshot | Fed)
    stage.until_trained(12)
    stage.launch("p3")
    stage.wait(1.0)
    before = stage.peer("p1").done
    stage.wait(4.0)
    if stage.peer("p1").done < before + 5:
        raise Failure("S10", "an observer holds the members up")
    stage.end_well()


@scenario("the state does not get through to an observer that comes right after the first step")
def _an_early_observer_gets_nothing() -> None:
    stage = ScriptedSimulation(num_peers=2, founding_size=2, follows=1.0)
    stage.table.holds = lambda source, target, frame: target.peer_id == "p3" and isinstance(frame, Snapshot | Fed)
    stage.until(lambda: (first := stage.named("p1")) is not None and first.done >= 0)
    stage.launch("p3")
    before = stage.peer("p1").done
    stage.wait(4.0)
    if stage.peer("p1").done < before + 5:
        raise Failure("S10", "an observer holds the members up")
    stage.end_well()


@scenario("R18: an observer that has only heard how far the members are survives them all")
def _an_observer_is_left_alone() -> None:
    stage = ScriptedSimulation(num_peers=2, follows=1.0)
    stage.table.holds = lambda source, target, frame: target.peer_id == "p3" and isinstance(frame, Snapshot | Fed)
    stage.until_trained(2)
    stage.launch("p3")
    observer = stage.peer("p3")
    stage.until(lambda: observer.knows_steps)
    stage.kill("p1", "p2")
    stage.act(observer.take_over, b"another lineage ")
    if observer.alive:
        raise Failure("S15", "it waits for a run that is gone")


@scenario("a joiner survives a founder that died before the first step")
def _a_joiner_knows_of_no_step() -> None:
    stage = ScriptedSimulation(num_peers=1, founding_size=2, follows=1.0)
    stage.table.holds = lambda source, target, frame: isinstance(frame, Join)
    stage.until(lambda: stage.named("p1"))
    stage.launch("p2")
    joiner = stage.peer("p2")
    stage.wait(2.0)
    stage.kill("p1")
    stage.act(joiner.take_over, b"another lineage ")
    stage.launch("p3")
    stage.table.release()
    stage.until_trained(2, "p2", "p3")
    stage.end_well()


@scenario("an observer whose swarm has died is further than the one that gives it a seat")
def _an_observer_has_a_later_past_elsewhere() -> None:
    stage = ScriptedSimulation(num_peers=1, follows=1.0)
    stage.until_trained(2)
    stage.peer("p1").paused_until = stage.clock.now + 15.0
    stage.table.holds = lambda source, target, frame: "p1" in (source.peer_id, target.peer_id)
    others = ("p2", "p3", "p4")
    for name in others:
        stage.launch(name, is_founder=name == "p2")
    stage.until_trained(2, *others)
    stage.table.holds = lambda source, target, frame: (
        isinstance(frame, Prepare) or "p1" in (source.peer_id, target.peer_id)  # p5 stays an observer
    )
    stage.launch("p5")
    stage.until(lambda: stage.peer("p5").done > stage.peer("p1").done + 20)  # and has proven itself, so that it says so
    stage.kill(*others)
    stage.table.on_table.clear()
    stage.table.holds = lambda source, target, frame: isinstance(frame, Snapshot)
    stage.until(lambda: stage.table.on_table)
    stage.wait(1.0)  # it is in the view, without the state, and beats
    stage.table.release()
    stage.until_trained(2, "p1", "p5")
    stage.end_well()


@scenario("a member wakes among strangers, which have replaced all that it knew")
def _among_strangers() -> None:
    stage = ScriptedSimulation(num_peers=3, policy=Policy.MAJORITY)
    stage.until_trained(2)
    sleeper = stage.peer("p2")
    stage.table.holds = lambda source, target, frame: "p2" in (source.peer_id, target.peer_id)
    stage.until(lambda: stage.excluded(sleeper.member, "p1", "p3"))
    for name in ("p4", "p5"):
        stage.launch(name)
    stage.until_trained(2, "p1", "p3", "p4", "p5")
    stage.kill("p1")
    stage.until_trained(2, "p3", "p4", "p5")
    stage.kill("p3")
    stage.until_trained(2, "p4", "p5")
    stage.table.on_table.clear()
    stage.end_well()


@scenario("who decided a view dies with it, and so does whoever it was decided against")
def _a_record_names_a_later_view() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    number = stage.view_of("p1").number
    stage.table.holds = lambda source, target, frame: isinstance(frame, Decide) and target.peer_id == "p2"
    stage.kill("p3")
    stage.until(lambda: stage.view_of("p1").number > number)
    stage.kill("p1")
    stage.table.on_table.clear()
    stage.until_trained(2, "p2")
    stage.end_well()


@scenario("who alone had met a member dies, and so does that member")
def _only_the_dead_had_met_it() -> None:
    stage = ScriptedSimulation(num_peers=2)
    stage.until_trained(2)
    number = stage.view_of("p1").number
    stage.table.holds = lambda source, target, frame: (
        {source.peer_id, target.peer_id} == {"p2", "p3"} or (target.peer_id == "p2" and isinstance(frame, GOSSIP))
    )
    stage.launch("p3")
    stage.until(lambda: stage.view_of("p2").number > number)
    stage.kill("p1", "p3")
    stage.table.on_table.clear()
    stage.until_trained(2, "p2")
    stage.end_well()


@scenario("two swarms of one name meet")
def _two_swarms_meet() -> None:
    stage = ScriptedSimulation(num_peers=4, founding="two")
    stage.until(lambda: stage.done_by("p1", "p3") > 3 and stage.done_by("p2", "p4") > 3)
    stage.wait(10.0)
    stage.end_well()
