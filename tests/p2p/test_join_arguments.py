"""What `p2p.join` is given: another type is refused by name, and what is like the right one is taken."""

from pathlib import Path

import numpy as np
import pytest

import p2p
from p2p.join_arguments import setting


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
