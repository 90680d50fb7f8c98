"""The table of the open step: no transition is missing, and each of them occurs."""

import re
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from p2p.step.notices import Commit
from p2p.step.transitions import TRANSITIONS, Event, Stage
from tests.p2p.step.world import World

FURTHER_STEPS = 3
MOST_TURNS = 5_000


def walk(seed: int, num_turns: int) -> World:
    """Run `num_turns` turns in which scripts withdraw or call differently, and members die; then let all complete."""
    world = World(seed)
    for _ in range(num_turns):
        world.turn(is_calm=False)
    goal = max(host.script.done for host in world.living) + FURTHER_STEPS
    for _ in range(MOST_TURNS):
        if all(host.script.done >= goal for host in world.living):
            return world
        world.turn(is_calm=True)
    raise AssertionError([(host.me, host.open_step.stage, host.script.done) for host in world.living])


def check(commits: dict[str, Commit]) -> None:
    """Check a step at all peers that have committed it: equal, and of the inputs of the members on its receipt."""
    first, *_ = commits.values()
    names = {entry.peer_id for entry in first.receipt.contributions}
    for commit in commits.values():
        assert (commit.receipt, commit.fingerprints, commit.view) == (first.receipt, first.fingerprints, first.view)
    for index, operation in enumerate(first.operations):
        assert len({commit.operations[index].result.tobytes() for commit in commits.values()}) == 1
        if names <= commits.keys() and operation.collective.name == "all_reduce sum":  # dead members may have committed
            assert (operation.result == sum(commits[name].operations[index].input for name in names)).all()


@given(st.integers(0, 2**32 - 1), st.integers(0, 400))
@example(43357, 134)  # two members make the same wrong call, so an observer with the right call differs
@settings(deadline=None)
def test_whatever_scripts_and_views_do_nobody_waits_for_ever_and_all_commit_the_same(seed: int, turns: int) -> None:
    world = walk(seed, turns)
    for step in range(max(host.script.done for host in world.living) + 1):
        of_step = {host.me.peer_id: commit for host in world.hosts for commit in host.commits[step : step + 1]}
        assert {commit.receipt.step for commit in of_step.values()} == {step}
        check(of_step)


def test_every_transition_of_the_table_happens_and_no_other() -> None:
    """A missing transition raises where it occurs."""
    seen: set[tuple[Stage, Event]] = set()
    for seed in range(60):
        seen |= walk(seed, 300).seen
    assert seen == {*TRANSITIONS}


def test_the_table_can_be_printed_and_every_stage_is_left_again() -> None:
    rows = [f"{stage.name} -{event.name}-> {after.name}" for (stage, event), after in TRANSITIONS.items()]
    assert "CLOSED -COMPLETE-> FINISHED" in rows
    assert {event for _, event in TRANSITIONS} == {*Event}
    assert {*TRANSITIONS.values()} == {*Stage}
    assert {stage for (stage, _), after in TRANSITIONS.items() if after is not stage} == {*Stage}


def test_the_diagram_of_the_architecture_is_the_table() -> None:
    text = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()
    edges = re.findall(r"^    ([A-Z]+) --> ([A-Z]+): (.+)$", text, re.MULTILINE)
    names = {event.name.lower().replace("_", " "): event for event in Event}
    drawn = {
        (Stage[start], event, Stage[end])
        for start, end, label in edges
        for part in label.split(", ")
        for name, event in names.items()
        if part == name or part.startswith(f"{name} of ")
    }
    assert drawn == {(start, event, end) for (start, event), end in TRANSITIONS.items()}
