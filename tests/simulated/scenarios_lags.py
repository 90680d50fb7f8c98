"""Scenarios of observers that are slower than the members: when they get a seat, and how long members wait (R9)."""

from gossip import Member
from gossip.config import CoreConfig
from gossip.messages import Accept, Join, Prepare
from gossip.progress import Beat, Progress
from tests.simulation import Failure

from .catchup import Snapshot
from .network import LinkConditions
from .stage import Scenarios, ScriptedSimulation

LAGS = Scenarios()
scenario = LAGS.named

JOINER = "joiner"
MOST_FED = 6
SAME = 4.0
"""Slowness at which an observer's step takes as long as a member's."""
FAR = LinkConditions(delay_s=0.02)
"""Links on which members take longer to agree on a view than for a step."""
SHORT_S = 2.0
"""Limit of a barrier in which a state is given."""


def _train(slowness: float, num_peers: int = 2, compute_s: float = 0.1, **plan: object) -> ScriptedSimulation:
    """Members whose steps take a little over 0.1 s, and an observer whose steps take `slowness` times 0.03 s."""
    stage = ScriptedSimulation(num_peers=num_peers, follows=1.0, compute_s=compute_s, **plan)
    stage.until_trained(12)
    stage.launch(JOINER)
    stage.until(lambda: stage.named(JOINER))
    stage.peer(JOINER).catch_up.slowness = slowness
    for lineage in stage.invariants.lineages.values():
        lineage.gap_s = 0.0
    return stage


def _check_gap(stage: ScriptedSimulation, most_s: float) -> None:
    gap_s = max(lineage.gap_s for lineage in stage.invariants.lineages.values())
    if gap_s > most_s:
        raise Failure("S10", f"all have waited for {gap_s:.2f} s for a joiner, and {most_s:g} s are the most")


def _is_seated(stage: ScriptedSimulation) -> bool:
    joiner = stage.named(JOINER)
    return joiner is not None and joiner.active


@scenario("LAGS: an observer takes fifteen times as long for a step as the members")
def _a_slow_observer() -> None:
    stage = _train(60.0)
    stage.until(lambda: _is_seated(stage))
    stage.until_trained(2, "p1", "p2", JOINER)
    _check_gap(stage, SHORT_S)
    stage.end_well()


@scenario("LAGS: an observer takes seven times as long for a step as the members")
def _an_observer_that_is_near_by_their_steps() -> None:
    stage = _train(25.0)
    stage.until(lambda: _is_seated(stage))
    stage.until_trained(2, "p1", "p2", JOINER)
    _check_gap(stage, SHORT_S)
    stage.end_well()


@scenario("LAGS: who lags has a seat, and the state does not get through")
def _the_state_does_not_come() -> None:
    stage = _train(60.0)
    stage.until(lambda: stage.peer(JOINER).view is not None)
    joiner = stage.peer(JOINER).member
    stage.table.holds = lambda source, target, frame: target == joiner and isinstance(frame, Snapshot)
    stage.until(lambda: stage.excluded(joiner, "p1", "p2"))
    stage.until_trained(2, "p1", "p2")
    _check_gap(stage, 5.0)
    stage.table.on_table.clear()
    stage.end_well()


@scenario("LAGS: no state gets through in time in a barrier")
def _each_state_comes_too_late() -> None:
    stage = _train(60.0)
    first = stage.peer(JOINER)

    since: dict[Member, float] = {}

    def is_late(source: Member, target: Member, frame: object) -> bool:
        is_of_barrier = isinstance(frame, Snapshot) and target.peer_id == JOINER
        is_of_barrier = is_of_barrier and stage.peer(JOINER).view is not None
        return is_of_barrier and stage.clock.now < since.setdefault(target, stage.clock.now) + 5.0

    stage.table.holds = is_late
    stage.until(lambda: stage.excluded(first.member, "p1", "p2"))
    stage.until(lambda: stage.named(JOINER) is not first)
    stage.peer(JOINER).catch_up.slowness = 20.0
    stage.until(lambda: _is_seated(stage))
    stage.table.on_table.clear()
    if stage.invariants.seen["removed"] > 1:
        raise Failure("L1", f"it is removed {stage.invariants.seen['removed']} times, since each state comes too late")
    stage.end_well()


@scenario("LAGS: each state takes 4 s, and who is given it is no faster than the members")
def _it_never_comes_near() -> None:
    stage = _train(SAME)
    late: list[object] = []

    def comes(source: Member, step: int, left_s: int) -> None:
        joiner = stage.peer(JOINER)
        joiner.core.state_segment_arrived(joiner.now(), source, step)
        if left_s:
            stage.clock.after(1.0, None, "comes", comes, source, step, left_s - 1)
        else:
            stage.table.send_data(*stage.table.on_table.pop(0))

    def is_late(source: Member, target: Member, frame: object) -> bool:
        if not isinstance(frame, Snapshot) or target.peer_id != JOINER or frame in late:
            return False
        late.append(frame)
        stage.clock.after(0.0, None, "comes", comes, source, frame.step, 4)
        return True

    stage.table.holds = is_late
    stage.until(lambda: _is_seated(stage), within_s=60.0)
    stage.end_well()


@scenario("LAGS: the members call operations of their own in a row")
def _nobody_has_a_state() -> None:
    stage = _train(60.0, 3)
    stage.table.holds = lambda source, target, frame: isinstance(frame, Prepare)
    stage.until(lambda: stage.invariants.seen["scripts held"])
    joiner, first, last = stage.peer(JOINER), stage.peer("p1").done + 2, 10**6
    for peer in stage.alive():
        peer.catch_up.is_own = lambda step: first <= step <= last  # type: ignore[method-assign]
    stage.wait(2.0)
    stage.table.on_table.clear()
    stage.table.release()
    stage.wait(3.0)
    if stage.named(JOINER) is not joiner or joiner.view is not None:
        raise Failure("S10", "who lags has a seat where nobody can give it the state")
    last = stage.peer("p1").done
    stage.until(lambda: _is_seated(stage))
    if stage.named(JOINER) is not joiner:
        raise Failure("L1", "it has come back")
    stage.end_well()


@scenario("LAGS: an operation of their own follows each step of the members, which is short")
def _the_state_is_rarely_whole() -> None:
    stage = _train(500.0, 3, compute_s=0.002, own_every=2, founding_size=3, weather=FAR)
    joiner = stage.peer(JOINER)
    stage.until(lambda: _is_seated(stage))
    if stage.named(JOINER) is not joiner:
        raise Failure("L1", "its view comes where nobody can give it the state")
    stage.end_well()


@scenario("LAGS: who is to propose who lags has finished the step behind which nobody has a state")
def _it_lags_behind_the_finish() -> None:
    stage = _train(500.0, 3, compute_s=0.002, own_every=2, founding_size=3, weather=FAR)
    joiner, first = stage.peer(JOINER), stage.peer("p1")
    assert first.view is not None and first.view.members[first.view.number % 3] == first.member, "it is its turn"

    def lags(source: Member, target: Member, frame: object) -> bool:
        return isinstance(frame, Join) and frame.lags

    stage.table.holds = lags
    stage.until(lambda: joiner.catch_up.is_held)
    open_step = first.done + 1 + (first.done + 1) % 2 + 1

    def is_finish(frame: object) -> bool:
        said = frame.progress if isinstance(frame, Beat) else frame
        return isinstance(said, Progress) and said.finish is not None and said.finish.step == open_step

    def is_late(source: Member, target: Member, frame: object) -> bool:
        return target == first.member and is_finish(frame)

    stage.table.holds = lambda source, target, frame: is_late(source, target, frame) or lags(source, target, frame)
    stage.until(lambda: first.done == open_step - 1 and first.core.has_finished)
    stage.table.release(but=is_late)
    stage.wait(0.1)
    stage.table.release()
    stage.until(lambda: _is_seated(stage))
    if stage.named(JOINER) is not joiner:
        raise Failure("L1", "its view comes where nobody can give it the state")
    stage.end_well()


@scenario("LAGS: who lags has a seat after it was let go on")
def _the_view_comes_late() -> None:
    stage = _train(150.0, 3, compute_s=0.02)
    stage.table.holds = lambda source, target, frame: isinstance(frame, Prepare | Accept)
    joiner = stage.peer(JOINER)
    stage.until(lambda: joiner.catch_up.is_held)
    since = joiner.done
    stage.until(lambda: not joiner.catch_up.is_held)
    stage.until(lambda: joiner.done > since)
    stage.wait(0.2)
    for lineage in stage.invariants.lineages.values():
        lineage.gap_s = 0.0
    stage.table.release()
    stage.until(lambda: _is_seated(stage))
    stage.until_trained(2, "p1", "p2", "p3", JOINER)
    _check_gap(stage, 5.0)
    stage.end_well()


@scenario("LAGS: a peer without a model comes, and an operation follows each step of the members")
def _where_an_iteration_begins() -> None:
    for seed in range(5):
        _come_without_a_model(seed)


def _come_without_a_model(seed: int) -> None:
    stage = ScriptedSimulation(seed=seed, num_peers=2, follows=0.0, compute_s=0.02, own_every=2)
    stage.until_trained(5)
    stage.launch(JOINER)
    stage.until(lambda: _is_seated(stage))
    if num_removed := stage.invariants.seen["removed"]:
        raise Failure("L1", f"it had a seat where nobody could give it the state, {num_removed} times")
    stage.until_trained(2, "p1", "p2", JOINER)
    stage.end_well()


@scenario("LAGS: an observer stands still until there is no room for what it is fed")
def _there_is_no_room() -> None:
    for seed in range(5):
        _stand_still(seed)


def _stand_still(seed: int) -> None:
    config = CoreConfig(most_fed=MOST_FED)
    stage = ScriptedSimulation(
        seed=seed, num_peers=1, follows=1.0, compute_s=0.05, own_every=2, has_phases=True, config=config
    )
    stage.until_trained(2)
    stage.launch(JOINER)
    stage.peer(JOINER).catch_up.slowness = 60.0
    stage.until(lambda: stage.invariants.seen["steps let go"] > 2 * MOST_FED)
    stage.peer(JOINER).catch_up.slowness = 1.0
    stage.until(lambda: _is_seated(stage))
    if stage.invariants.seen["operations missed"]:
        raise Failure("S22", "it is not given the result of an operation of its own")
    if (num_states := stage.invariants.seen["states loaded"]) > 2:
        raise Failure("L1", f"it has loaded {num_states} states, since what was fed behind each was not kept")
    stage.end_well()


@scenario("LAGS: the only member is stopped for longer than a JOIN counts")
def _the_feeder_is_stopped() -> None:
    for seed in range(16, 20):  # each stops it at another moment
        _stop_the_feeder(seed)


def _stop_the_feeder(seed: int) -> None:
    stage = ScriptedSimulation(seed=seed, num_peers=1, follows=1.0, compute_s=0.05, own_every=2)
    stage.until_trained(2)
    stage.launch(JOINER)
    joiner, seen = stage.peer(JOINER), stage.invariants.seen
    stage.until(lambda: joiner.done > 0)
    stage.until(lambda: joiner.view is None and joiner.catch_up.is_own(joiner.done + 1))
    stage.wait(0.005 * seed)
    stage.peer("p1").paused_until, num_dropped = stage.clock.now + 2.0, seen["feeds dropped"]
    stage.until(lambda: _is_seated(stage))
    if seen["operations missed"] and seen["feeds dropped"] == num_dropped:
        raise Failure("S22", "it was not fed what was committed as its feeder went on")
    stage.end_well()
