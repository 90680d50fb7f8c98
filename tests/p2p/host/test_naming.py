"""The default name of a swarm, and the mark of a run's end."""

import logging
import re
import time
from pathlib import Path

import pytest

from p2p.host import last_run
from p2p.host.naming import Program, has_other_hosts, runs_of_script
from p2p.host.registry import Registry

A, B = "a" * 16, "b" * 16


def test_the_same_script_with_the_same_arguments_has_one_name(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to(tmp_path / "train.py")
    (tmp_path / "train.py").touch()
    one = Program.of_script(tmp_path / "train.py", ["--lr", "0.1"])
    same = Program.of_script(tmp_path / "x" / ".." / "train.py", ("--lr", "0.1"))
    assert one.swarm(one_host=True) == same.swarm(one_host=True)
    assert re.fullmatch("train-[0-9a-f]{8}", one.swarm(one_host=True))
    assert one.swarm(one_host=False) == "train"


def test_other_arguments_another_folder_or_another_cut_of_the_words_is_another_name(tmp_path: Path) -> None:
    programs = [
        Program.of_script(tmp_path / "train.py", ["--lr", "0.1"]),
        Program.of_script(tmp_path / "train.py", ["--lr", "0.01"]),
        Program.of_script(tmp_path / "train.py", ["--lr0.1"]),
        Program.of_script(tmp_path / "train.py", ["--lr", "0", ".1"]),
        Program.of_script(tmp_path / "copy" / "train.py", ["--lr", "0.1"]),
        Program.of_module("train", ["--lr", "0.1"]),
    ]
    assert len({program.swarm(one_host=True) for program in programs}) == len(programs)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("My Train_GPT.v2.py", "my-train-gpt-v2"),
        ("a" * 30 + ".py", "a" * 24),
        ("обучение.py", "script"),
        ("pkg.train", "pkg-train"),
        ("x" * 23 + "-y.py", "x" * 23),
    ],
)
def test_a_label_has_24_small_letters_digits_and_dashes(name: str, label: str) -> None:
    assert Program.of_module(name, ()).swarm(one_host=False) == label


def test_other_hosts_are_those_of_arguments_or_of_the_environment() -> None:
    assert not has_other_hosts({"SHOAL_SEEDS": ""}, None, "")
    assert has_other_hosts({"SHOAL_BIND": "*:1"})
    assert has_other_hosts({}, None, "*:1")


def test_the_runs_of_a_script_are_found_under_whichever_name(tmp_path: Path) -> None:
    for swarm, script, peer_id in (("pond", "a.py", A), ("lake", "a.py", B), ("sea", "b.py", A)):
        Registry(tmp_path / "home", swarm, script=script).enter(peer_id, 1)
    assert runs_of_script(tmp_path / "home", "a.py") == {"pond": 1, "lake": 1}


def test_who_founds_where_a_run_has_just_ended_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    one, other = (Registry(tmp_path / "home", "pond") for _ in range(2))
    one.enter(A, 1)
    one.leave()
    assert last_run.ended_at_ns(one.lock) is None  # the peer was in no run
    for registry, peer_id in ((one, A), (other, B)):
        registry.enter(peer_id, 1)
        registry.mark_member()
    one.leave()
    assert last_run.ended_at_ns(one.lock) is None  # the other peer continues
    other.leave()
    assert last_run.ended_at_ns(one.lock) is not None
    one.enter(A, time.time_ns())
    one.warn_of_end()
    one.mark_member()
    assert [record.message for record in caplog.records] == [
        "the last run of swarm 'pond' ended 0 s ago: this peer founds another one, from step 0 or a checkpoint "
        "(with `shoal run --join` it would not)"
    ]
    assert last_run.ended_at_ns(one.lock) is None


def test_who_founds_long_after_a_run_is_told_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(tmp_path / "home", "pond")
    registry.enter(A, 1)
    registry.mark_member()
    registry.leave()
    registry.enter(A, time.time_ns() + int(61e9))
    assert not caplog.records


def test_a_peer_of_several_hosts_does_not_know_that_the_run_is_over(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "home", "pond")
    registry.enter(A, 1, remote=("tcp://10.0.0.1:1", "tcp://10.0.0.1:2"))
    registry.mark_member()
    registry.leave()
    assert last_run.ended_at_ns(registry.lock) is None
