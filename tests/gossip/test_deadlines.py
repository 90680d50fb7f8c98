import math

from hypothesis import given
from hypothesis import strategies as st

from gossip.deadlines import Deadlines


def test_the_earliest_is_next_and_what_is_due_comes_out_in_order() -> None:
    deadlines = Deadlines()
    assert deadlines.next() == math.inf
    for name, when in (("late", 3.0), ("early", 1.0), ("soon", 2.0)):
        deadlines.set(name, when)
    assert deadlines.next() == 1.0
    assert deadlines.pop(2.0) == ["early", "soon"]
    assert "late" in deadlines
    assert "early" not in deadlines
    assert len(deadlines) == 1


def test_a_deadline_can_be_moved_and_dropped() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 5.0)
    deadlines.set("b", 2.0)
    assert deadlines.next() == 2.0
    deadlines.drop("b")
    deadlines.drop("never set")
    assert deadlines.pop(4.0) == []
    deadlines.shift(10.0)
    assert deadlines.next() == 15.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 10))))
def test_it_equals_a_dict_and_its_memory_is_bounded(changes: list[tuple[str, float]]) -> None:
    deadlines, expected = Deadlines(), dict[str, float]()
    for name, when in changes * 20:
        deadlines.set(name, when)
        expected[name] = when
        assert deadlines.next() == min(expected.values())
        assert len(deadlines._heap) <= 2 * len(expected) + 16
    assert sorted(deadlines.pop(10.0)) == sorted(expected)
