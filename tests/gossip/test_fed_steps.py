"""Fed steps that an observer keeps where there is not enough room: R9 of PROTOCOL.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.effects import DropStep, Load
from gossip.fed_steps import FEWEST_KEPT, MOST_FED, NUM_NEXT, FedSteps
from gossip.progress import NOTHING_DONE

from .test_observing import Observer, digest, query

MOST = 6


class Kept:
    """Fed steps of one observer, which has run the steps up to `done`, and has the state after `state` (None: none)."""

    def __init__(self, most: int = MOST, most_bytes: int = 1000) -> None:
        self.steps, self.done = FedSteps(most, most_bytes), 0
        self.state: int | None = None

    def add(self, *steps: int, own: tuple[int, ...] = (), num_bytes: int = 1, coming: int = NOTHING_DONE) -> list[int]:
        """Add a step; returns the dropped ones."""
        let_go = []
        for step in steps:
            places = [self.done] if self.state is None else [self.done, self.state]
            given = step, digest(step - 1), digest(step), num_bytes
            at = [(each, digest(each)) for each in places]
            let_go += self.steps.add(*given, is_own=step in own, places=at, coming=coming)
        assert all(after == digest(step) for step, after in let_go)
        return [step for step, _ in let_go]

    def gets(self, state: int) -> list[int]:
        self.state = state
        return [step for step, _ in self.steps.overtake([(self.done, digest(self.done))], state)]

    def runs(self) -> int:
        """Run all steps that follow; returns the last."""
        while self.steps.after(self.done, digest(self.done)) is not None:
            self.done += 1
            assert self.steps.forget(self.done) == [(self.done, digest(self.done))]
        return self.done

    def loads(self) -> None:
        assert self.state is not None
        self.done, self.state = self.state, None
        self.steps.forget(self.done)


def test_while_no_state_is_here_the_next_steps_and_the_newest_are_kept() -> None:
    kept = Kept()
    assert kept.add(*range(1, MOST + 1)) == []
    assert kept.add(7, 8, 9) == [4, 5, 6]
    assert kept.runs() == 3


def test_where_there_is_room_for_many_so_many_of_the_next_are_kept_that_a_batch_comes_to_its_end() -> None:
    kept = Kept(most=1000, most_bytes=10_000)
    last = NUM_NEXT + 1 + 1001 // 16
    assert kept.add(*range(1, 1002)) == [*range(NUM_NEXT + 1, last + 1)], "and some more, for those that follow"
    assert kept.add(*range(1002, 1000 + last - NUM_NEXT)) == []
    assert kept.gets(1001) == [*range(last + 1, 1002)]
    assert kept.runs() == NUM_NEXT


def test_operations_of_the_script_behind_the_next_steps_are_kept_too() -> None:
    kept = Kept()
    assert kept.add(*range(1, 10), own=(4, 6)) == [5, 6, 7]
    assert kept.runs() == 4


def test_a_state_makes_superfluous_what_is_before_it_but_for_what_the_script_may_have_to_run() -> None:
    kept = Kept()
    kept.add(*range(1, 7), own=(4,))
    assert kept.gets(5) == [5]
    assert kept.runs() == 4


def test_once_a_state_is_here_what_is_behind_it_is_kept_and_the_newest_is_let_go() -> None:
    kept = Kept()
    kept.add(*range(1, 7))
    assert kept.gets(6) == [4, 5, 6]
    assert kept.add(*range(7, 14)) == [10, 11, 12, 13]
    kept.loads()
    assert kept.runs() == 9


def test_what_is_let_go_behind_a_state_begins_with_no_operation_of_the_script() -> None:
    kept = Kept()
    kept.gets(6)
    own = 12, 13, 15, 16
    assert kept.add(*range(7, 18), own=own) == [14, 15, 16, 17]
    kept.loads()
    assert kept.runs() == 13


def test_the_operation_behind_a_state_is_kept_even_where_there_is_no_room() -> None:
    kept = Kept(most=1)
    kept.add(1)
    kept.gets(4)
    assert kept.add(5, 6, 7, own=(5, 6)) == [7]


def test_few_steps_are_kept_whatever_their_size() -> None:
    kept = Kept(most=100, most_bytes=10)
    assert kept.add(*range(1, FEWEST_KEPT + 1), num_bytes=50) == []
    assert kept.add(FEWEST_KEPT + 1, num_bytes=50) == [FEWEST_KEPT // 2 + 1]


def test_a_step_that_comes_twice_counts_once() -> None:
    kept = Kept()
    assert kept.add(*[1] * 10) == []
    assert kept.runs() == 1


def test_of_two_steps_upon_the_same_past_the_first_is_kept() -> None:
    steps = FedSteps(MOST, 1000)
    assert steps.add(1, b"past", b"one", 1, is_own=False, places=[(0, b"past")]) == []
    assert steps.add(1, b"past", b"other", 1, is_own=False, places=[(0, b"past")]) == [(1, b"other")]
    assert steps.after(0, b"past") == b"one"


def test_r9_who_was_fed_too_much_goes_on_from_a_state_and_what_was_fed_behind_it() -> None:
    new, first, newest = Observer(), NUM_NEXT + 1, MOST_FED + 10
    new.fed(*range(1, MOST_FED + 1))
    let_go = new.fed(MOST_FED + 1)
    last = first + MOST_FED // 16
    assert let_go == [DropStep(step, digest(step)) for step in range(first, last + 1)], (
        "the next are kept, and the newest"
    )
    new.fed(*range(MOST_FED + 2, newest + 1))
    assert new.run() == NUM_NEXT
    new.hears(newest, 0.0)
    assert new.hears(newest, 1.0) == query(newest)
    superfluous = [DropStep(step, digest(step)) for step in range(last + 1, newest - 1)]
    assert new.gets(newest - 2) == [Load(newest - 2, digest(newest - 2)), *superfluous]
    last = newest - 2 + MOST_FED
    new.fed(*range(newest + 1, last + 1))
    assert new.fed(last + 1) == [DropStep(last + 1, digest(last + 1))], "what is behind the state is kept"
    new.loads(newest - 2)
    assert new.run() == last


def test_what_is_behind_a_state_that_is_on_its_way_is_kept() -> None:
    kept = Kept()
    kept.add(1, 2, 3)
    assert kept.add(11, *range(12, 20), own=(11, 12), coming=10) == [*range(14, 20)]
    kept.gets(10)
    kept.loads()
    assert kept.runs() == 13


@pytest.mark.parametrize("num_bytes", [1, 1 << 20])
def test_operations_in_a_row_are_kept_up_to_a_limit(num_bytes: int) -> None:
    kept = Kept(most=200, most_bytes=80 << 20)
    kept.add(*range(1, 1001), own=tuple(range(2, 1001)), num_bytes=num_bytes)
    assert len(kept.steps._kept) <= 200 and kept.steps._num_bytes <= 82 << 20, "the first, and the last, are beyond"
    assert kept.runs() == (100 if num_bytes == 1 else 81)


def test_operations_in_a_row_behind_a_state_are_kept_up_to_a_limit() -> None:
    kept = Kept()
    kept.gets(10)
    kept.add(*range(11, 200), own=tuple(range(11, 200)))
    kept.loads()
    assert kept.runs() == 10 + MOST + NUM_NEXT


@given(st.sets(st.integers(1, 60)), st.lists(st.integers(0, 9), max_size=40))
def test_an_operation_of_the_script_that_was_fed_is_here_when_the_script_comes_to_it(
    own: set[int], turns: list[int]
) -> None:
    """Up to five steps are fed in a turn; in other turns a state arrives or is loaded, or the script runs its steps."""
    kept, newest = Kept(), 0
    for turn in turns:
        if turn <= 5:
            kept.add(*range(newest + 1, newest + turn + 1), own=tuple(own))
            newest += turn
        elif turn == 6 and newest > kept.done and newest not in own:
            kept.gets(newest)
        elif turn == 7 and kept.state is not None and kept.state > kept.done and kept.done + 1 not in own:
            kept.loads()
        else:
            kept.runs()
        is_fed = kept.done < newest and kept.done + 1 in own
        assert not is_fed or kept.steps.after(kept.done, digest(kept.done)) is not None
