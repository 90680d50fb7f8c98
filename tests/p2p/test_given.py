"""Arguments of scripts: wrong types are refused by name, compatible ones are accepted."""

from pathlib import Path

import numpy as np
import pytest

import p2p
from p2p.given import check_numbers, check_whole, setting


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("swarm", 5, "text"),
        ("bind", ("host", 7700), "text"),
        ("min_peers", "2", "a whole number"),
        ("min_peers", True, "a whole number"),
        ("min_peers", 2.0, "a whole number"),
        ("join_timeout_s", "5", "a number"),
        ("home", 5, "a path"),
        ("insecure", "no", "True or False"),
        ("rejoin", 0, "True or False"),
        ("may_differ", "lr", "a list of names"),
        ("seeds", ["a:1", 5], "`host:port,host:port`, or a list of these"),
    ],
)
def test_another_type_is_refused_with_what_was_given(name: str, given: object, expected: str) -> None:
    with pytest.raises(TypeError) as caught:
        p2p.join(**{name: given})  # type: ignore[arg-type]
    assert str(caught.value) == f"`{name}` of p2p.join must be {expected}, is {given!r}"


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("min_peers", np.int64(3), 3),
        ("slow_factor", np.float32(2.5), 2.5),
        ("step_timeout_s", 5, 5.0),
        ("home", "runs", Path("runs")),
        ("key", Path("key"), Path("key")),
        ("may_differ", ["lr", "seed"], ("lr", "seed")),
        ("seeds", ["a:1", "b:2"], "a:1,b:2"),
        ("seeds", "a:1,b:2", "a:1,b:2"),
    ],
)
def test_what_is_like_the_right_type_is_taken(name: str, given: object, taken: object) -> None:
    made = setting(name, given)
    assert (made, type(made)) == (taken, type(taken))


@pytest.mark.parametrize("value", ["5", 5.5, True, [5]])
def test_what_is_no_whole_number_is_named(value: object) -> None:
    check_whole(every=5, keep=None, steps=np.int32(5))
    with pytest.raises(TypeError, match=r"^every must be a whole number, is "):
        check_whole(keep=None, every=value)


@pytest.mark.parametrize("value", ["0.5", False, (1,)])
def test_what_is_no_number_is_named(value: object) -> None:
    check_numbers(decay=0.5, momentum=1, round_s=None, outer_lr=np.float32(1))
    with pytest.raises(TypeError, match=r"^decay must be a number, is "):
        check_numbers(decay=value)


def test_a_checkpoint_of_every_few_steps_says_so_by_a_whole_number() -> None:
    with pytest.raises(TypeError, match="every must be a whole number, is '5'"):
        p2p.Checkpoint("runs/a", every="5")  # type: ignore[arg-type]
