"""Options of `shoal run` reach `p2p.join` in the environment, or are refused in one line."""

import re
from pathlib import Path
from typing import Any

import pytest

from p2p import PeerConfig
from p2p.errors import LaunchError, NetworkError
from p2p.launch.config import OF_TORCHRUN, LaunchConfig, Predecessor, peer_environment
from p2p.launch.target import Target
from p2p.net.tcp import TCP_VARIABLES, TcpOptions
from tests.p2p.checkpoint.states import written


def config(**changes: Any) -> LaunchConfig:
    return LaunchConfig(target=Target.script(Path(__file__)), num_peers=2, swarm="pond", gpus=(), **changes)


def test_policies_reach_the_peers(tmp_path: Path) -> None:
    given = {"policy": "majority", "mixed": "refuse", "slow_peers": "leave", "slow_factor": 3.5}
    asked = config(home=tmp_path, on_all_dead="restart", receipts_full="stop", step_timeout_s=7.5, **given)
    asked.check()
    found = PeerConfig.from_environment(peer_environment(asked, 0, {}))
    assert {name: getattr(found, name) for name in given} == given
    assert (found.on_all_dead, found.receipts_full, found.step_timeout_s) == ("restart", "stop", 7.5)


def test_what_is_not_said_is_left_to_join(tmp_path: Path) -> None:
    asked = config(home=tmp_path)
    asked.check()
    found = PeerConfig.from_environment(peer_environment(asked, 0, {}))
    assert (found.policy, found.mixed, found.slow_peers, found.slow_factor) == ("live", "resync", "name", 2.0)
    assert found.on_all_dead == "stop"


@pytest.mark.parametrize("is_traced", [True, False])
def test_peers_hear_whether_their_traces_are_kept_by_who_starts_them(tmp_path: Path, is_traced: bool) -> None:
    asked = config(home=tmp_path, receipts=tmp_path, is_traced=is_traced)
    assert PeerConfig.from_environment(peer_environment(asked, 0, {"SHOAL_TRACED": "1"})).is_traced == is_traced
    nothing = config(home=tmp_path, is_traced=True)
    assert not PeerConfig.from_environment(peer_environment(nothing, 0, {"SHOAL_TRACED": "1"})).is_traced


@pytest.mark.parametrize("name", [*TCP_VARIABLES, *OF_TORCHRUN, "TORCHELASTIC_RUN_ID"])
def test_what_options_have_said_already_and_what_another_launcher_has_set_is_not_inherited(name: str) -> None:
    inherited = peer_environment(config(), 0, {name: "mine", "HOME": "/home"})
    assert inherited["HOME"] == "/home" and inherited.get(name) != "mine"


def test_what_peers_are_given_is_marked_but_for_what_holds_for_their_own_runs_too(tmp_path: Path) -> None:
    given = peer_environment(config(home=tmp_path, tcp=TcpOptions(seeds="a:1", key=tmp_path)), 0, {"SHOAL_ARENA": "0"})
    ours = {name for name in given if name.startswith("SHOAL_")} - {"SHOAL_EXPORTED", "SHOAL_ARENA"}
    assert {*given["SHOAL_EXPORTED"].split(",")} == ours - {"SHOAL_HOME", "SHOAL_KEY"}
    assert {"SHOAL_SWARM", "SHOAL_SEEDS", "SHOAL_MIN_PEERS"} <= {*given["SHOAL_EXPORTED"].split(",")}


def test_a_number_in_the_environment_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="SHOAL_SLOW_FACTOR must be a number, is 'fast'"):
        PeerConfig.from_environment({"SHOAL_SWARM": "pond", "SHOAL_SLOW_FACTOR": "fast"})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policy": "all"}, "--policy must be live or majority, got 'all'"),
        ({"mixed": "both"}, "--mixed must be resync or refuse, got 'both'"),
        ({"slow_peers": "kill"}, "--slow-peers must be name or leave, got 'kill'"),
        ({"slow_factor": 1.0}, "--slow-factor must be above 1, got 1"),
        ({"slow_factor": float("nan")}, "--slow-factor must be above 1, got nan"),
        ({"on_all_dead": "hope"}, "--on-all-dead must be stop or restart, got 'hope'"),
        ({"receipts_full": "wait"}, "--receipts-full must be warn or stop, got 'wait'"),
    ],
)
def test_a_policy_that_is_none_is_refused_before_anything_starts(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(LaunchError, match=re.escape(says)):
        config(**changes).check()


def test_a_folder_of_checkpoints_is_no_checkpoint_and_those_in_it_are_named(tmp_path: Path) -> None:
    says = f"--resume: {tmp_path} is not a checkpoint; give FOLDER/STEP"
    for found, names in (([], ""), ([10, 20], ": there are 00000010, 00000020")):
        written(tmp_path, found)
        with pytest.raises(LaunchError, match=f"^{re.escape(says + names)}$"):
            config(resume=tmp_path).check()
    config(resume=tmp_path / "00000010").check()
    written(tmp_path, list(range(30, 100, 10)))
    with pytest.raises(LaunchError, match=r"there are 00000020, 00000030, .*, 00000090 and earlier ones$"):
        config(resume=tmp_path).check()


def test_each_peer_needs_two_ports_of_its_own() -> None:
    with pytest.raises(NetworkError, match="2 of them up to 65536"):
        config(tcp=TcpOptions(bind="127.0.0.1:65533", insecure=True)).check()


def test_whose_place_a_peer_takes_is_said_to_it_alone() -> None:
    predecessor = Predecessor(7, {"ab": "tcp://10.0.0.2:7700", "": "tcp://[fe80::1]:7700"})
    given = peer_environment(config(), 0, {"SHOAL_SINCE_NS": "1", "SHOAL_ELSEWHERE": "cd@tcp://c:1"}, 0, predecessor)
    found = PeerConfig.from_environment(given)
    assert (found.since_ns, found.other_hosts) == (7, predecessor.remote_hosts)
    assert found.for_loop().other_hosts == predecessor.remote_hosts
    first = PeerConfig.from_environment(peer_environment(config(), 0, given))
    assert (first.since_ns, first.other_hosts) == (0, {})
