"""Messages about samples that do not come from a loader."""

import pytest

from p2p.data.own_data import MOST_CALLS, OwnData


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = list(caplog.messages)
    caplog.clear()
    return messages


def test_nothing_is_said_while_nobody_comes_or_goes(caplog: pytest.LogCaptureFixture) -> None:
    data = OwnData()
    data.join(0, 0)
    for step in range(1, 5):
        data.train(("a", "b"), step)
    assert said(caplog) == []


def test_a_joiner_is_told_once_where_the_swarm_is_and_no_more_of_those_who_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = OwnData()
    data.join(40, 40)
    data.train(("a", "b"), 41)
    (line,) = said(caplog)
    assert "the swarm has trained 40 steps" in line and "peer.done" in line and "peer.loader" in line
    data.train(("a", "b", "c"), 42)
    assert said(caplog) == []


def test_a_member_is_told_once_that_the_members_have_changed(caplog: pytest.LogCaptureFixture) -> None:
    data = OwnData()
    data.train(("a", "b"), 1)
    data.train(("a", "b", "c"), 2)
    (line,) = said(caplog)
    assert "the members changed at step 2" in line
    data.train(("a", "b"), 3)
    assert said(caplog) == []


def test_who_is_left_alone_is_told_so_whatever_was_said_before(caplog: pytest.LogCaptureFixture) -> None:
    data = OwnData()
    data.join(1, 1)
    data.train(("a", "b", "c"), 2)
    said(caplog)
    data.train(("c",), 3)
    (line,) = said(caplog)
    assert "since step 3 this peer trains alone, after 3 members before" in line
    data.train(("c",), 4)
    assert said(caplog) == []


def test_samples_of_no_loader_that_come_after_a_loaders_and_all_weigh_the_same_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = OwnData()
    data.weigh([1, 1], 1)
    data.use_loader()
    data.weigh([3, 4], 2)
    data.weigh([1], 3)
    assert said(caplog) == []
    data.weigh([1, 1], 4)
    data.weigh([1, 1], 5)
    (line,) = said(caplog)
    assert line.startswith("training step 4 has") and "model.num_samples" in line and "cycle" in line


def test_a_rank_behind_all_members_is_explained_once(caplog: pytest.LogCaptureFixture) -> None:
    data = OwnData()
    data.ask_rank(2)
    data.ask_rank(2)
    (line,) = said(caplog)
    assert "its rank is 2 of 2" in line and "DistributedSampler" in line


def test_who_adds_up_with_others_that_were_there_before_it_is_told_once_that_it_has_none_of_their_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = OwnData()
    assert not data.is_late
    data.join(0, 0)
    assert not data.is_late
    data.join(0, 64)
    assert data.is_late
    for op, dtype, shape in (
        ("sum", "torch.float32", ()),
        ("sum", "torch.int64", (3,)),
        ("max", "torch.float32", (3,)),
    ):
        data.reduce(op, dtype, shape, is_alone=False)
    assert said(caplog) == [], "counters, and no gradients"
    for _ in range(MOST_CALLS):
        data.reduce("mean", "torch.float32", (3,), is_alone=False)
    (line,) = said(caplog)
    assert "joined at step 64" in line and "received none of their state" in line
    assert not data.is_late


def test_a_late_peer_that_reduces_alike_tensors_at_several_places_is_told_once_that_they_may_be_mixed_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = OwnData()
    data.join(0, 64)
    for _ in range(3):
        data.reduce("mean", "torch.float32", (), is_alone=False)
        data.reduce("mean", "torch.float32", (), is_alone=False)
        data.reduce("mean", "torch.float32", (), is_alone=True)
        data.reduce("mean", "torch.float64", (), is_alone=True)
    assert said(caplog) == [], "others of one type are in a step together"
    data.reduce("mean", "torch.float64", (), is_alone=True)
    (line,) = said(caplog)
    assert "joined at step 64" in line and "results may be mixed up" in line
    assert not data.is_late
