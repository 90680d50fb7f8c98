"""Effects of a peer's settings on its loop."""

import threading
from pathlib import Path
from typing import Any

import pytest

from p2p import Checkpoint, PeerConfig
from p2p.config import LEAST_ARENA_BYTES
from p2p.host.memory_left import memory_bytes


def test_an_arena_may_take_a_quarter_of_the_memory_of_all_local_peers_unless_its_size_is_said() -> None:
    def arena_bytes(**given: Any) -> int:
        return PeerConfig(swarm="pond", home=Path("/"), **given).for_loop().arena_bytes

    assert arena_bytes(arena_bytes=0) == 0 and arena_bytes(arena_bytes=1 << 20) == 1 << 20
    alone, quarter = arena_bytes(), memory_bytes() // 4
    assert alone == LEAST_ARENA_BYTES or 0.5 < alone / quarter < 2
    assert arena_bytes(local_peers=1 << 20) == LEAST_ARENA_BYTES


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"on_all_dead": "hope"}, "on_all_dead must be stop or restart, is 'hope'"),
        ({"slow_peers": "kill"}, "slow_peers must be name or leave, is 'kill'"),
        ({"slow_factor": 1.0}, "slow_factor must be above 1 and finite, is 1.0"),
        ({"join_timeout_s": 0.0}, "join_timeout_s must be positive"),
        ({"slow_factor": float("nan")}, "slow_factor must be above 1 and finite, is nan"),
    ],
)
def test_a_policy_that_is_none_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PeerConfig(swarm="pond", home=Path("/"), **given)


def test_what_becomes_of_slow_peers_can_be_said_in_the_environment() -> None:
    environ = {"SHOAL_SWARM": "pond", "SHOAL_HOME": "/tmp", "SHOAL_SLOW_PEERS": "leave"}
    config = PeerConfig.from_environment(environ, slow_factor=3.0)
    assert config.policies() == {
        "deaths": b"on_all_dead=stop",
        "slow peers": b"slow_peers=leave from 3 times the others on",
    }


def test_who_goes_on_after_the_death_of_all_members_is_asked_for_on_several_hosts_as_on_one() -> None:
    environ = {"SHOAL_SWARM": "pond", "SHOAL_HOME": "/tmp", "SHOAL_ON_ALL_DEAD": "restart"}
    assert PeerConfig.from_environment(environ).for_loop().restarts
    assert not PeerConfig.from_environment({**environ, "SHOAL_ON_ALL_DEAD": "stop"}).for_loop().restarts
    elsewhere = PeerConfig.from_environment(environ, bind="127.0.0.1:0", insecure=True)
    assert elsewhere.for_loop().tcp is not None and elsewhere.for_loop().restarts


def test_a_time_without_an_end_is_as_long_as_a_thread_can_wait() -> None:
    config = PeerConfig(swarm="pond", home=Path("/"), step_timeout_s=float("inf"), leave_timeout_s=1e10)
    assert config.step_timeout_s == config.leave_timeout_s == threading.TIMEOUT_MAX


def test_folders_are_those_of_the_working_directory_that_there_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = PeerConfig(swarm="pond", home=Path("/"), receipts=Path("runs"), resume=Path("ck/00000005"))
    assert (config.receipts, config.resume) == (tmp_path / "runs", tmp_path / "ck/00000005")
    assert Checkpoint("ck", every=5, resume="ck/00000005").resume == tmp_path / "ck/00000005"
