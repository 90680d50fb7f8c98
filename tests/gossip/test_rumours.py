from hypothesis import given
from hypothesis import strategies as st

from gossip.rumours import Rumours


def test_the_least_spread_goes_first_and_nothing_goes_on_for_ever() -> None:
    rumours = Rumours()
    assert not rumours
    rumours.add("old")
    assert rumours.take(1, 3) == ["old"]
    rumours.add("new")
    assert rumours.take(1, 3) == ["new"]
    assert rumours.take(2, 3) == ["old", "new"]
    assert rumours.take(2, 3) == ["old", "new"]
    assert rumours.take(2, 3) == []
    assert len(rumours) == 0


def test_newer_news_of_the_same_peer_starts_anew() -> None:
    rumours = Rumours()
    for _ in range(10):
        rumours.add("a")
        assert rumours.take(8, 2) == ["a"]
    assert len(rumours) == 1
    rumours.drop("a")
    rumours.drop("a")
    assert not rumours


def test_after_a_long_pause_there_is_no_news() -> None:
    rumours = Rumours()
    rumours.add("a")
    rumours.take(1, 9)
    rumours.clear()
    assert rumours.take(1, 9) == []


@given(st.lists(st.sampled_from("abcde")), st.integers(1, 4), st.integers(1, 4))
def test_each_name_is_sent_as_often_as_was_set(added: list[str], count: int, limit: int) -> None:
    rumours = Rumours()
    for name in added:
        rumours.add(name)
    sent = list[str]()
    while batch := rumours.take(count, limit):
        assert len(batch) == len(set(batch)) <= count
        sent += batch
    assert sorted(sent) == sorted(sorted(set(added)) * limit)
