"""Two experiments never merge: the swarm of a script, and the messages to its user about it."""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.launches import Launch, Shoal, outcome

pytestmark = pytest.mark.light

Script = Callable[[str], str]

STAY = """
import sys, time
import p2p
with p2p.join() as peer:
    peer.barrier()
    print(peer.status()["swarm"], flush=True)
    while True:
        peer.barrier()
        time.sleep(0.005)  # the step's computation
"""
"""Prints one line, then trains without end."""


def first_line(process: Launch) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def told(process: Launch, pattern: str) -> re.Match[str]:
    """The launch's next line on stderr that matches."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.fullmatch(pattern, line.rstrip("\n")):
            return found
    raise AssertionError(f"it never said {pattern!r}")


def test_another_learning_rate_is_another_swarm_and_its_founder_names_the_first(shoal: Shoal, script: Script) -> None:
    path = script(STAY.replace("while True", 'while sys.argv[-1] == "0.1" or peer.last_step < 3'))
    one = shoal("-n", "2", path, "--lr", "0.1")
    name = first_line(one).split()[1]
    assert re.fullmatch("script-[0-9a-f]{8}", name)
    other = shoal("-n", "1", path, "--lr", "0.001")
    code, stdout, stderr = outcome(other)
    other_name = stdout[0].split()[1]
    assert code == 0 and other_name != name
    assert (
        f"[0] shoal: a run of script.py is under way here as swarm {name} (2 peers), and this is another one, "
        f"{other_name}; to join that one, with its arguments: shoal run --join --swarm {name}, or SHOAL_SWARM={name}"
    ) in stderr
    assert f"[0] shoal: founded swarm {other_name} at step 0, 1 member" in stderr


def test_a_plain_python_joins_what_shoal_run_has_started_and_says_so(shoal: Shoal, script: Script) -> None:
    """Also if the script has removed its arguments from `sys.argv`."""
    path = script("import sys\ndel sys.argv[1:]" + STAY.replace("while True", "while peer.world_size < 3"))
    one = shoal("-n", "1", path, "--lr", "0.1")
    name = first_line(one).split()[1]
    told(one, rf"\[0\] shoal: founded swarm {name} at step 0, 1 member")
    other = shoal(path, "--lr", "0.1", program=())
    joined = told(other, rf"shoal: joined swarm {name} at step (\d+), 2 members")
    assert int(joined[1]) > 0
    told(shoal("-n", "1", path, "--lr", "0.1"), rf"\[1\] shoal: joined swarm {name} at step \d+, 3 members")


@pytest.mark.parametrize("program", [["-c", STAY], ["-"]], ids=["-c", "stdin"])
def test_what_is_no_script_has_no_default_name(shoal: Shoal, program: list[str]) -> None:
    process = shoal(program=program)
    _, stderr = process.communicate(STAY)
    assert process.returncode == 1
    assert "name the swarm, p2p.join(swarm=...)" in stderr


def test_who_only_joins_ends_with_0_when_the_run_is_over(shoal: Shoal, script: Script) -> None:
    path = script(STAY.replace("while True", "while peer.last_step < 2"))
    name = first_line(shoal("-n", "1", path)).split()[1]
    assert outcome(shoal("-n", "1", path))[0] == 0
    code, stdout, stderr = outcome(shoal("--join", "-n", "1", path))
    assert (code, stdout) == (0, [])
    assert stderr == [f"shoal: the run of swarm {name} is over, so there is nothing to join; nothing was started"]


def test_who_only_joins_founds_nothing_and_fails_when_nobody_comes(shoal: Shoal, script: Script) -> None:
    code, stdout, stderr = outcome(shoal("--join", "--join-timeout", "1", "-n", "2", script(STAY)))
    assert (code, stdout) == (1, [])
    why = r"\[[01]\] shoal: no seat after 1 s: .*; no run of 'script-\w+' to join"
    assert sum(bool(re.match(why, line)) for line in stderr) == 2


def test_who_only_founds_starts_nothing_where_a_run_is_under_way(shoal: Shoal, script: Script) -> None:
    path = script(STAY)
    name = first_line(shoal("--new", "-n", "1", path)).split()[1]
    code, stdout, stderr = outcome(shoal("--new", "-n", "1", path))
    assert (code, stdout) == (2, [])
    assert re.fullmatch(rf"shoal: swarm {name} is under way here \(pid \d+\), and --new only founds one: .*", stderr[0])


def test_who_comes_when_the_registry_folder_was_removed_joins_those_who_have_noticed(
    shoal: Shoal, script: Script, home: Path
) -> None:
    path = script(STAY.replace("while True", "while peer.world_size < 3"))
    one = shoal("-n", "2", "--swarm", "x", path)
    told(one, "shoal: first step .*; 2 members")
    shutil.rmtree(home / "x")
    for _ in range(2):
        told(one, rf"\[[01]\] the registry folder {home}/x was removed while this peer runs, and is there again, .*")
    other = shoal("-n", "1", "--swarm", "x", path)
    told(other, r"\[2\] shoal: joined swarm x at step \d+, 3 members")
    assert [outcome(each)[0] for each in (one, other)] == [0, 0]


def test_join_and_new_contradict_each_other(shoal: Shoal, script: Script) -> None:
    assert outcome(shoal("--join", "--new", script(STAY))) == (
        2,
        [],
        ["shoal: --join and --new contradict each other: give one"],
    )


# Differences within one swarm

RUNS = "this peer does not run what the swarm's members do"


def test_who_has_another_learning_rate_in_a_swarm_of_one_name_is_refused_alone(shoal: Shoal, script: Script) -> None:
    path = script(STAY)
    one = shoal("-n", "2", "--swarm", "x", path, "--lr", "0.1")
    first_line(one)
    code, stdout, stderr = outcome(shoal(path, "--lr=0.001", program=(), environ={"SHOAL_SWARM": "x"}))
    assert (code, stdout) == (1, [])
    (refusal,) = stderr
    assert refusal.startswith(f"shoal: {RUNS}: --lr 0.001 here, --lr 0.1 in the swarm; start it as they were, or ")
    assert "--may-differ lr" in refusal
    one.send_signal(signal.SIGTERM)
    code, _, stderr = outcome(one)
    assert code == 0 and not any("is out" in line or "has joined" in line for line in stderr), stderr


def test_who_was_refused_and_comes_again_when_the_run_is_over_has_failed(
    shoal: Shoal, script: Script, tmp_path: Path
) -> None:
    path = script(STAY.replace("while True", "while not __import__('os').path.exists('stop')"))
    os.mkfifo(tmp_path / "over")  # opening it waits for the other end
    one = shoal("-n", "1", "--swarm", "x", path, "--lr", "0.1")
    first_line(one)
    again = f"test -e tried && cat over; touch tried; exec {sys.executable} {path} --lr 0.001"
    other = shoal("-n", "1", "--restarts", "3", "--swarm", "x", "--", "/bin/sh", "-c", again)
    told(other, r"shoal: peer 1 .* ended with exit code 1; .*; started again in 1 s \(1 of 3\)")
    (tmp_path / "stop").touch()
    assert outcome(one)[0] == 0
    (tmp_path / "over").write_text("")
    code, _, stderr = outcome(other)
    assert "[1] shoal: the run of swarm x is over, so there is nothing to join" in stderr
    assert code == 1, stderr
    late = r"shoal: peer 1 \(pid \d+\) came after the run was over and took no part; none left here"
    assert any(re.fullmatch(late, line) for line in stderr), stderr
    assert any(line.startswith("shoal: peer 1 failed first, before its first step: it ended with") for line in stderr)


@pytest.mark.long
def test_a_launcher_starts_nothing_that_would_be_refused(shoal: Shoal, script: Script) -> None:
    path = script(STAY.replace("while True", "while peer.world_size == 2"))
    one = shoal("-n", "2", "--swarm", "x", path, "--lr", "0.1")
    first_line(one)
    assert outcome(shoal("-n", "2", "--swarm", "x", path, "--lr", "0.001", "--api-key", "abc")) == (
        2,
        [],
        [
            "shoal: nothing was started, since swarm x runs something else: --api-key (not shown; its digest is "
            "7211cac1c5b56379) here, no --api-key in the swarm; --lr 0.001 here, --lr 0.1 in the swarm; start it as "
            "they were, or with another --swarm, or, if peers may differ in that, with --may-differ api-key "
            "--may-differ lr (p2p.join(may_differ=['api-key', 'lr']))"
        ],
    )
    third = shoal("-n", "1", "--swarm", "x", "--may-differ", "lr", path, "--lr", "0.001")
    assert [outcome(each)[0] for each in (third, one)] == [0, 0]


def test_who_says_that_it_may_differ_is_let_in(shoal: Shoal, script: Script) -> None:
    path = script(STAY.replace("while True", "while peer.world_size == 1"))
    one = shoal("-n", "1", "--swarm", "x", path, "--lr", "0.1", "data")
    first_line(one)
    other = shoal("-n", "1", "--swarm", "x", "--may-differ", "lr", "--may-differ", "1", path, "--lr", "0.001", "dates")
    told(other, r"\[1\] shoal: joined swarm x at step \d+, 2 members")
    assert [outcome(each)[0] for each in (one, other)] == [0, 0]


@pytest.mark.long
def test_another_script_is_refused_in_a_swarm_of_one_name_whatever_it_is_called(
    shoal: Shoal, script: Script, tmp_path: Path
) -> None:
    first_line(shoal("-n", "1", "--swarm", "x", script(STAY)))
    (tmp_path / "changed").mkdir()
    changed = tmp_path / "changed" / "script.py"
    changed.write_text(STAY + "# changed")
    code, _, stderr = outcome(shoal(str(changed), program=(), environ={"SHOAL_SWARM": "x"}))
    digest = "[0-9a-f]{16}"
    pattern = rf".*{RUNS}: script\.py \(digest {digest}\) here, script\.py \(digest {digest}\) in the swarm; .*"
    assert code == 1 and any(re.fullmatch(pattern, line) for line in stderr), stderr


WITHHELD = """
import signal
import torch
import p2p

torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
with p2p.join() as peer:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parallel = p2p.DataParallel(peer, model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(torch.ones(1, 2)).sum().backward()
        if peer.done == 2:
            print("here", flush=True)
            signal.pause()
        optimizer.step()
"""
"""The founder stays between backward and `optimizer.step`, so that no joiner can get its state."""


@pytest.mark.long
def test_joiners_that_were_told_of_a_run_whose_members_have_left_found_no_other(shoal: Shoal, script: Script) -> None:
    """A peer that only joins ends with 0, since there is no run to join; one that might have founded fails."""
    path = script(WITHHELD)
    member = shoal("-n", "1", "--swarm", "x", path)
    first_line(member)
    joiners = [shoal(*options, "-n", "1", "--swarm", "x", path) for options in ((), ("--join",))]
    what = "0 will give the state, once the next step begins there"
    for joiner in joiners:
        told(joiner, rf"shoal: peer [12] waits for a seat in swarm x: {what} \(for \d+ s\)")
    member.send_signal(signal.SIGTERM)
    assert outcome(member)[0] == 0
    (code, stdout, stderr), (joined, *said) = map(outcome, joiners)
    assert not any("founded" in line for line in (*stderr, *said[1]))
    assert (code, stdout) == (1, [])
    assert any("no member of the swarm is left: its run has ended" in line for line in stderr), stderr
    assert (joined, said[0]) == (0, [])
    assert any("shoal: the run of swarm x is over, so there is nothing to join" in line for line in said[1]), said
