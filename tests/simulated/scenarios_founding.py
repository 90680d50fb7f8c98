"""Scenarios of a restarted first seed: it joins the swarm while a member lives, and founds otherwise (G15)."""

from gossip import Policy
from tests.simulation import Failure

from .stage import Scenarios, ScriptedSimulation

FOUNDING = Scenarios()
scenario = FOUNDING.named


def _on_hosts_of_their_own(num_peers: int = 3, **plan: object) -> ScriptedSimulation:
    """A swarm in training, each peer on its own host; the peers have met by calls to `p1`."""
    places = tuple(range(num_peers))
    given = {"num_peers": num_peers, "num_hosts": num_peers, "founding_size": num_peers, "calls": 1, **plan}
    stage = ScriptedSimulation(founding="seeds", places=(*places, *places, *places), **given)
    stage.until_trained(3)
    return stage


def _ends_in_one_lineage(stage: ScriptedSimulation) -> None:
    if num := len({peer.view.lineage for peer in stage.alive() if peer.view is not None}) - 1:
        raise Failure("S31", f"{num} lineages more than one go on")


@scenario("FOUNDING: the only seed is started again, and is called only after 0.9 s")
def _called_late() -> None:
    stage = _on_hosts_of_their_own()
    stage.kill("p1")
    stage.wait(2.0)
    _hide(stage, "p1")
    stage.launch("p1")
    stage.wait(0.9)
    stage.table.release()
    stage.until_trained(3, "p1", "p2", "p3")
    _ends_in_one_lineage(stage)
    stage.end_well()


def _hide(stage: ScriptedSimulation, name: str) -> None:
    """Hold all messages from and to `name`."""
    stage.table.holds = lambda source, target, frame: name in (source.peer_id, target.peer_id)


@scenario("FOUNDING: a host is gone with the only seed, nothing proves that, and the seed starts elsewhere")
def _unproven() -> None:
    stage = _on_hosts_of_their_own(num_peers=4)
    stage.peer("p1").unproven = True
    stage.kill("p1")
    stage.wait(12.0)
    stage.launch("p1")
    stage.until_trained(3, "p1", "p2", "p3", "p4")
    _ends_in_one_lineage(stage)
    stage.end_well()


@scenario("FOUNDING: members that are no majority wait, and the only seed, started again, waits with them")
def _no_majority() -> None:
    stage = _on_hosts_of_their_own(policy=Policy.MAJORITY)
    stage.kill("p1", "p2")
    stage.wait(2.0)
    stage.launch("p1")
    stage.wait(20.0)
    if stage.peer("p1").view is not None:
        raise Failure("S31", "it has a view, where nobody can decide one")
    stage.end_well()


@scenario("FOUNDING: the only seed comes back as the last member dies, and founds in the end")
def _last_dies() -> None:
    """The other member was told of no step, since it could not ask."""
    stage = _on_hosts_of_their_own(num_peers=2, founding_size=1)
    stage.kill("p1")
    stage.wait(2.0)
    stage.table.holds = lambda source, target, frame: source.peer_id == "p1"
    stage.launch("p1")
    stage.wait(1.0)
    stage.kill("p2")
    stage.table.on_table.clear()
    stage.table.release()
    if not stage.peer("p1").core.reason.startswith("the swarm exists"):
        raise Failure("stage", "it is to have heard of the swarm")
    stage.until_trained(3, "p1")
    _ends_in_one_lineage(stage)
    stage.end_well()


@scenario("FOUNDING: the first seed is killed and replaced while its host is cut off, and the others go on")
def _cut_off() -> None:
    """A process replaces the seed after the cut, so that no peer has told it of anything."""
    stage = _on_hosts_of_their_own(calls=3)
    stage.hosts.launching = {0, 1, 2}
    cut = stage.cut_off("p1")
    stage.kill("p1")
    stage.until_trained(3, "p2", "p3")
    stage.launch("p1")
    stage.wait(60.0)
    _ends_in_one_lineage(stage)
    stage.network.remove(cut)
    stage.until_trained(3, "p1", "p2", "p3")
    _ends_in_one_lineage(stage)
    stage.end_well()


@scenario("FOUNDING: all peers of all hosts are killed at once and replaced, and the first founds")
def _all_replaced() -> None:
    stage = _on_hosts_of_their_own()
    stage.hosts.launching = {0, 1, 2}
    stage.kill("p1", "p2", "p3")
    for name in ("p1", "p2", "p3"):
        stage.wait(1.0)
        stage.launch(name)
    stage.until_trained(3, "p1", "p2", "p3")
    _ends_in_one_lineage(stage)
    stage.end_well()
