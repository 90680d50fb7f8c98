"""Scenarios of steps: the counterexamples of PROTOCOL.md on production cores, named after the property at stake."""

from collections.abc import Callable

from gossip import Envelope, Member
from gossip.messages import Accept, Accepted, Decide, Join, Prepare, Promise, Report
from gossip.progress import Abort, Beat, Ready
from gossip.view import Policy, feeder_of
from p2p.step.transitions import Stage as StepStage
from tests.gossip.acceptors import Swarm, of_policy, successor
from tests.simulation import Failure

from .peer import Peer
from .stage import Frame, Scenarios, ScriptedSimulation
from .token_runner import Part

COUNTEREXAMPLES = Scenarios()
scenario = COUNTEREXAMPLES.named


def _lacks_result_of(stage: ScriptedSimulation, name: str, sender: str) -> Callable[[Member, Member, Frame], bool]:
    """Hold the input of `sender` to the last operation of the step that is open at `name`."""
    step = stage.peer(name).done + 1

    def holds(source: Member, target: Member, frame: Frame) -> bool:
        is_last = isinstance(frame, Part) and (frame.step, frame.region[1]) == (step, 1)
        return is_last and (source.peer_id, target.peer_id) == (sender, name)

    return holds


def _have_finished(stage: ScriptedSimulation, *names: str) -> bool:
    return all(stage.peer(name).core.has_finished for name in names)


@scenario("C1: who was cut off while the others went on hears of their deaths")
def _a_minority_hears_that_the_majority_has_died() -> None:
    stage = ScriptedSimulation(num_peers=4)
    stage.until_trained(3)
    one, others = stage.peer("p2"), ("p1", "p3", "p4")
    stage.cut_off("p2")
    stage.until(lambda: stage.excluded(one.member, *others))
    stage.until_trained(2, *others)
    stage.kill(*others)
    stage.until(lambda: not one.alive)  # removed: their records name the view without it
    stage.wait(5.0)
    if stage.named("p2") is None or stage.peer("p2").view is not None:
        raise Failure("S1", "who was excluded goes on by itself")


def _two_accept_a_view_and_die(*, is_owner: bool) -> tuple[ScriptedSimulation, Peer]:
    """Two of three accept a view with a joiner, and are killed before any other peer hears that it is decided."""
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    members = _in_turn(stage)
    last = stage.peer(members[0 if is_owner else 2])
    dead = [name for name in members if name != last.member.peer_id]
    stage.cut_off(last.member.peer_id)
    stage.launch("p4")
    stage.cut({("p4", last.member.peer_id), (last.member.peer_id, "p4")})

    def voted() -> bool:
        records = [stage.hosts.records[stage.peer(name).member] for name in dead]
        return all(record.vote is not None for record in records)

    stage.until(voted)
    vote = stage.hosts.records[stage.peer(dead[0]).member].vote
    assert vote is not None
    stage.act(stage.membership.decided, stage.peer(dead[0]).member, vote.view)  # though no living peer knows
    last.paused_until = stage.clock.now + 1.2  # it hears of both deaths at the same time
    stage.kill(*dead)
    return stage, last


@scenario("C2: what the dead have accepted is decided, and the last survivor knows nothing of it")
def _the_dead_have_decided() -> None:
    stage, last = _two_accept_a_view_and_die(is_owner=False)
    number = stage.view_of(last.member.peer_id).number
    stage.until(lambda: not last.alive or stage.view_of(last.member.peer_id).number > number)
    stage.end_well()


@scenario("C2: the last survivor owns the view in which the dead have accepted another one")
def _the_owner_survives() -> None:
    stage, last = _two_accept_a_view_and_die(is_owner=True)
    number = stage.view_of(last.member.peer_id).number
    stage.until(lambda: not last.alive or stage.view_of(last.member.peer_id).number > number)
    stage.end_well()


@scenario("C3: an excluded reader wakes when what it is about to read is used again")
def _an_excluded_slow_reader() -> None:
    stage = ScriptedSimulation(num_peers=3, lends=True)
    stage.until_trained(3)
    reader = stage.peer("p3")
    stage.table.holds = _lacks_result_of(stage, "p3", "p1")
    stage.until(lambda: _have_finished(stage, "p1", "p2"))
    stage.wait(0.01)  # p3 hears that they have finished
    reader.paused_until = stage.clock.now + 8.0
    stage.table.release()
    stage.cut_off("p3")
    stage.until(lambda: stage.excluded(reader.member, "p1", "p2"))
    stage.until_trained(2, "p1", "p2")
    stage.until(lambda: stage.clock.now > reader.paused_until + 0.1)
    stage.end_well()


@scenario("C4: a member is excluded, and its JOIN of before arrives again while it hears nothing")
def _excluded_and_asks_again() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    stage.table.keeps = lambda source, target, frame: isinstance(frame, Join) and source.peer_id == "p4"
    stage.launch("p4")
    stage.until(lambda: stage.named("p4") is not None and stage.peer("p4").active)
    stage.until_trained(2)
    _exclude_and_let_it_ask(stage)


@scenario("C4: a member is excluded before it says READY, and its JOIN of before arrives again while it hears nothing")
def _excluded_before_it_is_heard() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    stage.table.keeps = lambda source, target, frame: isinstance(frame, Join) and source.peer_id == "p4"
    stage.table.holds = lambda source, target, frame: isinstance(frame, Ready | Beat) and source.peer_id == "p4"
    stage.launch("p4")
    stage.until(lambda: stage.named("p4") is not None and stage.peer("p4").view is not None)
    _exclude_and_let_it_ask(stage)


def _exclude_and_let_it_ask(stage: ScriptedSimulation) -> None:
    stage.table.keeps = lambda source, target, frame: False
    joiner, others = stage.peer("p4"), ("p1", "p2", "p3")
    cut = stage.cut_off("p4")
    stage.until(lambda: stage.excluded(joiner.member, *others))
    stage.until_trained(2, *others)
    for _, target, action, message in stage.table.kept:
        if target.alive and target.member.peer_id in others:
            stage.act(action, message)
    stage.wait(1.0)
    stage.table.on_table.clear()
    stage.table.release()
    stage.network.remove(cut)
    stage.end_well()


@scenario("C5: everybody with the state dies before a joiner's barrier is complete")
def _admitted_members_alone() -> None:
    stage = ScriptedSimulation(num_peers=1)
    stage.until_trained(3)
    stage.table.holds = lambda source, target, frame: isinstance(frame, Ready)
    stage.launch("p2")
    stage.until(lambda: stage.named("p2") is not None and stage.peer("p2").view is not None)
    stage.kill("p1")
    stage.table.release()
    stage.wait(10.0)
    joiner = stage.peer("p2")
    if joiner.active or joiner.done >= 0:
        raise Failure("S4", "a joiner goes on from nothing")


@scenario("C6: a result is written to by its user while others read it")
def _a_result_is_clipped() -> None:
    stage = ScriptedSimulation(num_peers=3, lends=True, two_phase=True)
    stage.until_trained(3)
    step = stage.peer("p3").done + 1
    stage.table.holds = lambda source, target, frame: (
        isinstance(frame, Part) and frame.region == ("result", 1) and frame.step == step and target.peer_id == "p3"
    )
    stage.until(lambda: _have_finished(stage, "p1", "p2"))
    stage.table.release()
    stage.until_trained(3)
    stage.end_well()


@scenario("C7: an observer is fed with a step that is then redone")
def _an_observer_is_fed_too_early() -> None:
    stage = ScriptedSimulation(num_peers=3, follows=1.0)
    stage.until_trained(2)
    stage.launch("p4")
    stage.table.holds = lambda source, target, frame: isinstance(frame, Prepare)  # it stays an observer
    stage.until(lambda: stage.named("p4") is not None and stage.peer("p4").done > 20)  # it has proven itself
    feeder = feeder_of(stage.peer("p4").member, stage.view_of("p1")).peer_id
    slow, victim = (name for name in ("p1", "p2", "p3") if name != feeder)
    step = stage.peer(slow).done + 2  # no frame of it is in flight
    stage.until(lambda: stage.done_by("p1", "p2", "p3") == step - 1)
    lacks = _lacks_result_of(stage, slow, victim)
    stage.table.holds = lambda source, target, frame: isinstance(frame, Prepare) or lacks(source, target, frame)
    stage.until(lambda: _have_finished(stage, feeder, victim))
    stage.table.holds = lambda source, target, frame: isinstance(frame, Prepare | Join) or lacks(source, target, frame)
    stage.wait(2.0)  # the others forget that it asks: it must not be in the barrier that drops the step
    stage.kill(victim)
    stage.table.on_table.clear()
    stage.table.holds = lambda source, target, frame: (
        isinstance(frame, Join) or (isinstance(frame, Part) and frame.step > step)
    )
    stage.until(lambda: stage.done_by(feeder, slow) == step)
    if stage.view_of(feeder).since(stage.peer("p4").member) is not None:
        raise Failure("L1", "the observer has a seat before the step is redone")
    stage.table.holds = lambda source, target, frame: isinstance(frame, Part) and frame.step > step
    stage.until(lambda: stage.peer("p4").view is not None)
    stage.table.release()
    stage.until(lambda: stage.peer("p4").active)
    stage.end_well()


def _calls_that_differ() -> ScriptedSimulation:
    """p1 calls one operation less than p2 in its next step; both are founders, and no script catches the error."""
    stage = ScriptedSimulation(num_peers=2, founding_size=2, lends=False)
    stage.until_trained(4)
    for name in ("p1", "p2"):
        stage.peer(name).training.catches_nothing = True
        stage.peer(name).training.calls_wrong = "" if name == "p2" else "fewer"
    return stage


@scenario("D1: who calls more gives the step up and leaves; the other has finished it")
def _a_step_that_was_given_up_is_committed() -> None:
    stage = _calls_that_differ()
    stage.table.holds = lambda source, target, frame: source.peer_id == "p2" and isinstance(frame, Ready | Beat)
    stage.until(lambda: stage.named("p2") is None)
    stage.table.on_table.clear()
    stage.table.release()
    stage.end_well()


@scenario("D1: who gives a step up is cut off before anybody hears of it")
def _a_script_is_told_too_early() -> None:
    stage = _calls_that_differ()
    stage.table.holds = lambda source, target, frame: source.peer_id == "p2" and isinstance(frame, Abort | Report)
    stage.until(lambda: stage.invariants.seen["steps given up"])
    cut = stage.cut_off("p2")
    stage.table.on_table.clear()
    stage.wait(6.0)
    stage.network.remove(cut)
    stage.end_well()


@scenario("C11: a script goes on without a step that the others have begun")
def _a_script_is_a_step_ahead() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(4)
    odd = stage.peer("p2")
    odd.training.goes_on_with = "next"
    stage.until(lambda: odd.done % 2 == 1 and odd.training.open_step.stage is StepStage.OPEN)
    step = odd.done + 1
    stage.act(odd.give_up, True)
    stage.until(lambda: stage.done_by("p1", "p2", "p3") >= step)
    if [stage.peer(name).training.num_told for name in ("p1", "p2", "p3")] != [1, 0, 1]:
        raise Failure("S18", "what a script calls next is summed with what the others called before")
    stage.end_well()


@scenario("C9: a view is installed between a finish on the board and what READY says")
def _the_board_races_ready() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(3)
    decider, late, early = _in_turn(stage)
    holds = _lacks_result_of(stage, late, early)
    stage.table.holds = lambda source, target, frame: (
        holds(source, target, frame) or (isinstance(frame, Decide) and target.peer_id in (late, early))
    )
    stage.until(lambda: _have_finished(stage, decider, early))
    before = stage.view_of(decider).stamp
    stage.launch("p4")
    stage.until(lambda: stage.view_of(decider).number > before.number)
    decided, one = stage.view_of(decider), stage.peer(late)
    (part,) = [item for item in stage.table.on_table if isinstance(item[3], Part)]
    stage.table.on_table.remove(part)
    stage.act(part[2], part[3])
    stage.wait(0.01)
    stage.act(one.receive, Envelope(stage.peer(decider).member, before, Decide(decided)))
    stage.wait(0.05)
    stage.table.release()
    stage.end_well()


def _in_turn(stage: ScriptedSimulation) -> list[str]:
    """The members, beginning with the one whose turn it is to propose."""
    view = stage.view_of("p1")
    first = view.number % len(view.members)
    return [member.peer_id for member in (*view.members[first:], *view.members[:first])]


@scenario("C10: an ACCEPT that is above what the record of the dead says arrives when another view is decided")
def _a_record_without_the_promise() -> None:
    """Uses only the agreement of five members (tests/gossip/test_records.py has variants)."""
    a, b, c, d, e, j = (Member(name, 1) for name in "abcdej")
    view = of_policy(Policy.LIVE, 1, a, b, c, d, e)
    swarm = Swarm(view)
    swarm.want(e, successor(view, a, b, c))
    swarm.tick(e)
    for member in (c, d):
        swarm.deliver(e, member, Prepare)
    swarm.deliver(c, e, Promise)
    swarm.kill(e, after=4)  # ACCEPT is sent, its own vote is not on record
    swarm.deliver(d, e, Promise)
    swarm.kill(c)
    swarm.kill(d)
    for reader in (a, b):
        for dead in (c, d, e):
            swarm.read(reader, dead)
    swarm.want(a, successor(view, a, b, j))
    swarm.tick(a)
    for source, target, kind in ((a, b, Prepare), (b, a, Promise), (a, b, Accept), (b, a, Accepted)):
        swarm.deliver(source, target, kind)
    swarm.kill(a)  # it has told J
    swarm.deliver(e, b, Accept)
    swarm.read(b, a)
    swarm.want(b, successor(view, b))
    swarm.tick(b)
    if len(swarm.decided) > 1:
        raise Failure("S1", "two views are decided")


@scenario("OWN: a slow observer that waits for an operation of its own is offered a state")
def _what_it_waits_for_is_fed() -> None:
    stage = ScriptedSimulation(num_peers=1, follows=1.0, own_every=2, slowness=12.0, has_phases=True)
    stage.until_trained(2)
    stage.launch("p2")
    observer = stage.peer("p2")
    stage.until(lambda: stage.invariants.seen["states declined"])
    done = observer.done
    stage.until(lambda: observer.done > done)
    if stage.invariants.seen["operations missed"]:
        raise Failure("S22", f"{observer.member} is not given the result of operation {done + 1}")
    stage.end_well()


@scenario("STALLED: a data frame is lost, and nobody is dead")
def _what_was_lost_is_sent_again_in_a_view_of_the_same_members() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    step = stage.peer("p1").done + 1
    stage.until(lambda: stage.peer("p1").done == step)  # no frame of the next one is in flight
    is_last, stamp = _lacks_result_of(stage, "p1", "p2"), stage.peer("p1").core.stamp
    stage.table.holds = lambda source, target, frame: (
        isinstance(frame, Part) and frame.stamp == stamp and is_last(source, target, frame)
    )
    stage.until(lambda: stage.table.on_table)
    stage.table.on_table.clear()
    stage.until_trained(2)


@scenario("DIVERGED: the parameters of one of three change in its memory")
def _who_has_other_parameters_than_most_loads_theirs() -> None:
    stage = ScriptedSimulation(num_peers=3, follows=1.0)
    stage.until_trained(3)
    odd = stage.peer("p2")
    odd.training.state = odd.training.state.damaged("once")
    stage.invariants.damaged.add(odd.member)
    stage.until(lambda: not odd.alive and stage.excluded(odd.member, "p1", "p3"))
    stage.until_trained(3, "p1", "p2", "p3")
    stage.until(lambda: stage.peer("p1").done == stage.peer("p2").done)
    if stage.peer("p2").training.state != stage.peer("p1").training.state:
        raise Failure("S12", "it has come back with other parameters")
    stage.end_well()
