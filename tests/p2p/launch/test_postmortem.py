"""Why a run has failed."""

from pathlib import Path

from p2p.launch.peer_slots import PeerSlot
from p2p.launch.postmortem import Postmortem
from p2p.telemetry.records import Kind
from tests.p2p.telemetry.pages import A, identity, page, snapshot


def place(name: str) -> PeerSlot:
    found = PeerSlot(0, name)
    found.snapshot = snapshot(identity(), step=3, has_begun=True)
    return found


def test_who_was_killed_first_is_named_with_its_step_and_what_it_was_at(tmp_path: Path) -> None:
    made = page(tmp_path, identity())
    made.loop.note(Kind.COMMITTED, 20)
    made.training.note(Kind.RECEIVED, 20, size=19, value=76)
    made.training.note(Kind.SUBMITTED, 21)
    first, second = place("1"), place("0")
    postmortem = Postmortem(tmp_path)
    for each in (first, second):
        seen = postmortem.examine(each)
        each.end(-9, 1.0, 0)
        postmortem.conclude(each, seen, "shoal: a warning")
    assert postmortem.first == (
        "peer 1 failed first, in step 21: it was killed by SIGKILL while exchanging step 21 with the others"
    )
    assert (first.step, first.steps, first.samples) == (20, 19, 76)


def test_when_a_peer_was_active_last_is_in_its_page_or_else_in_its_last_report(tmp_path: Path) -> None:
    postmortem, joined = Postmortem(tmp_path), place("1")
    assert joined.snapshot is not None
    assert postmortem.last_ns(PeerSlot(0, "0")) == 0 < postmortem.last_ns(joined) == joined.snapshot.time_ns
    made = page(tmp_path, identity())
    made.loop.note(Kind.COMMITTED, 20)
    assert postmortem.last_ns(joined) == made.loop.latest()[-1].time_ns


def test_a_step_that_was_committed_without_a_word_to_the_script_any_more_counts_as_on_receipts(tmp_path: Path) -> None:
    """It was killed while it took the results."""
    made = page(tmp_path, identity())
    for step in (20, 21):
        made.loop.note(Kind.COMMITTED, step, value=5)
        if step == 20:
            made.training.note(Kind.RECEIVED, step, size=19, value=76)
    killed = place("1")
    Postmortem(tmp_path).examine(killed)
    killed.end(-9, 1.0, 0)
    assert (killed.step, killed.steps, killed.samples) == (21, 20, 81)


def test_who_was_killed_before_its_script_had_heard_of_any_step_is_counted_for_that(tmp_path: Path) -> None:
    made = page(tmp_path, identity())
    made.loop.note(Kind.COMMITTED, 0)  # the start
    made.loop.note(Kind.COMMITTED, 1, value=5)
    killed = place("1")
    Postmortem(tmp_path).examine(killed)
    killed.end(-9, 1.0, 0)
    assert (killed.steps, killed.samples) == (1, 5)


def test_who_has_said_nothing_since_it_joined_has_no_last_words(tmp_path: Path) -> None:
    failed = place("1")
    postmortem = Postmortem(tmp_path)
    failed.end(3, 1.0, 0)
    postmortem.conclude(failed, None, "shoal: joined swarm train-fbc8f81e at step 0, 4 members")
    assert postmortem.first == "peer 1 failed first, in step 4: it ended with exit code 3"


def test_who_has_raised_is_named_with_its_last_words(tmp_path: Path) -> None:
    failed = place("1")
    postmortem = Postmortem(tmp_path)
    assert postmortem.examine(failed) is None  # the peer has left in order, and its page is removed
    failed.end(1, 1.0, 0)
    postmortem.conclude(failed, None, "ValueError: " + "x" * 1000)
    start = "peer 1 failed first, in step 4: it ended with exit code 1 (ValueError: xxx"
    assert postmortem.first.startswith(start) and len(postmortem.first) < 300


def test_who_has_failed_before_it_joined_is_news_only_if_others_failed_too(tmp_path: Path) -> None:
    postmortem = Postmortem(tmp_path)
    news = []
    for name in ("1", "0"):
        failed = PeerSlot(0, name)
        assert postmortem.examine(failed) is None
        failed.end(1, 1.0, 0)
        postmortem.conclude(failed, None, "")
        news.append(postmortem.is_news)
    assert news == [False, True]
    assert postmortem.first == "peer 1 failed first, before its first step: it ended with exit code 1"


def test_a_page_that_cannot_be_read_leaves_what_the_peer_has_reported(tmp_path: Path) -> None:
    (tmp_path / f"{A}.page").write_bytes(b"?")
    failed = place("1")
    assert Postmortem(tmp_path).examine(failed) is None
    assert failed.step == 3
