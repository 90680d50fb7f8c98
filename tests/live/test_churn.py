"""Sequences of kills, joins and leaves of real processes. `make churn EVENTS=150 SEED=0` runs longer ones."""

import pytest

from p2p.forking.zygote import Zygote
from tests.cases import some_of
from tests.live.churn import Churn, check_chain, check_samples


@pytest.mark.parametrize(("seed", "num_events"), some_of([(0, 12), (0, 20), (1, 20)], 0))
def test_peers_that_are_killed_join_and_leave_at_random_lose_no_step_and_leave_nothing(
    torch_zygote: Zygote, seed: int, num_events: int
) -> None:
    churn = Churn(torch_zygote, seed)
    receipts = churn.run(num_events)
    assert churn.events.total == num_events and min(churn.events.kills, churn.events.joins, churn.events.leaves) > 0
    assert len(receipts) > num_events


def test_the_checks_notice_a_step_that_is_missing_and_a_sample_that_counts_twice(torch_zygote: Zygote) -> None:
    receipts = Churn(torch_zygote, 2).run(1)
    with pytest.raises(AssertionError):
        check_chain(receipts[:5] + receipts[6:])
    with pytest.raises(AssertionError, match="again"):
        check_samples(receipts[:5] + receipts[4:])
