"""Differences between two peers, as both see them."""

from hypothesis import given

from gossip import NO_VIEW, Policy, Run, RunDescription, Trait
from gossip.effects import Send
from gossip.messages import Difference, Head, Join, Refuse

from .arbitrary import of
from .cores import RUN, bodies, commit_step_0, core, meet, say, seated
from .members import LINEAGE, A, B, C


def runs(*words: str, may_differ: tuple[str, ...] = ()) -> RunDescription:
    """Runs of a script with arguments like `--lr 0.1`."""
    pairs = [word.split() for word in words]
    return RunDescription(
        program=(Trait("script", b"source"), *(Trait(name, value.encode()) for name, value in pairs)),
        may_differ=may_differ,
    )


def test_what_one_has_and_the_other_has_not_or_otherwise_is_a_difference() -> None:
    one, other = runs("--lr 0.1", "--epochs 3", "1 data"), runs("1 data", "--lr 0.01", "-v on")
    assert one.differences(other) == ["--epochs", "--lr", "-v"]
    assert runs("--lr 0.1", "1 data").differences(runs("1 data", "--lr 0.1")) == []


def test_what_either_of_them_lets_differ_does_not_keep_them_apart() -> None:
    one, other = runs("--lr 0.1", "1 data"), runs("--lr 0.01", "1 dates", may_differ=("lr", "1"))
    assert one.differences(other) == other.differences(one) == []
    assert one.differences(runs("--lr 0.01", "1 dates", may_differ=("lr",))) == ["1"]


def test_who_runs_no_script_is_compared_only_in_what_it_trains() -> None:
    assert RunDescription().differences(runs("--lr 0.1")) == []
    model, other = (RunDescription(True, (Trait("model", digest),)) for digest in (b"one", b"other"))
    assert RunDescription(True, model.training, runs().program).differences(model) == []
    assert RunDescription(True, model.training, runs().program).differences(other) == ["model"]


def test_a_model_may_not_differ() -> None:
    model, other = (RunDescription(True, (Trait("model", digest),), (), ("model",)) for digest in (b"one", b"other"))
    assert model.differences(other) == ["model"]


@given(of(RunDescription), of(RunDescription))
def test_both_see_the_same_differences(one: RunDescription, other: RunDescription) -> None:
    assert one.differences(other) == other.differences(one)
    assert one.differences(one) == []


def test_who_is_refused_is_told_what_the_member_has_of_what_differs_and_of_nothing_else() -> None:
    ours = Run(runs("--lr 0.1", "--token x"), {"script": b"train.py", "--lr": b"--lr 0.1", "--token": b"hidden"})
    peer = core(A)
    peer.found(0.0, LINEAGE, 9, ours, Policy.LIVE)
    meet(peer, [B])
    differences = Difference("--lr", b"--lr 0.1"), Difference("--seed", None)
    assert say(peer, B, Join(runs("--lr 0.2", "--token x", "--seed 1")), NO_VIEW) == [
        Send(B, Refuse(False, differences))
    ]
    agreed = Join(runs("--lr 0.2", "--token x", may_differ=("lr",)), view_number=1)
    assert bodies(Head, say(peer, B, agreed, NO_VIEW))


def test_who_is_fed_may_have_what_the_members_had_until_it_is_where_they_changed_it() -> None:
    after = Run(RunDescription(True, (Trait("model", b"after"),)), {"model": b"after"})
    peer = seated(B)
    meet(peer, [C])
    commit_step_0(peer, B)

    def is_refused(run: Run, done: int, digest: bytes = b"digest") -> bool:
        return bool(bodies(Refuse, say(peer, C, Join(run.description, True, done, digest, 1), NO_VIEW)))

    assert is_refused(after, -1) and is_refused(after, -1, b"")
    peer.replace_run(after)
    assert [is_refused(RUN, done) for done in (0, 1)] == [False, True]
    assert is_refused(RUN, -1, b""), "no state is there, and the next one is of what the members run now"
    assert not is_refused(RUN, -1), "a state is, and after which step is said once it keeps step"
    assert not any(is_refused(after, done) for done in (-1, 0, 1))
    other = Run(RunDescription(True, (Trait("model", b"other"),)), {})
    assert is_refused(other, 0)
