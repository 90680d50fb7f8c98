"""When a state is complete, by the script's actions after a step: order of copies, donations and checkpoints."""

from p2p.data.sample_tracker import SampleTracker
from p2p.session.state_completion import StateCompletion


class Script:
    """The script of one peer.

    Attributes:
        done: the last committed step.
        seen: actions on the state since.
    """

    def __init__(self) -> None:
        self.done, self.share = 0, SampleTracker()
        self.seen: list[str] = []
        self.edge = StateCompletion(
            self.share,
            lambda: self.done,
            keep=lambda: self.seen.append("keep"),
            give=lambda: self.seen.append("give"),
            write=lambda: self.seen.append("write"),
        )

    def commits(self) -> None:
        """Commit a step of a loader's batch."""
        self.done += 1
        self.share.is_after_batch = True
        self.seen.clear()

    def asks(self) -> None:
        self.share.is_after_batch = False
        self.edge.settle()


def test_a_forward_pass_behind_a_batch_says_nothing_before_another_one_is_asked_for() -> None:
    script = Script()
    script.commits()
    for _ in range(3):  # an evaluation
        script.edge.pass_begins(is_over=True)
    assert script.seen == ["keep"] and not script.edge.is_certain
    script.asks()
    assert script.seen == ["keep", "keep"] and script.edge.is_certain, "as it is by now"
    for _ in range(3):
        script.edge.pass_begins(is_over=True)
    assert script.seen == ["keep", "keep", "give", "write"]
    script.commits()
    assert not script.edge.is_certain


def test_a_backward_pass_behind_an_evaluation_begins_a_step_with_what_the_first_forward_pass_has_found() -> None:
    script = Script()
    script.commits()
    script.edge.keep()
    script.share.is_after_batch = False  # its backward pass begins
    script.edge.pass_begins(is_over=False)
    assert not script.edge.is_given
    script.edge.pass_begins(is_over=True)
    assert script.seen == ["keep", "write", "give"] and script.edge.is_given
    script.commits()
    assert not script.edge.is_given, "behind an operation of the script's own nobody begins"


def test_between_two_updates_of_a_batch_nothing_is_complete() -> None:
    script = Script()
    script.share._num_updates = 1
    script.edge.pass_begins(is_over=True)
    assert script.seen == [] and script.share.is_amid_batch


def test_another_incarnation_gives_the_state_again_and_another_model_nothing_of_it() -> None:
    script = Script()
    script.commits()
    script.asks()
    script.edge.mark_complete()
    script.edge.give_again()
    script.edge.mark_complete()
    assert script.seen == ["keep", "give", "write", "give", "write"]
    script.edge.withhold()
    assert not script.edge.is_certain
