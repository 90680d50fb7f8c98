"""How long who is removed again and again waits before it returns."""

from p2p.session.incarnations import FREE_RETURNS, MOST_WAIT_S, WAIT_S, waits_s


def test_the_first_returns_are_at_once_and_then_each_takes_twice_as_long_up_to_a_limit() -> None:
    assert {waits_s(number) for number in range(1, FREE_RETURNS + 1)} == {0.0}
    later = [waits_s(number) for number in range(FREE_RETURNS + 1, FREE_RETURNS + 6)]
    assert later == [WAIT_S, 2 * WAIT_S, 4 * WAIT_S, 8 * WAIT_S, MOST_WAIT_S]
    assert waits_s(10_000) == MOST_WAIT_S
