"""Members' states of `extra`, as compared in a step."""

from typing import Any

from p2p.training.checks.same_extra import SameExtra


class Counter:
    """State that a script adds to."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


def test_who_is_given_a_state_in_the_middle_of_a_step_shows_what_it_has_then() -> None:
    ours, theirs = Counter(), Counter()
    theirs.number = 7
    joiner, member = SameExtra({"counter": ours}), SameExtra({"counter": theirs})
    (shown,), (wanted,) = joiner.operations(5), member.operations(9)
    assert shown.input.tolist() != wanted.input.tolist()
    ours.load_state_dict(theirs.state_dict())
    assert joiner.rebuild_operations([shown], 9, None) == [shown]
    assert shown.input.tolist() == wanted.input.tolist()
