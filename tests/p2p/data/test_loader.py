import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

from p2p.data.loader import Loader
from p2p.errors import DatasetRefused, ShoalError
from tests.p2p.data.swarm import Lockstep

Sample = dict[str, int]


class Squares(Dataset[Sample]):
    """Samples that are dicts, one by one."""

    def __init__(self, size: int = 20) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        return {"index": index, "square": index**2, "pid": os.getpid()}


class InOneGo(Squares):
    """Samples that are fetched batch by batch."""

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        return [{**self[index], "of": len(indices)} for index in indices]


LISTS: dict[str, Any] = {"collate_fn": list}
"""Batches are lists of samples."""


def indices(steps: list[dict[str, list[Sample]]]) -> list[int]:
    return [sample["index"] for step in steps for batch in step.values() for sample in batch]


DATASETS: dict[str, Any] = {
    "range": range(20),
    "list": list(range(20)),
    "array": np.arange(20),
    "tensor": torch.arange(20),
    "subset": Subset(range(40), range(20)),  # type: ignore[arg-type]
    "split": random_split(range(20), [20])[0],  # type: ignore[arg-type]
    "tensors": TensorDataset(torch.arange(20)),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_an_epoch_has_each_sample_once_whatever_the_dataset(kind: str) -> None:
    swarm = Lockstep("a", "b")
    loaders = swarm.loaders(DATASETS[kind], global_batch=6, epochs=2, options=LISTS)
    for epoch in range(2):
        assert (loaders["a"].epoch, len(loaders["a"])) == (epoch, 4)
        steps = swarm.train(loaders)
        samples = [sample for step in steps for batch in step.values() for sample in batch]
        assert sorted(int(np.asarray(each).item()) for each in np.ravel(samples)) == list(range(20))
        assert [sum(map(len, step.values())) for step in steps] == [6, 6, 6, 2]
    assert swarm.train(loaders) == [] and loaders["a"].epoch == 2


@pytest.mark.parametrize("kind", [Squares, InOneGo])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_sample_counts_once_an_epoch_although_members_die(num_workers: int, kind: type[Squares]) -> None:
    swarm = Lockstep("a", "b", "c")
    options = {"num_workers": num_workers, "collate_fn": list}
    loaders = swarm.loaders(kind(), global_batch=6, epochs=3, options=options)
    for _ in range(3):
        steps = swarm.train(loaders, {2: "b", 6: "c"})
        assert Counter(indices(steps)) == dict.fromkeys(range(20), 1)
        for sample in (sample for step in steps for batch in step.values() for sample in batch):
            assert sample["square"] == sample["index"] ** 2
            assert (sample["pid"] == os.getpid()) == (num_workers == 0)
    assert list(swarm.shares) == ["a"] and loaders["a"].epoch == 3


def test_workers_stay_from_epoch_to_epoch_and_load_ahead() -> None:
    swarm = Lockstep("a")
    loaders = swarm.loaders(Squares(), global_batch=5, epochs=3, options={"num_workers": 2, "collate_fn": list})
    steps = [step for _ in range(3) for step in swarm.train(loaders)]
    assert len({sample["pid"] for step in steps for sample in step["a"]}) == 2


class Curriculum(Squares):
    """A dataset whose difficulty the script sets between two epochs; a transform has it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = Squares(0)

    def __getitem__(self, index: int) -> Sample:
        return {**super().__getitem__(index), "level": self.transform.size}


@pytest.mark.parametrize("is_persistent", [False, True])
def test_workers_see_what_the_script_has_set_in_the_dataset_between_two_epochs(is_persistent: bool) -> None:
    """As with torch's DataLoader, whose workers live for an epoch; persistent workers do not see it."""
    swarm, dataset = Lockstep("a"), Curriculum()
    options = {"num_workers": 1, "collate_fn": list, "persistent_workers": is_persistent}
    loaders = swarm.loaders(dataset, global_batch=5, epochs=4, options=options)
    seen = []
    for level in (0, 1, 2, 2):
        dataset.transform.size = level
        samples = [sample for step in swarm.train(loaders) for sample in step["a"]]
        seen.append({(sample["level"], sample["pid"]) for sample in samples})
    assert [{level for level, _ in each} for each in seen] == 4 * [{0}] if is_persistent else [{0}, {1}, {2}, {2}]
    assert seen[2] == seen[3]


def test_workers_begin_again_when_the_last_step_of_all_leaves_something() -> None:
    swarm = Lockstep("a", "b")
    loaders = swarm.loaders(Squares(8), global_batch=8, options={"num_workers": 1, "collate_fn": list})
    assert sorted(indices(swarm.train(loaders, {1: "b"}))) == list(range(8))


def test_a_larger_part_comes_in_micro_batches_of_about_equal_size() -> None:
    swarm = Lockstep("a", "b")
    loader = swarm.loader("a", range(24), global_batch=12, max_local_batch=4, shuffle=False, options=LISTS)
    swarm.loader("b", range(24), global_batch=12, shuffle=False)
    share, seen = swarm.shares["a"], []
    for batch in loader:
        seen.append((batch, share.parts.fraction, share.parts.is_last))
        share.parts.is_used = True
        if share.parts.is_last:
            break
    assert seen == [([0, 1, 2], 0.5, False), ([3, 4, 5], 0.5, True)]
    share.spend()
    assert (share.parts.is_last, share.parts.fraction) == (True, 1.0), "the loop is over"


def test_a_single_sample_is_given_twice_and_counts_once() -> None:
    swarm = Lockstep("a")
    loader = swarm.loader("a", range(1), global_batch=1, options=LISTS)
    batches = iter(loader)
    assert next(batches) == [0, 0] and swarm.shares["a"].counts == (0, 1, 1)


def test_who_is_not_on_the_last_receipt_is_given_samples_that_do_not_count() -> None:
    swarm = Lockstep("a", "b")
    swarm.shares["joiner"] = joiner = type(swarm.shares["a"])()
    joiner.load(swarm.shares["a"].pack())
    batches = iter(swarm.loader("joiner", range(24), global_batch=12, shuffle=False, options=LISTS))
    assert next(batches) == [0, 1] and joiner.counts == (-1, 0, 0)


def test_batches_that_no_step_counts_are_refused() -> None:
    swarm = Lockstep("a")
    first, second = (swarm.loader("a", range(20), global_batch=5, seed=seed) for seed in (0, 1))
    batches = iter(first)
    next(batches)
    with pytest.raises(
        ShoalError, match=r"two batches: call backward once per batch; .* `model.skip_step\(\)` instead"
    ):
        next(batches)
    batches = iter(first)
    others = iter(second)
    next(batches), next(others)
    swarm.commit()
    with pytest.raises(ShoalError, match="a step counts the samples of one loader"):
        next(batches)
    batches = iter(swarm.loader("a", range(20), global_batch=8, max_local_batch=2))
    next(batches)
    with pytest.raises(ShoalError, match="a micro-batch had no backward pass"):
        next(batches)


def test_a_batch_per_peer_is_what_each_is_given_whoever_comes_and_goes() -> None:
    swarm = Lockstep("a", "b", "c")
    loaders = swarm.loaders(range(23), batch_per_peer=3, options=LISTS)
    with pytest.raises(TypeError, match=r"has no length.*peer\.samples"):
        len(loaders["a"])
    steps = swarm.train(loaders, {2: "b"})
    assert [[len(batch) for batch in step.values()] for step in steps] == [[3, 3, 3], [3, 3], [3, 3], [0, 2]]
    assert sorted(each for step in steps for batch in step.values() for each in batch) == list(range(23))


def test_two_loaders_do_not_share_a_position() -> None:
    swarm = Lockstep("a")
    train = swarm.loader("a", range(20), global_batch=5)
    valid = swarm.loader("a", range(8), global_batch=4)
    assert len(swarm.train({"a": train})) == 4 and len(swarm.train({"a": valid})) == 2
    assert (train.epoch, valid.epoch) == (1, 1)


class Broken(Squares):
    """A dataset with one sample that cannot be read."""

    def __getitem__(self, index: int) -> Sample:
        if index == 13:
            raise OSError("disk of sample 13")
        return super().__getitem__(index)


class Deadly(Squares):
    """A dataset with one sample that ends the worker that reads it."""

    def __getitem__(self, index: int) -> Sample:
        if index == 13:
            os._exit(7)
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_the_dataset_raises_comes_out_of_the_loop_if_the_script_says_so(num_workers: int) -> None:
    swarm = Lockstep("a", "b")
    options = {"num_workers": num_workers, "collate_fn": list}
    loaders = swarm.loaders(Broken(), global_batch=8, shuffle=False, max_attempts=0, options=options)
    batches = {name: iter(loader) for name, loader in loaders.items()}
    for batch in batches.values():
        next(batch)
    swarm.commit()
    assert [sample["index"] for sample in next(batches["a"])] == [8, 9, 10, 11]
    try:  # pytest.raises would keep the traceback, and with it the workers, for which garbage collection would wait
        next(batches["b"])
    except OSError as error:
        why = str(error)
    assert "disk of sample 13" in why


@pytest.mark.parametrize(("names", "num_workers"), [("abc", 0), ("abc", 2), ("a", 0)])
def test_a_sample_that_nobody_can_load_is_left_out_and_named(
    names: str, num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    swarm = Lockstep(*names)
    options = {"num_workers": num_workers, "collate_fn": list}
    loaders = swarm.loaders(Broken(), global_batch=9, epochs=2, options=options)
    for _ in range(2):
        caplog.clear()
        used: Counter[int] = Counter()
        for step in swarm.train(loaders):
            used.update(sample["index"] for batch in step.values() for sample in batch)
        assert used == dict.fromkeys((index for index in range(20) if index != 13), 1)
        assert caplog.text.count("this peer cannot load sample 13, so it") == 2
        assert "to this step: OSError: disk of sample 13\n" in caplog.text
    aside = {share.pack()[-2][0][-2] for share in swarm.shares.values()}
    assert len(aside) == 1 and len(aside.pop()) == 2, "once in each epoch, and all know"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # torch's SIGCHLD handler, in a `__del__`
def test_a_sample_that_kills_workers_is_left_out_and_the_peers_live() -> None:
    swarm = Lockstep("a", "b")
    loaders = swarm.loaders(Deadly(), global_batch=4, options={"num_workers": 1, "collate_fn": list})
    used = Counter(indices(swarm.train(loaders)))
    assert used == dict.fromkeys((index for index in range(20) if index != 13), 1)


class Torn:
    """A batch whose transfer from the worker fails the first time, as if the worker died in the middle."""

    ends: Iterator[Exception]

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = samples

    def __reduce__(self) -> tuple[Callable[[list[Sample]], list[Sample]], tuple[list[Sample]]]:
        return arrive, (self.samples,)


def arrive(samples: list[Sample]) -> list[Sample]:
    if (end := next(Torn.ends, None)) is not None:
        raise end
    return samples


@pytest.mark.parametrize("end", [ConnectionResetError(104, "Connection reset by peer"), EOFError()])
def test_no_sample_is_blamed_for_a_batch_that_was_lost_with_its_worker(
    end: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    Torn.ends = iter([end])
    swarm = Lockstep("a")
    loaders = swarm.loaders(Squares(), global_batch=4, options={"num_workers": 1, "collate_fn": Torn})
    assert Counter(indices(swarm.train(loaders))) == dict.fromkeys(range(20), 1)
    assert next(Torn.ends, None) is None and caplog.text == ""


class Full(type(multiprocessing.get_context("fork"))):  # type: ignore[misc]
    """A host on which only a limited number of further processes can be started."""

    left = 0

    def Process(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return super().Process(*arguments, **options)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_no_sample_is_blamed_where_no_worker_can_be_started(left: int, caplog: pytest.LogCaptureFixture) -> None:
    context = Full()
    context.left = left
    swarm = Lockstep("a")
    options = {"num_workers": 1, "collate_fn": list, "multiprocessing_context": context}
    loaders = swarm.loaders(Deadly(), global_batch=4, shuffle=False, options=options)
    try:
        swarm.train(loaders)
    except ShoalError as error:
        said = str(error)
    assert said.startswith("could not start the 1 workers of this loader (BlockingIOError: [Errno 11]")
    assert not caplog.text


class Unknown(Squares):
    """A dataset that workers cannot unpickle."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return is_unknown, ()


def is_unknown() -> None:
    raise AttributeError("Can't get attribute 'Unknown' on <module '__mp_main__'>")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as above
def test_no_sample_is_blamed_where_workers_cannot_import_what_they_need(caplog: pytest.LogCaptureFixture) -> None:
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    with pytest.raises(ShoalError, match=r"start method spawn .* `if __name__ == '__main__':`"):
        next(iter(Lockstep("a").loader("a", Unknown(), global_batch=4, options=options)))
    assert not caplog.text


def test_a_sample_that_nobody_can_load_ends_the_run_on_all_peers_if_the_script_says_so() -> None:
    swarm = Lockstep("a", "b")
    loaders = swarm.loaders(Broken(), global_batch=8, on_poison="raise", options=LISTS)
    with pytest.raises(ShoalError, match="sample 13 is left out of epoch 0: no peer could load it"):
        swarm.train(loaders)


def test_a_batch_that_no_single_sample_spoils_raises() -> None:
    def collate(samples: list[int]) -> None:
        raise ZeroDivisionError(f"collate {len(samples)}")

    swarm = Lockstep("a")
    with pytest.raises(ZeroDivisionError, match="collate 8"):
        next(iter(swarm.loader("a", range(20), global_batch=8, options={"collate_fn": collate})))


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("dataset", "settings", "error", "why"),
    [
        (Endless(), {}, DatasetRefused, "map-style"),
        (iter([1]), {}, DatasetRefused, "map-style"),
        (DataLoader(Squares()), {}, DatasetRefused, "pass the DataLoader's dataset"),
        ((torch.zeros(8), torch.zeros(8)), {}, DatasetRefused, r"TensorDataset\(\*arrays\)"),
        ([], {}, ValueError, "list has no samples"),
        (range(8), {"global_batch": 0}, ValueError, "global_batch must be at least 1, is 0"),
        (range(8), {"batch_per_peer": 4}, TypeError, "needs one of global_batch=.* and batch_per_peer="),
        (range(8), {"global_batch": None, "batch_per_peer": 1}, ValueError, "batch_per_peer must be at least 2, is 1"),
        (range(8), {"global_batch": None, "batch_per_peer": 2, "drop_last": True}, ValueError, "drop_last needs glob"),
        (range(8), {"epochs": 0}, ValueError, "epochs must be at least 1, is 0"),
        (range(8), {"seed": -1}, ValueError, "seed must be at least 0, is -1"),
        (range(8), {"global_batch": 4.0}, TypeError, "global_batch must be a whole number, is 4.0"),
        (range(8), {"epochs": "3"}, TypeError, "epochs must be a whole number, is '3'"),
        (range(8), {"max_local_batch": 1.5}, TypeError, "max_local_batch must be a whole number, is 1.5"),
        (range(8), {"max_attempts": -1}, ValueError, "max_attempts must be at least 0, is -1"),
        (range(8), {"on_poison": "stop"}, ValueError, "on_poison must be skip or raise, is 'stop'"),
        (range(8), {"max_local_batch": 0}, ValueError, "max_local_batch must be at least 1, is 0"),
        (range(8), {"drop_last": True, "global_batch": 9}, ValueError, "8 samples, fewer than global_batch, 9"),
        (range(8), {"options": {"batch_size": 4}}, TypeError, "global_batch sets the samples"),
        (range(8), {"options": {"sampler": range(8)}}, TypeError, "the receipts decide"),
        (range(8), {"options": {"generator": torch.Generator()}}, TypeError, "seed= sets the order"),
        (range(8), {"options": {"workers": 4}}, TypeError, "workers"),
    ],
)
def test_what_cannot_be_loaded_is_refused(dataset: Any, settings: dict[str, Any], error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        given = {"global_batch": 4, **settings}
        Lockstep("a").loader("a", dataset, **{name: value for name, value in given.items() if value is not None})


def test_settings_and_data_that_differ_are_told_apart_before_anything_is_summed() -> None:
    data = torch.arange(20.0)
    settings: dict[str, Any] = {"global_batch": 4}
    others = [
        (data, {"global_batch": 5}),
        (data, {"global_batch": 4, "epochs": 2}),
        (data, {"global_batch": 4, "seed": 1}),
        (data, {"global_batch": 4, "shuffle": False}),
        (data, {"global_batch": 4, "drop_last": True}),
        (data[:19], settings),
        (data + 1, settings),
        (data.double(), settings),
        (TensorDataset(data), settings),
        (data.tolist(), settings),
        (Subset(data, range(20)), settings),  # type: ignore[arg-type]
        (Subset(data, range(19, -1, -1)), settings),  # type: ignore[arg-type]
        (Squares(20), settings),
    ]
    described = []
    for dataset, each in [(data, settings), *others]:
        swarm = Lockstep("a")
        batches = iter(swarm.loader("a", dataset, **each))
        next(batches)
        described.append(swarm.shares["a"].operation().describe())
    swarm = Lockstep("a")
    swarm.loader("a", data, **settings, seed=1)
    next(iter(swarm.loader("a", data, **settings)))
    described.append(swarm.shares["a"].operation().describe())  # receipts name a loader by its number
    assert len(set(described)) == len(described), described
    assert described[0].startswith("a training step on 20 samples (Tensor ")
    assert "global_batch=4" in described[0] and "epochs=1, seed=0, shuffle=True, drop_last=False" in described[0]


# Evaluation


def evaluate(swarm: Lockstep, name: str, loader: Loader, dies_after: int | None) -> list[int]:
    """The samples that one member evaluates, until it dies after `dies_after` batches."""
    used: list[int] = []
    for number, batch in enumerate(loader.evaluate()):
        if number == dies_after:
            swarm.meeting.die(name)
            return used
        used += batch
    return used


@pytest.mark.parametrize("dies_after", [None, 0, 1])
def test_an_evaluation_has_each_sample_at_one_of_the_members_who_are_left(dies_after: int | None) -> None:
    swarm = Lockstep("a", "b", "c")
    loaders = swarm.loaders(range(31), global_batch=9, options=LISTS)
    with ThreadPoolExecutor(3) as pool:
        parts = [
            pool.submit(evaluate, swarm, name, loader, dies_after if name == "b" else None)
            for name, loader in loaders.items()
        ]
        a, b, c = (part.result() for part in parts)
    assert len(b) == {None: 10, 0: 0, 1: 3}[dies_after]
    assert sorted(a + c if dies_after is not None else a + b + c) == list(range(31))
    assert all(loader.epoch == 0 for loader in loaders.values()), "nothing is used up"


def test_an_observer_evaluates_two_samples_that_do_not_count() -> None:
    swarm = Lockstep("a")
    joiner = swarm.loader("a", range(8), global_batch=8, options=LISTS)
    swarm.shares["a"].contributors = ("somebody",)
    batches = joiner.evaluate()
    assert next(batches) == [0, 1] and swarm.shares["a"].only_looks_on
    for _ in joiner:
        assert not swarm.shares["a"].only_looks_on
        break
