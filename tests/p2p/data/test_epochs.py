"""The epoch of a loop over a loader, and the loop's end."""

import pytest

from p2p.errors import ShoalError
from p2p.step.receipts import UNKNOWN_SAMPLE
from tests.p2p.data.swarm import Lockstep
from tests.p2p.data.test_loader import LISTS, Squares


def test_a_joiner_enters_the_epoch_of_the_swarm_and_is_told_how_to_write_its_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    swarm = Lockstep("a")
    loaders = swarm.loaders(range(20), global_batch=10, epochs=3)
    swarm.train(loaders)
    swarm.shares["joiner"] = type(swarm.shares["a"])()
    swarm.shares["joiner"].load(swarm.shares["a"].pack())
    loaders["joiner"] = joined = swarm.loader("joiner", range(20), global_batch=10, epochs=3)
    assert joined.epoch == 1 and caplog.text == ""
    swarm.train(loaders)
    assert "starts in epoch 1, where the swarm is" in caplog.text and "loader.epochs()" in caplog.text
    caplog.clear()
    assert len(swarm.train(loaders)) == 2 and swarm.train(loaders) == []
    assert caplog.text.count("all 3 epochs of this loader are over, so this loop is empty") == 2, "each peer's, once"


def test_the_epochs_that_are_left_are_the_swarms() -> None:
    swarm = Lockstep("a")
    loader = swarm.loader("a", range(20), global_batch=10, epochs=3)
    seen = []
    for epoch in loader.epochs():
        for _ in loader:
            seen.append(epoch)
            swarm.commit()
    assert seen == [0, 0, 1, 1, 2, 2] and list(loader.epochs()) == []


def test_a_state_of_another_epoch_ends_no_loop() -> None:
    swarm, ahead = Lockstep("a"), Lockstep("a")
    loader, theirs = (each.loader("a", range(20), global_batch=10, epochs=3) for each in (swarm, ahead))
    ahead.train({"a": theirs})
    batches = iter(loader)
    next(batches)
    swarm.shares["a"].void()
    swarm.shares["a"].load(ahead.shares["a"].pack())
    swarm.commit()
    assert next(batches) is not None and loader.epoch == 1


def test_a_loop_that_goes_on_in_another_epoch_than_it_was_given_the_number_of_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    swarm, ahead = Lockstep("a"), Lockstep("a")
    loader, theirs = (each.loader("a", range(20), global_batch=10, epochs=4) for each in (swarm, ahead))
    ahead.train({"a": theirs})
    numbers = loader.epochs()
    assert next(numbers) == 0
    batches = iter(loader)
    next(batches)
    swarm.shares["a"].void()
    swarm.shares["a"].load(ahead.shares["a"].pack())
    swarm.commit()
    next(batches)
    said = "`loader.epochs()` called epoch 0. That state is in epoch 1, so the loop continues with the rest of epoch 1"
    assert caplog.text.count(said) == 1
    swarm.commit()
    next(batches)
    swarm.commit()
    assert next(batches, None) is None and next(numbers) == 2
    next(iter(loader))
    numbers.close()  # type: ignore[attr-defined]
    ahead.train({"a": theirs})
    swarm.shares["a"].void()
    swarm.shares["a"].load(ahead.shares["a"].pack())
    swarm.commit()
    next(iter(loader))
    assert caplog.text.count("called epoch") == 1


def test_a_state_loaded_in_the_last_step_of_an_epoch_leaves_its_end_to_the_script() -> None:
    """The joiner, too, carries out the actions between two epochs, such as a schedule's step or leaving."""
    members, alone = Lockstep("a"), Lockstep("joiner")
    theirs = members.loader("a", range(20), global_batch=10, epochs=5)
    loader = alone.loader("joiner", range(20), global_batch=10, epochs=5)
    members.train({"a": theirs})
    batches_of_theirs, batches = iter(theirs), iter(loader)
    next(batches_of_theirs)
    members.commit()
    next(batches_of_theirs)
    next(batches)
    members.shares["joiner"] = joiner = alone.shares["joiner"]
    joiner.void()
    joiner.load(members.shares["a"].pack())
    members.commit()
    assert loader.epoch == theirs.epoch == 2
    assert next(batches_of_theirs, None) is None and next(batches, None) is None


def test_a_second_phase_over_a_loader_that_is_used_up_is_told_and_no_loop_over_it_is_endless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    swarm = Lockstep("a")
    loaders = swarm.loaders(range(20), global_batch=10, epochs=2)
    for _ in loaders["a"].epochs():
        swarm.train(loaders)
    assert caplog.text == "" and list(loaders["a"].epochs()) == [] == list(loaders["a"])
    assert caplog.text.count("all 2 epochs of this loader are over, so this loop is empty. Pass a larger epochs=") == 1
    with pytest.raises(ShoalError, match="10000 loops over it were empty"):
        while True:
            list(loaders["a"])


@pytest.mark.parametrize(("num_steps", "is_told"), [(4, True), (5, False)])
def test_a_schedule_that_ends_with_the_last_epoch_is_named(
    caplog: pytest.LogCaptureFixture, num_steps: int, is_told: bool
) -> None:
    swarm = Lockstep("a")
    swarm.shares["a"].schedule_ends = {"OneCycleLR": num_steps}
    loaders = swarm.loaders(range(20), global_batch=10, epochs=2)
    for _ in range(2):
        swarm.train(loaders)
    told = "OneCycleLR ends after 4 steps, the length of all epochs if no peer dies. Each death adds a step"
    assert caplog.text.count(told) == is_told


def test_an_epoch_that_is_left_early_goes_on_in_the_next_loop_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    swarm = Lockstep("a")
    loader = swarm.loader("a", range(20), global_batch=5, epochs=2, options=LISTS)
    used = []
    for batch in loader:
        used += batch
        swarm.commit()
        break
    assert caplog.text == ""
    for batch in loader:
        used += batch
        swarm.commit()
    assert sorted(used) == list(range(20)) and loader.epoch == 1
    assert "the loop over epoch 0 was left early" in caplog.text and "end_epoch" in caplog.text


def test_a_batch_that_no_step_counts_and_that_comes_again_and_again_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`next(iter(loader))` of two loaders, for one step: it counts the samples of the second one."""
    swarm = Lockstep("a")
    (first,), (second,) = (
        swarm.loaders(range(20), global_batch=2, seed=seed, options=LISTS).values() for seed in (1, 2)
    )
    assert next(iter(first)) == next(iter(first)), "a look at it"
    for loader in (first, second) * 3:  # alternately, with one batch more than steps
        batches = iter(loader)
        next(batches)
        swarm.commit()
        next(batches)
    assert "handed out" not in caplog.text
    seen = []
    for turn in range(4):
        seen.append((tuple(next(iter(first))), tuple(next(iter(second)))))
        swarm.commit()
        assert ("handed out the same batch at least three times" in caplog.text) == (turn > 0), (
            "once already before this loop"
        )
    assert len({batch for batch, _ in seen}) == 1 and len({batch for _, batch in seen}) == 4
    assert caplog.text.count("handed out the same batch at least three times") == 1


def test_an_epoch_that_is_left_early_comes_again_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    swarm = Lockstep("a")
    loader = swarm.loader("a", range(20), global_batch=5, epochs=2, options=LISTS)
    epochs = []
    for epoch in loader.epochs():
        epochs.append(epoch)
        for _ in loader:
            swarm.commit()
            if len(epochs) % 2:
                break
    assert epochs == [0, 0, 1, 1]
    assert caplog.text.count("was left early, so the next one continues with the rest of it") == 1


def test_a_dataset_that_has_grown_is_refused_as_the_next_epoch_begins() -> None:
    swarm, dataset = Lockstep("a"), Squares()
    loaders = swarm.loaders(dataset, global_batch=5, epochs=3, options=LISTS)
    swarm.train(loaders)
    dataset.size = 24
    words = "Squares has 24 samples, but had 20 when this loader was made: make a new loader"
    for batches in (iter(loaders["a"]), loaders["a"].evaluate()):
        with pytest.raises(ShoalError, match=words):
            next(batches)


def test_an_epoch_in_which_no_step_used_a_sample_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    swarm = Lockstep("a")
    loader, found = swarm.loader("a", range(8), global_batch=4, epochs=4), []
    for epoch in loader.epochs():
        found.append(epoch)
        for _ in loader:
            if swarm.done >= 1:
                break
            swarm.commit()
    assert found == [0, 0, 1, 2, 3]
    assert caplog.text.count("in the loop over epoch 0, so the 4 samples that it had left are left out") == 1
    assert caplog.text.count("are left out") == 1


def test_an_epoch_can_be_ended_early_once() -> None:
    swarm = Lockstep("a")
    loader = swarm.loader("a", range(20), global_batch=5, epochs=3)
    for _ in loader:
        swarm.commit()
        break
    loader.end_epoch()
    loader.end_epoch()
    assert loader.epoch == 1
    for epoch in loader.epochs():
        next(iter(loader))
        assert epoch < 3, "a loop over epochs in which nothing is trained on ends"


def test_no_step_uses_a_batch_whose_epoch_has_been_ended() -> None:
    swarm = Lockstep("a")
    loader, share = swarm.loader("a", range(12), global_batch=4, epochs=3), swarm.shares["a"]
    for _ in loader:
        loader.end_epoch()
        with pytest.raises(ShoalError, match=r"call it after `optimizer.step`, or leave the loop"):
            swarm.commit()
    for _ in loader:
        loader.end_epoch()
        break
    assert share.counts == (UNKNOWN_SAMPLE, 1, 1), "what comes now is the script's own"
    for _ in loader:
        break
    assert share.counts == (0, 4, 4)
    loader.end_epoch()
    assert share.counts == (UNKNOWN_SAMPLE, 1, 1) and loader.epoch == 3
