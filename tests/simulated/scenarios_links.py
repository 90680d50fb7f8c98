"""Scenarios of members that do not hear each other, or only at times."""

from tests.simulation import Failure

from .stage import Scenarios, ScriptedSimulation
from .token_runner import Part

LINKS = Scenarios()
scenario = LINKS.named


@scenario("one of five does not hear another one for three seconds")
def _one_does_not_hear_another() -> None:
    stage = ScriptedSimulation(num_peers=5)
    stage.until_trained(2)
    members = stage.view_of("p1").members
    cut = stage.cut({("p2", "p1")})
    stage.wait(3.0)
    stage.network.remove(cut)
    stage.wait(6.0)
    if stage.view_of("p3").members != members:
        raise Failure("I14", "a member that most others hear is removed")
    stage.end_well()


@scenario("one of four becomes deaf to one after the other, and everybody hears it")
def _one_becomes_deaf() -> None:
    stage = ScriptedSimulation(num_peers=4)
    stage.until_trained(2)
    deaf = stage.peer("p4").member
    stage.cut({("p1", "p4")})
    stage.wait(0.6)
    stage.cut({("p2", "p4"), ("p3", "p4")})
    stage.until(lambda: stage.excluded(deaf, "p2", "p3"), 10.0)
    stage.until_trained(2, "p2", "p3")
    stage.end_well()


@scenario("one of four hears nobody, and everybody hears it")
def _one_of_four_is_deaf() -> None:
    for seed in range(12):
        _one_is_deaf(seed, num_peers=4)


@scenario("one of five hears nobody, and everybody hears it")
def _one_of_five_is_deaf() -> None:
    _one_is_deaf(0, num_peers=5)


def _one_is_deaf(seed: int, *, num_peers: int) -> None:
    stage = ScriptedSimulation(seed=seed, num_peers=num_peers)
    stage.until_trained(2)
    deaf, others = stage.peer("p2"), [peer for peer in stage.alive() if peer.member.peer_id != "p2"]
    names = [peer.member.peer_id for peer in others]
    stage.cut({(name, "p2") for name in names})
    stage.wait(5.0)
    if gone := [str(peer.member) for peer in others if not peer.alive]:
        raise Failure("I14", f"{gone} are removed, whom all but a deaf one hear")
    stage.until(lambda: stage.excluded(deaf.member, *names), 10.0)
    stage.until_trained(2, *names)
    stage.end_well()


@scenario("G1: two of six die within a quarter of a second, and nothing proves it")
def _two_die_together() -> None:
    stage = ScriptedSimulation(num_peers=6)
    stage.until_trained(2)
    number, living = stage.view_of("p1").number, ("p1", "p3", "p4", "p6")
    dead = [stage.peer("p2"), stage.peer("p5")]
    for peer in dead:
        peer.unproven = True
        stage.end(peer, "dies, and nobody says so")
        stage.wait(0.25)
    stage.until(lambda: all(stage.excluded(peer.member, *living) for peer in dead), 10.0)
    if (later := stage.view_of("p1").number) != number + 1:
        raise Failure("I14", f"who has died together leaves in {later - number} views")
    stage.end_well()


def _the_others_go_on(stage: ScriptedSimulation, name: str, within_s: float) -> None:
    gone = stage.peer(name).member
    others = [peer.member.peer_id for peer in stage.alive() if peer.member != gone]
    stage.until(lambda: stage.excluded(gone, *others), within_s)
    stage.until_trained(2, *others)
    stage.end_well()


@scenario("G11: a member cannot be reached by one other, whose link it answers")
def _one_way_is_shut() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    stage.shut("p1", "p2")
    _the_others_go_on(stage, "p2", 5.0)


@scenario("G11: the second of two members cannot reach the first, whose link it answers")
def _who_is_not_heard_answers() -> None:
    stage = ScriptedSimulation(num_peers=2)
    stage.until_trained(2)
    stage.shut("p2", "p1")
    _the_others_go_on(stage, "p2", 40.0)


@scenario("R14: the first of two is stopped while its link to the other one is being opened")
def _it_stops_as_a_link_opens() -> None:
    stage = ScriptedSimulation(num_peers=2)
    stage.until_trained(2)
    members, one, other = stage.view_of("p1").members, stage.peer("p1"), stage.peer("p2").member
    opening = {other: "no connection opens"}
    stage.act(one.perform, one.core.unopened(one.now(), opening))
    stage.table.holds = lambda source, target, frame: source == other and not isinstance(frame, Part)
    one.paused_until = stage.clock.now + 5.0
    stage.wait(5.05)
    stage.table.release()
    for _ in range(3):  # what was under way has ended, and the next attempt takes a moment
        stage.act(one.perform, one.core.link_refused(one.now(), other, "an attempt to open its link has failed"))
        stage.act(one.perform, one.core.unopened(one.now(), opening))
        stage.wait(0.1)
    stage.act(one.perform, one.core.unopened(one.now(), {}))
    stage.wait(3.0)
    if stage.view_of("p1").members != members:
        raise Failure("I14", "a member is removed because another one was stopped as it opened a link")
    stage.end_well()


@scenario("G16: data get through neither to nor from one of three, which answers")
def _one_is_out_of_reach_of_data() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    stage.swallow("p2", "p1")
    stage.wait(0.7)  # the member behind it may be the first to report, about one member only
    for source, target in (("p2", "p3"), ("p1", "p2"), ("p3", "p2")):
        stage.swallow(source, target)
    _the_others_go_on(stage, "p2", 25.0)


@scenario("G16: data do not get through from the second of two to the first, and everything else does")
def _data_do_not_get_through_one_way() -> None:
    stage = ScriptedSimulation(num_peers=2)
    stage.until_trained(2)
    stage.swallow("p2", "p1")
    _the_others_go_on(stage, "p2", 25.0)


@scenario("G12: the links of one of three come and go, and in the end they stay")
def _one_flaps() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    stage.flap(stage.links_of("p3"), 1.2, 0.6)
    stage.until(lambda: stage.excluded(stage.peer("p3").member, "p1", "p2"), 15.0)
    before = stage.done_by("p1", "p2")
    stage.wait(20.0)
    if stage.done_by("p1", "p2") < before + 60:
        raise Failure("S10", f"p3 flaps, and {stage.done_by('p1', 'p2') - before} steps are done in 20 s")
    stage.flaps = False
    stage.until_trained(2, "p1", "p2")
    stage.until(lambda: stage.view_of("p1").since(stage.peer("p3").member), 6.0)
    stage.end_well()


@scenario("G12: the links of all come and go, and one of them dies")
def _all_flap() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    members, before = stage.view_of("p1").members, stage.peer("p1").done
    stage.flap({*stage.links_of("p1"), *stage.links_of("p2")}, 1.2, 0.6)
    stage.wait(30.0)
    if stage.view_of("p1").members != members or stage.peer("p1").done < before + 10:
        raise Failure("I14", "the network flaps, and members are taken out for it")
    dead = stage.peer("p3")
    dead.unproven = True
    stage.end(dead, "dies, and nobody says so")
    stage.until(lambda: stage.excluded(dead.member, "p1", "p2"), 15.0)
    stage.end_well()


@scenario("G12: a member is too busy for frames, again and again, and its link answers")
def _one_is_busy() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    members = stage.view_of("p1").members
    stage.answer("p3")
    stage.flap(stage.links_of("p3"), 1.2, 0.6)
    stage.wait(20.0)
    if stage.view_of("p1").members != members:
        raise Failure("I14", "a busy member is taken for one that flaps")
    stage.end_well()


@scenario("G14: one of four is cut off twice within a minute, and its links stay whole")
def _one_is_cut_off_twice() -> None:
    stage = ScriptedSimulation(num_peers=4)
    stage.until_trained(2)
    for _ in range(2):
        cut = stage.cut_off("p4")
        stage.wait(8.0)
        stage.network.remove(cut)
        stage.until(lambda: all(len(stage.view_of(name).members) == 4 for name in ("p1", "p2", "p3")), 5.0)
        stage.until_trained(2)
    stage.end_well()


def _check_steps(stage: ScriptedSimulation, name: str, before: int, least: int, duration_s: float) -> None:
    if (num_steps := stage.peer(name).done - before) < least:
        raise Failure("S10", f"one comes and goes, and {num_steps} steps are done in {duration_s:g} s")


@scenario("G10: a member loses each seat that it has within 3 s, since one other cannot reach it")
def _one_is_removed_again_and_again() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    stage.shut("p1", "p2")
    stage.wait(1.0)
    before = stage.peer("p1").done
    stage.wait(40.0)
    _check_steps(stage, "p1", before, 100, 40.0)
    stage.end_well()


@scenario("G10: the links between two of three come and go, and the third one sees nothing of it")
def _two_flap_to_each_other() -> None:
    stage = ScriptedSimulation(num_peers=3)
    stage.until_trained(2)
    stage.flap({("p2", "p3"), ("p3", "p2")}, 1.2, 0.6)
    stage.wait(1.0)
    before = stage.peer("p1").done
    stage.wait(60.0)
    _check_steps(stage, "p1", before, 120, 60.0)
    stage.flaps = False
    stage.end_well()


@scenario("G10: one of four is cut off for a moment now and then, and has its seat for longer than 5 s between")
def _one_is_cut_off_now_and_then() -> None:
    stage = ScriptedSimulation(num_peers=4)
    stage.until_trained(2)
    for _ in range(4):
        cut = stage.cut_off("p4")
        stage.until(lambda: stage.excluded(stage.peer("p4").member, "p1", "p2", "p3"), 5.0)
        stage.network.remove(cut)
        stage.until(lambda: all(len(stage.view_of(name).members) == 4 for name in ("p1", "p2", "p3")), 5.0)
        stage.wait(8.0)
    stage.end_well()
