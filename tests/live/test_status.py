"""`shoal status`: swarms seen from outside, also with stopped or dead peers, and from other hosts."""

import json
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from p2p.host.keys import write_key
from tests.live.conftest import NewHost
from tests.live.swarm import HANG_S, STREAM, Swarm, name, stop
from tests.live.test_tcp import joined

pytestmark = pytest.mark.light

Peers = Mapping[str, dict[str, Any]]
"""Reports of peers by peer_id."""

LOGS = STREAM.replace(
    '        print("step"', '        peer.log(loss=1 / peer.last_step, tensor=np.float32(0.5))\n        print("step"'
)


def swarms(swarm: Swarm, *arguments: str, home: Path | None = None) -> dict[str, Any]:
    found = swarm.ask("status", "--json", *arguments, home=home)
    assert found.returncode == 0, found.stderr
    result: dict[str, Any] = json.loads(found.stdout)["swarms"]
    return result


def peers_when(swarm: Swarm, is_so: Callable[[Peers], bool], swarm_name: str = "default") -> Peers:
    """Poll the status until `is_so`."""
    deadline = time.monotonic() + HANG_S
    while True:
        peers = {peer["peer_id"]: peer for peer in swarms(swarm)[swarm_name]["peers"]}
        if is_so(peers):
            return peers
        assert time.monotonic() < deadline, json.dumps(peers, indent=1)


def test_a_peer_that_is_stopped_is_seen_with_who_waits_for_it(swarm: Swarm) -> None:
    stopped, here = swarm.start_all(2, STREAM)  # in this order: of two members the younger never continues alone
    here.expect_step(20)
    assert {peer["condition"] for peer in peers_when(swarm, lambda peers: len(peers) == 2).values()} == {"running"}
    stopped.send_signal(signal.SIGSTOP)
    found = peers_when(
        swarm,
        lambda peers: (
            peers[name(stopped)]["condition"] == "stopped"
            and peers[name(here)]["snapshot"]["waiting"]["peers"] == [name(stopped)]
        ),
    )
    assert found[name(here)]["doing"].startswith(
        ("exchanging step", "waiting for the others", "waiting until more members")
    )
    assert {each["kind"] for each in found[name(stopped)]["records"]} >= {"submitted", "committed", "received"}
    (lineage,) = {peer["snapshot"]["lineage"] for peer in found.values()}
    assert len(lineage) == 32
    assert "stopped" in swarm.ask("status").stdout
    stopped.send_signal(signal.SIGCONT)
    stop([here, stopped])


STUCK = """
import ctypes
import numpy as np
import p2p

with p2p.join() as peer:
    print("here", peer.peer_id)
    for _ in range(3):
        peer.all_reduce(np.ones(10))
    ctypes.PyDLL(None).pause()  # with the interpreter held: no thread of it makes a snapshot
"""


def test_a_peer_that_is_stuck_in_a_c_call_is_seen_to_hang_with_what_it_did_last(swarm: Swarm) -> None:
    peer = swarm.start(STUCK)
    peer.expect("here")
    found = peers_when(swarm, lambda peers: any(peer["condition"] == "hangs" for peer in peers.values()))
    assert found[name(peer)]["doing"] == "computing step 4"
    assert "hangs (" in swarm.ask("status").stdout
    swarm.leaves_files = True
    peer.kill()
    peer.end()


def test_a_peer_that_is_killed_is_seen_with_what_it_did_last_until_the_run_ends(swarm: Swarm) -> None:
    peers = swarm.start_all(3, STREAM)
    for peer in peers:
        peer.expect_step(20)
    names = [name(peer) for peer in peers]
    peers[1].kill()
    for peer in (peers[0], peers[2]):
        peer.expect("view of 2")
    found = peers_when(swarm, lambda peers: peers[names[1]]["condition"] == "dead")
    assert max(each["step"] for each in found[names[1]]["records"]) >= 20
    dead, survivor = swarm.home / "default" / f"{names[1]}.page", found[names[0]]["snapshot"]
    assert (survivor["change"]["view"], survivor["change"]["num_lost"]) == (survivor["view"], 0)
    assert any(names[1] in words for _, words in survivor["events"])
    assert dead.exists()
    stop([peers[0], peers[2]])
    assert not dead.exists()


TOLD_SOON = LOGS.replace("p2p.join()", "join_as({'loop': LoopConfig(core=CoreConfig(status_s=0.1))})").replace(
    "import p2p\n",
    "import p2p\nfrom gossip import CoreConfig\nfrom p2p.config import LoopConfig\nfrom p2p.joining import join_as\n",
)


def test_others_are_told_the_loss_that_a_peer_has_logged(swarm: Swarm) -> None:
    peers = swarm.start_all(2, TOLD_SOON)
    found = peers_when(
        swarm,
        lambda peers: (
            len(peers) == 2
            and all(
                peer["snapshot"] is not None and any(each["loss"] for each in peer["snapshot"]["others"])
                for peer in peers.values()
            )
        ),
    )
    assert all(0 < peer["snapshot"]["others"][0]["loss"] <= 1 for peer in found.values())
    stop(peers)


LISTENS = """
import threading
import numpy as np
import p2p

def heard(step, numbers):
    assert threading.current_thread() is threading.main_thread()
    print("heard", step, numbers)
    if step == 3:
        raise RuntimeError("the script's own")

with p2p.join() as peer:
    print("here", peer.peer_id)
    peer.on_log(heard)
    while True:
        with peer.step():
            peer.all_reduce(np.ones(3, np.float32))
        try:
            peer.log(loss=np.float32(0.5), step=peer.done)
        except RuntimeError as error:
            print("raised", error, [*peer._session.logged.values])
            break
"""


def test_who_listens_to_what_is_logged_hears_it_in_its_thread_with_the_step_and_what_it_raises_is_raised(
    swarm: Swarm,
) -> None:
    peer = swarm.start(LISTENS)
    assert peer.end() == 0, peer.report()
    heard = [line for line in peer.stdout if line.startswith("heard")]
    assert heard == [f"heard {step} {{'loss': 0.5, 'step': {step}.0}}" for step in (1, 2, 3)]
    assert peer.stdout[-1] == "raised the script's own ['loss', 'step']"


def test_two_swarms_are_seen_together_or_one_of_them(swarm: Swarm) -> None:
    one, other = swarm.start(STREAM), swarm.start(LOGS, "--lr=0.5", "--token=abc", name="lake")
    for peer in (one, other):
        peer.expect_step(20)
    assert set(swarms(swarm)) == {"default", "lake"}
    peers_when(swarm, lambda peers: all(peer["snapshot"]["logged"] for peer in peers.values()), "lake")
    (lake,) = swarms(swarm, "lake")["lake"]["peers"]
    assert (lake["peer_id"], lake["pid"]) == (name(other), other.pid)
    assert lake["arguments"].startswith("--lr 0.5 --token (not shown")
    assert set(lake["snapshot"]["logged"]) == {"loss", "tensor"}
    assert {each["name"] for each in lake["records"] if each["kind"] == "logged"} == {"loss", "tensor"}
    deadline, rows = time.monotonic() + HANG_S, list[str]()
    while len(rows) != 2:  # a peer whose step is late for a moment is not reported as running
        assert time.monotonic() < deadline, rows
        rows = [line for line in swarm.ask("top").stdout.splitlines() if "running (" in line]
    assert all(set("▁▂▃▄▅▆▇█") & set(row) for row in rows), rows
    sea = swarm.ask("status", "sea")
    assert (sea.returncode, sea.stdout) == (2, "") and "there is no peer of swarm sea on this host" in sea.stderr
    stop([one])
    stop([other])


@pytest.mark.long
def test_a_swarm_of_other_hosts_is_seen_with_its_key_and_not_without(
    new_host: NewHost, key: Path, tmp_path: Path
) -> None:
    hosts = [new_host(), new_host()]
    peers, port = joined(hosts, key)
    for peer in peers:
        peer.expect_step(20)
    ask = "default", "--seeds", f"127.0.0.1:{port}"
    nowhere = tmp_path / "nowhere"
    found = swarms(hosts[0], *ask, "--key", str(key), home=nowhere)["default"]
    assert found["members"] == [name(peer) for peer in peers]
    assert [peer["peer_id"] for peer in found["peers"]] == [name(peers[0])]
    assert [other["peer_id"] for other in found["peers"][0]["snapshot"]["others"]] == [name(peers[1])]
    links: list[dict[str, Any]] = []
    deadline = time.monotonic() + HANG_S
    while not (links and all(link["rtt_us"] and link["sent_bytes"] for link in links)):  # at the next snapshot
        assert time.monotonic() < deadline, links
        links = swarms(hosts[0])["default"]["peers"][0]["snapshot"]["links"]
    assert [link["peer_id"] for link in links] == [name(peers[1])]
    write_key(tmp_path / "other.key")
    for arguments, said in (
        ((*ask, "--key", str(tmp_path / "other.key")), "hangs up: it has another key"),
        (("lake", *ask[1:], "--key", str(key)), "belongs to another swarm"),
        (ask, "TCP needs a key"),
    ):
        refused = hosts[0].ask("status", *arguments, home=nowhere)
        assert (refused.returncode, refused.stdout) == (2, "") and said in refused.stderr
    stop(peers)
