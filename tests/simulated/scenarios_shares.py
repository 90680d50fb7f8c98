"""Scenarios of states from several donors: chunks that are late, chunks that differ, donors that die."""

from functools import partial

from gossip import Member
from p2p.net.parcels import ShareRequest
from tests.simulation import Failure

from .peer import Peer
from .shares import Piece
from .stage import Frame, Scenarios, ScriptedSimulation

SHARES = Scenarios()
scenario = SHARES.named


def _shared(**plan: object) -> ScriptedSimulation:
    """Three members, each on a host of its own, whose steps take long compared with a message."""
    usual = {"num_peers": 3, "founding_size": 3, "follows": 1.0, "shares": True, "compute_s": 1.0}
    return ScriptedSimulation(**{**usual, **plan})


def _train(stage: ScriptedSimulation) -> None:
    """Train, and reset the counts of states, shares and chunks that founders got."""
    stage.until_trained(3)
    for what in [what for what in stage.invariants.seen if what.startswith(("states", "shares", "chunks"))]:
        del stage.invariants.seen[what]


def _is_wish(source: Member, target: Member, frame: Frame) -> bool:
    return isinstance(frame, ShareRequest)


def _is_piece_of(donor: Member, source: Member, target: Member, frame: Frame) -> bool:
    return isinstance(frame, Piece) and source == donor


def _joins(stage: ScriptedSimulation, name: str = "p4") -> Peer:
    """A joiner has asked one member, which has asked two others for shares; these requests are held."""
    _train(stage)
    stage.table.holds = _is_wish
    stage.launch(name)
    stage.until(lambda: len(stage.table.on_table) == 2)
    return stage.peer(name)


def _wishes(stage: ScriptedSimulation) -> list[tuple[Member, ShareRequest]]:
    return [(target.member, frame) for _, target, _, frame in stage.table.on_table if isinstance(frame, ShareRequest)]


def _loads_the_first(stage: ScriptedSimulation, joiner: Peer, wish: ShareRequest) -> None:
    """Check that the joiner loads the state of the first donor, and asks for no other."""
    stage.until(lambda: joiner.done >= wish.step and joiner.core.digest)
    if stage.invariants.seen["states of several donors"] != 1:
        raise Failure("S28", "a state was asked for again, whose first donor is there")


@scenario("SHARES: three donors give one state; two join at once, and one dies; the first donor dies")
def _three_donors() -> None:
    _one_joiner()
    _two_joiners()
    _the_first_dies()


def _one_joiner() -> None:
    stage = _shared()
    joiner = _joins(stage)
    wish = _wishes(stage)[0][1]
    stage.table.release()
    _loads_the_first(stage, joiner, wish)
    if stage.invariants.seen["shares given"] != 2 or stage.invariants.seen["chunks given again"]:
        raise Failure("S28", "a share was not given")
    stage.until_trained(3, "p1", "p2", "p3", "p4")
    stage.end_well()


@scenario("SHARES: a donor dies before it has sent its share")
def _a_donor_dies() -> None:
    stage = _shared()
    joiner = _joins(stage)
    donor, wish = _wishes(stage)[0]
    stage.table.release()
    stage.table.holds = partial(_is_piece_of, donor)
    stage.until(lambda: stage.table.on_table)
    stage.kill(donor.peer_id)
    stage.table.on_table.clear()
    _loads_the_first(stage, joiner, wish)
    stage.table.release()
    stage.until(lambda: stage.excluded(donor, *(n for n in ("p1", "p2", "p3", "p4") if n != donor.peer_id)))
    stage.end_well()


@scenario("SHARES: a donor sends nothing, and lives")
def _a_donor_is_silent() -> None:
    stage = _shared()
    joiner = _joins(stage)
    donor, wish = _wishes(stage)[0]
    stage.table.release()
    stage.table.holds = partial(_is_piece_of, donor)
    _loads_the_first(stage, joiner, wish)
    stage.table.on_table.clear()
    stage.until_trained(3, "p1", "p2", "p3", "p4")
    stage.end_well()


def _the_first_dies() -> None:
    """The first donor dies, so the others' shares cannot be used."""
    stage = _shared()
    joiner = _joins(stage)
    first = _wishes(stage)[0][1].first
    stage.table.release()
    stage.table.holds = lambda source, target, frame: isinstance(frame, Piece) and source != first
    stage.until(lambda: stage.table.on_table)
    stage.kill(first.peer_id)
    stage.table.release()
    left = [name for name in ("p1", "p2", "p3", "p4") if name != first.peer_id]
    stage.until(lambda: joiner.active and stage.excluded(first, *left))
    stage.until_trained(3, *left)
    stage.end_well()


@scenario("SHARES: the replica of a donor is damaged")
def _a_donor_is_damaged() -> None:
    stage = _shared()
    joiner = _joins(stage)
    donor, wish = _wishes(stage)[0]
    odd = stage.peer(donor.peer_id)
    odd.training.state = odd.training.state.damaged("in memory")
    stage.invariants.damaged.add(donor)
    stage.table.release()
    _loads_the_first(stage, joiner, wish)
    if not stage.invariants.seen["chunks that differ"]:
        raise Failure("S28", "nobody has seen that chunks differ")
    stage.until_trained(3, "p1", "p2", "p3", "p4")
    stage.end_well()


@scenario("SHARES: others hear what they are to give after the next commit")
def _a_wish_is_late() -> None:
    stage = _shared()
    joiner = _joins(stage)
    wish = _wishes(stage)[0][1]
    stage.until(lambda: stage.done_by("p1", "p2", "p3") > wish.step)
    stage.table.release()
    _loads_the_first(stage, joiner, wish)
    if stage.invariants.seen["shares declined"] != 2:
        raise Failure("S28", "a share of another step was given")
    stage.until_trained(3, "p1", "p2", "p3", "p4")
    stage.end_well()


def _two_joiners() -> None:
    """One of two joiners dies."""
    stage = _shared()
    _train(stage)
    stage.table.holds = lambda source, target, frame: isinstance(frame, Piece) and target.peer_id == "p5"
    stage.launch("p4")
    stage.launch("p5")
    stage.until(lambda: stage.table.on_table and stage.peer("p4").core.digest)
    if stage.invariants.seen["states gathered"] != 1 or stage.invariants.seen["states of several donors"] != 2:
        raise Failure("S28", "one of two joiners was not given the state by several donors")
    stage.kill("p5")
    stage.table.release()
    stage.until_trained(3, "p1", "p2", "p3", "p4")
    stage.end_well()


@scenario("SHARES: members of two classes, of which one joins")
def _another_class_gives_no_share() -> None:
    stage = _shared(num_kinds=2, kinds="0010", num_peers=3)
    _train(stage)
    stage.launch("p4")
    stage.until_trained(3, "p1", "p2", "p3", "p4")
    if not stage.invariants.seen["states gathered"]:
        raise Failure("S28", "the state came from one donor, and two are alike")
    stage.end_well()
