"""Collectives as data, operations in words and in one view, and submissions of scripts."""

from dataclasses import replace

import numpy as np
import pytest

from collectives import ALGORITHMS, BFLOAT16, Kind, Medium, Reduction
from collectives.hierarchical import hierarchical_all_reduce
from gossip.progress import NOT_CALLED
from gossip.view import NOWHERE
from p2p.step.agreed_rows import AgreedRows
from p2p.step.collective import AllGather, AllReduce, Barrier, Collective, GenericCollective
from p2p.step.operation import PART_BYTES, WHOLE_BYTES, Operation, parts_of, task_of
from p2p.step.receipts import NUM_COLUMNS
from p2p.step.run import Run
from p2p.step.runner import MessageRunner
from tests.gossip.members import A, B, C, view_of
from tests.p2p.step.group import SEGMENT_BYTES, all_reduce, counts, gather, moved, other_calls, submission_of, weighted

VIEW = view_of(1, A, B)

# Collectives


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        (AllReduce(), "all_reduce sum"),
        (AllReduce("max"), "all_reduce max"),
        (AllReduce("mean", is_weighted=True), "all_reduce weighted mean"),
        (Barrier(), "barrier"),
        (AllGather(), "all_gather"),
        (AllGather(is_counts=True), "a training step"),
        (AllGather(is_counts=True, label="60 samples"), "a training step on 60 samples"),
        (AllGather(label="means of loss"), "means of loss"),
        (GenericCollective("broadcast", root="ab"), "broadcast from peer ab"),
        (GenericCollective("reduce-scatter", "max"), "reduce_scatter max"),
        (GenericCollective("reduce", "mean", "ab"), "reduce mean to peer ab"),
        (GenericCollective("scatter", root="ab"), "scatter from peer ab"),
        (GenericCollective("all-to-all"), "all_to_all"),
    ],
)
def test_a_collective_has_a_name(collective: Collective, name: str) -> None:
    assert collective.name == name


def test_only_a_mean_is_weighted() -> None:
    with pytest.raises(AssertionError, match="a weighted sum"):
        AllReduce("sum", is_weighted=True)


def test_the_algorithm_is_the_one_that_was_asked_for_or_follows_from_size_and_members() -> None:
    assert {AllReduce().choose(name, 8, 4) for name in ALGORITHMS} == {*ALGORITHMS}
    assert AllReduce().choose(None, 8, 4) in ALGORITHMS
    assert {AllReduce().choose(None, size, 4) for size in (8, 1 << 26)} != {AllReduce().choose(None, 8, 4)}
    assert (AllGather().choose(None, 8, 4), AllGather().choose("ring", 8, 4)) == ("one-shot", "ring")
    assert GenericCollective("reduce-scatter").choose(None, 8, 4) == "direct"
    broadcast = GenericCollective("broadcast", root="a")
    assert [broadcast.choose(None, size, 5) for size in (1 << 16, 1 << 17)] == ["one-shot", "ring"]
    assert [broadcast.choose(None, size, 5, Medium.WAN) for size in (1 << 19, 1 << 20)] == ["one-shot", "ring"]


def test_over_slow_links_a_large_sum_takes_the_ring_and_says_so() -> None:
    for links, algorithm in ((Medium.MEMORY, "direct"), (Medium.LAN, "direct"), (Medium.WAN, "ring")):
        operation = all_reduce(np.zeros(1 << 20))
        task_of(operation, bytes(16), 0, (0, 0), None, 0, medium=links)
        assert operation.ran == algorithm


def test_what_ranks_of_one_host_do_among_themselves_follows_from_the_seats_of_the_view() -> None:
    """Ranks 0 and 2 share a host."""
    operation = all_reduce(np.zeros(8), "hierarchical")
    view = view_of(2, A, B, C)
    seats = [replace(seat, contact=replace(NOWHERE, host=host)) for seat, host in zip(view.seats, "xyx", strict=True)]
    run = Run(MessageRunner(SEGMENT_BYTES), replace(view, seats=tuple(seats)), A, AgreedRows(A))
    submission = submission_of(0, 0)
    submission.add(operation, SEGMENT_BYTES)
    assert run.start(submission)
    expected = hierarchical_all_reduce(0, 3, (0, 1, 0))
    sent = [(each.peer, each.chunk) for each in expected.transfers if each.kind is Kind.SEND and not each.after]
    assert [segment.peer for _, segment in run.runner.outgoing] == [peer for peer, _ in sent] != []
    assert task_of(operation, bytes(16), 0, (0, 1, 0), None, 0).schedule().transfers == expected.transfers


@pytest.mark.parametrize(("sends", "algorithm"), [(True, "ring"), (False, "direct")])
def test_what_a_sum_goes_over_is_part_of_the_rule(sends: bool, algorithm: str) -> None:
    runner, operation = MessageRunner(SEGMENT_BYTES), all_reduce(np.zeros(1 << 20))
    runner.sends = sends
    submission = submission_of()
    submission.add(operation, SEGMENT_BYTES)
    assert Run(runner, VIEW, A, AgreedRows(A), Medium.WAN).start(submission)
    assert operation.ran == algorithm


def test_what_is_multiplied_before_is_only_added() -> None:
    assert AllReduce("max").reduction(3, None) == Reduction("max", 3)
    assert AllReduce("mean", is_weighted=True).reduction(3, None) == Reduction("mean", 3)
    assert AllReduce("mean", is_weighted=True).reduction(3, 0.5) == Reduction("sum", 3)
    assert AllGather().reduction(3, None) == Reduction("sum", 3)


# Operations


def test_what_is_called_is_said_in_words() -> None:
    values = np.zeros(6, BFLOAT16)
    operation = Operation(AllReduce("max"), values, values.copy(), (2, 3))
    assert operation.describe() == "all_reduce max of bfloat16 [2, 3] by size"
    assert weighted(np.zeros(2)).describe() == "all_reduce weighted mean of float64 [2] by size"
    assert counts(1).describe() == "a training step"
    early = all_reduce(values, early=True)
    assert early.describe() == f"{all_reduce(values).describe()}, uncommitted"


def test_whatever_must_match_is_in_the_fingerprint() -> None:
    mine = all_reduce(np.arange(10))
    others = (*other_calls("ring"), moved("broadcast", np.arange(10), root="b"))
    fingerprints = [each.fingerprint(SEGMENT_BYTES, 0, 0) for each in (mine, *others)]
    fingerprints += [mine.fingerprint(*where) for where in ((SEGMENT_BYTES + 8, 0, 0), (SEGMENT_BYTES, 1, 0))]
    fingerprints += [mine.fingerprint(SEGMENT_BYTES, 0, 1)]
    assert len({*fingerprints}) == len(fingerprints)
    assert {len(each) for each in fingerprints} == {16}
    assert all_reduce(np.arange(10)[::-1].copy()).fingerprint(SEGMENT_BYTES, 0, 0) == fingerprints[0]


def test_a_result_that_others_may_have_in_use_is_written_anew_in_each_view_and_no_other() -> None:
    for operation in (gather(np.arange(3)), all_reduce(np.arange(3), early=True)):
        before = operation.result
        task = task_of(operation, bytes(16), 0, (0, 0), None, 0)
        assert task.result is operation.result is not before
    operation = all_reduce(np.arange(3))
    before = operation.result
    assert task_of(operation, bytes(16), 0, (0, 0), None, 0).result is before


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("numbers", "weight"), [([3, 3], None), ([1, 3], 0.25), ([0, 3], 0.0), ([0, 0], 0.0), ([2], None)]
)
def test_an_input_is_multiplied_by_its_share_unless_all_have_the_same_and_are_added_in_one_go(
    algorithm: str, numbers: list[int], weight: float | None
) -> None:
    table = np.array([[-1, 1, number] for number in numbers], np.int64)
    task = task_of(weighted(np.ones(4), algorithm), bytes(16), 0, (0,) * len(numbers), table, 0)
    expected = numbers[0] / sum(numbers) if weight is None and algorithm not in ("one-shot", "direct") else weight
    assert task.weight == expected
    assert task.reduction.op == ("mean" if expected is None else "sum")


def test_results_of_others_take_the_place_of_those_here() -> None:
    operations = [all_reduce(np.zeros(2)), all_reduce(np.zeros(0)), counts(3)]
    gathered = np.arange(2 * NUM_COLUMNS, dtype=np.int64)
    for operation, result in zip(operations, (np.ones(2), np.zeros(0), gathered), strict=True):
        operation.adopt(result.tobytes(), ["a", "b"])
    assert operations[0].result.tolist() == [1, 1]
    assert operations[2].result.tolist() == gathered.tolist()
    assert {(each.rank, each.num_ranks) for each in operations} == {(None, 2)}


def test_of_what_members_have_in_parts_or_of_a_root_that_was_gone_nothing_is_taken_over() -> None:
    share, lost = moved("reduce-scatter", np.zeros(4)), moved("broadcast", np.zeros(4), root="c")
    for operation in (share, lost):
        operation.adopt(b"", ["a", "b"])
        with pytest.raises(ValueError, match="has 32 bytes, not 0"):
            operation.adopt(bytes(32), ["a", "b"])
    assert (share.is_root_missing, lost.is_root_missing) == (False, True)
    with pytest.raises(ValueError, match="has 0 bytes, not 32"):
        lost.adopt(b"", ["a", "c"])


def test_a_result_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a result of all_reduce sum of float64 .4. by size has 31 bytes"):
        all_reduce(np.zeros(4)).adopt(bytes(31), ["a"])


# Submissions


def test_an_operation_is_found_by_its_index_also_behind_the_end() -> None:
    submission, mine = submission_of(5, attempt=0), all_reduce(np.arange(3))
    assert submission.called(0, VIEW) is None
    submission.add(mine, SEGMENT_BYTES)
    assert (submission.called(0, VIEW), submission.called(1, VIEW)) == (mine.describe(), None)
    submission.state_digest = b""
    assert submission.called(1, VIEW) == NOT_CALLED


def test_a_step_that_is_renumbered_is_another_one_which_counts_no_samples() -> None:
    submission, called, gathered = submission_of(5, attempt=0), all_reduce(np.arange(3)), counts(4, first=20)
    for operation in (gathered, called):
        submission.add(operation, SEGMENT_BYTES)
    before = list(submission.fingerprints)
    submission.renumber(9, b"digest", SEGMENT_BYTES)
    assert (submission.step, submission.state_digest, submission.operations) == (9, b"digest", [gathered, called])
    assert gathered.input.tolist() == [-1, 0, 0, 0, 0, 0] and called.input.tolist() == [0, 1, 2]
    assert submission.fingerprints == [
        each.fingerprint(SEGMENT_BYTES, i, 9) for i, each in enumerate((gathered, called))
    ]
    assert submission.fingerprints != before


def test_the_counts_are_no_operation_of_the_receipt() -> None:
    submission = submission_of(5, attempt=0)
    for operation, ran in ((counts(1), "one-shot"), (all_reduce(np.ones(1)), "ring"), (gather(np.ones(1)), "one-shot")):
        operation.ran = ran
        submission.add(operation, SEGMENT_BYTES)
    assert submission.algorithms == ("ring", "one-shot")


# Parts


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_a_long_tensor_is_cut_by_its_size_alone(itemsize: int) -> None:
    per_part = PART_BYTES // itemsize
    assert parts_of(0, itemsize) == [slice(0, 0)]
    assert parts_of(WHOLE_BYTES, itemsize) == [slice(0, WHOLE_BYTES // itemsize)]
    longer = WHOLE_BYTES + itemsize
    assert parts_of(longer, itemsize) == [
        slice(0, per_part),
        slice(per_part, 2 * per_part),
        slice(2 * per_part, 2 * per_part + 1),
    ]


def test_parts_of_other_tensors_are_other_operations() -> None:
    made = [
        Operation(AllReduce(), np.zeros(4), np.zeros(4), shape, part=part)
        for shape, part in [((2, 6), ", part 1 of 3"), ((6, 2), ", part 1 of 3"), ((2, 6), ", part 2 of 3"), ((4,), "")]
    ]
    assert len({each.fingerprint(SEGMENT_BYTES, 0, 0) for each in made}) == 4
    assert made[0].describe() == "all_reduce sum of float64 [2, 6] by size, part 1 of 3"
