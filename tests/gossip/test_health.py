from gossip.health import LocalHealth


def test_a_peer_that_fails_becomes_more_patient_within_limits() -> None:
    health = LocalHealth(3)
    assert health.multiplier == 1
    health.improve()
    assert health.score == 0
    health.worsen()
    health.worsen(5)
    assert (health.score, health.multiplier) == (3, 4)
    health.improve()
    assert health.score == 2
