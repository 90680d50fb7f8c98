"""Agreement on rows of measured links, and the use of their table for operations."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

from p2p.loop.link_rows import Row
from p2p.step.notices import Commit
from tests.p2p.memory.machine import Machine
from tests.p2p.step.group import Group, all_reduce, counts, enter, moved, new_view, shared_view, weighted

ROW = np.arange(4, dtype=np.uint8)


@dataclass(frozen=True)
class Always:
    """A table with only one answer."""

    algorithm: str

    def choose(self, num_bytes: int, *, rounds_once: bool = False) -> str:
        return "direct" if rounds_once else self.algorithm

    def choose_broadcast(self, num_bytes: int, root: int) -> str:
        return self.algorithm if root else "binary-tree"


def train(group: Group) -> list[Commit]:
    """Run a training step of all members."""
    for me in group.members:
        peer = group.all[me]
        peer.submit(counts(1), weighted(np.full(6, 1.0 + me)))
        peer.close()
    group.deliver()
    return group.commit()


def measured(group: Group) -> Group:
    for me, peer in enumerate(group.all):
        agreed = peer.open_step.agreed
        agreed.row, agreed.wants = ROW + me, me == group.members[0]
    return group


def tabulate(group: Group, *members: int, algorithm: str = "ring") -> None:
    """Let these members complete their tables."""
    for me in members:
        agreed = group.all[me].open_step.agreed
        assert agreed.untabulated is not None
        agreed.tabulated(agreed.untabulated, Always(algorithm))
        assert agreed.untabulated is None


def with_table(*members: int) -> Group:
    """A group that has agreed on a table that chooses `ring`."""
    group = measured(enter(Group(3), *members))
    train(group)
    train(group)
    tabulate(group, *members)
    train(group)
    return group


def algorithms(commits: list[Commit]) -> tuple[str, ...]:
    (said,) = {commit.receipt.algorithms for commit in commits}
    return said


def test_nothing_is_gathered_where_nobody_wants_it() -> None:
    group = new_view(3)
    for _ in range(3):
        assert {len(commit.operations) for commit in train(group)} == {2}


def test_the_training_step_after_a_receipt_that_asks_for_them_gathers_rows_once() -> None:
    group = measured(new_view(3))
    assert [len(train(group)[0].operations) for _ in range(4)] == [2, 3, 2, 2]
    rows = group.all[1].open_step.agreed.rows
    assert rows is not None and (rows.step, rows.members) == (1, group.view.members)
    assert rows.raw.reshape(3, -1).tolist() == [(ROW + me).tolist() for me in range(3)]


def test_rows_are_on_no_receipt() -> None:
    group = measured(new_view(2))
    assert [algorithms(train(group)) for _ in range(2)] == [("one-shot",)] * 2


def test_a_step_that_counts_no_samples_carries_no_rows_and_they_stay_due() -> None:
    group = measured(new_view(2))
    train(group)
    for peer in group.all:
        peer.submit(all_reduce(np.ones(3)))
        peer.close()
    group.deliver()
    assert {len(commit.operations) for commit in group.commit()} == {1}
    assert len(train(group)[0].operations) == 3


def test_a_table_is_used_from_the_step_after_the_receipt_on_which_all_have_it() -> None:
    group = measured(new_view(3))
    train(group)
    train(group)
    tabulate(group, 0, 1)
    assert algorithms(train(group)) == ("one-shot",)
    tabulate(group, 2)
    assert [algorithms(train(group)) for _ in range(3)] == [("one-shot",), ("ring",), ("ring",)]


def test_rows_that_are_gathered_again_leave_the_table_until_all_have_the_new_one() -> None:
    group = measured(with_table(0, 1, 2))
    assert [algorithms(train(group)) for _ in range(3)] == [("ring",)] * 3
    tabulate(group, 0, 1, 2, algorithm="direct")
    assert [algorithms(train(group)) for _ in range(2)] == [("ring",), ("direct",)]


def test_a_view_of_the_same_members_keeps_the_table_and_one_of_others_has_none() -> None:
    group = with_table(0, 1, 2)
    assert algorithms(train(enter(group, 0, 1, 2))) == ("ring",)
    assert algorithms(train(enter(group, 0, 2))) == ("one-shot",)


def test_what_was_gathered_in_a_view_that_is_over_is_gathered_again_in_the_next() -> None:
    group = measured(new_view(3))
    train(group)
    for me in group.members:
        group.all[me].submit(counts(1), weighted(np.ones(6)))
        group.all[me].close()
    group.deliver(9)
    enter(group, 0, 2)
    group.deliver()
    assert {len(commit.operations) for commit in group.commit()} == {3}
    rows = group.all[0].open_step.agreed.rows
    assert rows is not None and rows.members == group.view.members
    assert rows.raw.reshape(2, -1).tolist() == [ROW.tolist(), (ROW + 2).tolist()]


def test_who_takes_another_algorithm_than_the_others_is_refused() -> None:
    group = with_table(0, 1, 2)
    agreed = group.all[2].open_step.agreed
    assert agreed.used is not None
    agreed._tables[agreed.used.step] = Always("direct")
    for me in group.members:
        group.all[me].submit(counts(1), weighted(np.ones(6)))
        group.all[me].close()
    group.deliver()
    assert group.parted == {2} and group.mismatched == {}
    (told,) = group.all[2].open_step._owed
    said = "operation 1 of step 3 is .* by size, which is direct at peer .*, .* by size, which is ring at peer"
    assert re.search(said, str(told))


@pytest.mark.parametrize("asked", ["direct", "one-shot"])
def test_an_algorithm_that_is_asked_for_is_taken(asked: str) -> None:
    group = with_table(0, 1)
    for peer in group.all[:2]:
        peer.submit(counts(1), weighted(np.ones(6), asked))
        peer.close()
    group.deliver()
    assert algorithms(group.commit()) == (asked,)


@pytest.mark.parametrize(("root", "taken"), [(0, "binary-tree"), (1, "ring")])
def test_a_broadcast_goes_as_the_table_says_from_the_rank_of_its_root(root: int, taken: str) -> None:
    group = with_table(0, 1)
    for peer in group.all[:2]:
        name = group.view.members[root].peer_id
        asked = moved("broadcast", np.full(6, 1.0), root=name, algorithm="one-shot")
        nobody = moved("broadcast", np.full(6, 1.0), root="f" * 16)
        peer.submit(counts(1), moved("broadcast", np.full(6, 1.0), root=name), asked, nobody)
        peer.close()
    group.deliver()
    (operations, *_) = {tuple(each.ran for each in commit.operations[1:]) for commit in group.commit()}
    assert operations == (taken, "one-shot", "one-shot"), "by the table, by name, and of nobody by size"


def test_half_types_are_rounded_once() -> None:
    group = with_table(0, 1)
    for peer in group.all[:2]:
        peer.submit(counts(1), all_reduce(np.ones(6, np.float16)), all_reduce(np.ones(6, np.float32)))
        peer.close()
    group.deliver()
    assert algorithms(group.commit()) == ("direct", "ring")


def test_a_state_says_that_rows_are_due() -> None:
    group = measured(enter(Group(3), 0, 1))
    train(group)
    joiner = group.all[2].open_step
    joiner.loaded(0, None, is_due=group.all[0].open_step.agreed.is_due)
    enter(group, 0, 1, 2)
    assert {len(commit.operations) for commit in train(group)} == {3}


def test_a_step_that_is_renumbered_gathers_rows_if_they_are_due_in_the_step_that_it_is_now() -> None:
    group = Group(1)
    step = group.all[0].open_step
    step.submit(0, 0, counts(1))
    step.close(0, b"")
    assert step.submission is not None
    for is_due, number in ((True, 2), (False, 1)):
        step.loaded(step.done + 1, b"", is_due=is_due)
        assert len(step.submission.operations) == number


def test_rows_are_gathered_over_shared_memory_as_over_messages() -> None:
    """After deaths, the remaining members that measure may all be on one host."""
    machine = Machine(3)
    group = shared_view(machine, 3)
    rows = [Row(1, 2, rank).pack() for rank in range(3)]
    for peer, row in zip(group.all, rows, strict=True):
        peer.open_step.agreed.row, peer.open_step.agreed.wants = row, True
    train(group)
    train(group)
    for peer in group.all:
        gathered = peer.open_step.agreed.rows
        assert gathered is not None and (gathered.raw == np.concatenate(rows)).all()
    machine.host.close()
