import pytest

from p2p.data.sample_tracker import SampleTracker
from p2p.data.sampler import Order, Sampler, SamplerState, Slice
from p2p.data.timed import TimedSampler
from p2p.data.track import Track
from p2p.errors import JoinRefused, RemoteProtocolError, ShoalError
from p2p.step.receipts import NO_SAMPLES, UNKNOWN_SAMPLE, Counts
from tests.p2p.data.swarm import Lockstep, receipt

SAMPLER = Sampler(12, 6)


def founded(*names: str) -> SampleTracker:
    share = SampleTracker()
    share.apply_receipt(receipt(0, [(name, NO_SAMPLES) for name in names]))
    return share


def test_a_script_of_its_own_adds_its_number_in_each_pass() -> None:
    share = SampleTracker()
    assert share.counts == (UNKNOWN_SAMPLE, 1, 1)
    share.set_number(3)
    share.accumulate()
    share.set_number(4)
    share.accumulate()
    assert share.counts == (UNKNOWN_SAMPLE, 11, 11)
    share.spend()
    assert share.counts == (UNKNOWN_SAMPLE, 4, 4)
    with pytest.raises(ValueError, match=r"at least 0 and at most .*, is -1"):
        share.set_number(-1)


def test_what_is_void_counts_for_nothing_until_the_step_is_committed() -> None:
    share = SampleTracker()
    share.set_number(3)
    share.void()
    assert share.counts == NO_SAMPLES
    share.spend()
    assert share.counts == (UNKNOWN_SAMPLE, 3, 3)


def test_a_batch_of_a_loader_is_counted_once_and_may_have_another_weight() -> None:
    share = founded("a", "b")
    track = share.make(SAMPLER, "twelve")
    share.begin_loader_batch(track, Slice(3, 3))
    assert share.counts == (3, 3, 3)
    share.set_number(50)
    assert share.counts == (3, 3, 50)
    share.spend()
    share.end_iteration(track)
    assert share.counts == (UNKNOWN_SAMPLE, 50, 50)


def test_a_batch_may_have_several_updates_which_weigh_the_same_and_count_once() -> None:
    share = founded("a", "b")
    track = share.make(SAMPLER, "twelve")
    share.begin_loader_batch(track, Slice(0, 3))
    labels = [share.collective.label]
    for counts in [(0, 3, 3), (UNKNOWN_SAMPLE, 0, 3), (UNKNOWN_SAMPLE, 0, 3)]:
        assert share.counts == counts
        told = share.apply_receipt(receipt(len(labels), [("a", counts), ("b", (*counts[:2], 3))]))
        assert told.num_samples == 2 * counts[1]
        share.spend()
        assert share.is_amid_batch
        labels.append(share.collective.label)
    assert labels == [
        "twelve, of loader 0, from 0 on",
        *(f"twelve, of loader 0, update {number} of the batch before 3" for number in (2, 3, 4)),
    ], "who has another number of updates calls something else"
    share.begin_loader_batch(track, None)
    assert share.counts == NO_SAMPLES and not share.is_amid_batch
    share.spend()
    share.set_number(5)
    assert share.counts == NO_SAMPLES, "who had no slice of the batch has no part in a further update of it"
    share.load(share.pack())
    assert not share.is_amid_batch, "who is given a state begins with a batch"


def test_a_batch_in_parts_has_one_update() -> None:
    share = founded("a")
    track = share.make(SAMPLER, "twelve", is_cut=True)
    batch(share, track, 0, 6)
    share.spend()
    with pytest.raises(ShoalError, match=r"already counted.*max_local_batch.*no_sync"):
        _ = share.counts


def test_a_receipt_names_positions_of_the_stream_and_what_is_not_on_it_comes_back() -> None:
    share = founded("a", "b", "c")
    track = share.make(SAMPLER, "twelve")
    share.begin_loader_batch(track, Slice(0, 2))
    counted = share.apply_receipt(receipt(1, [("a", (0, 2, 2)), ("c", (4, 2, 2))]))
    assert [each.samples for each in counted.contributions] == [((0, 2),), ((4, 2),)] and counted.loader == 0
    assert track.state == SamplerState(6, ((2, 2),), 1) and share.contributors == ("a", "c")
    assert counted.returned == ((2, 2),), "b is dead"
    counted = share.apply_receipt(receipt(2, [("a", (0, 3, 3)), ("c", (3, 3, 3))]))
    assert [each.samples for each in counted.contributions] == [((2, 2), (6, 1)), ((7, 3),)]
    assert counted.returned == ()


def test_a_receipt_of_a_round_by_time_names_what_members_had_no_time_for() -> None:
    share = founded("a", "b", "c")
    track = share.make(TimedSampler(3000, 12), "many")
    track.round_s = 1.0
    slices = share.plan(track).slices
    share.begin_loader_batch(track, slices["a"])
    counted = share.apply_receipt(receipt(1, [("a", (0, 4, 4)), ("c", (*slices["c"], 1))]))
    assert counted.unused == ((4, slices["a"].length - 4),), "b is dead: nobody knows what it has computed"


def test_a_step_without_samples_uses_nothing_up() -> None:
    share = founded("a", "b")
    track = share.make(SAMPLER, "twelve")
    share.begin_loader_batch(track, Slice(0, 3))
    told = receipt(1, [("a", (UNKNOWN_SAMPLE, 1, 1)), ("d", (UNKNOWN_SAMPLE, 1, 1))])
    assert share.apply_receipt(told) == told and track.state == SamplerState() and share.contributors == ("a", "d")


@pytest.mark.parametrize("sampler", [SAMPLER, Sampler(12, batch_per_peer=2), TimedSampler(12, 6)])
def test_members_that_go_and_come_between_a_batch_and_its_step_change_nothing_of_who_trains_on_what(
    sampler: Sampler,
) -> None:
    shares = {name: founded("a", "b", "c") for name in "abc"} | {"d": SampleTracker()}
    tracks = {name: share.make(sampler, "twelve") for name, share in shares.items()}
    for name in "abc":
        shares[name].begin_loader_batch(tracks[name], shares[name].plan(tracks[name]).slices[name])
    for name in "ac":  # an operation of the script's own
        shares[name].apply_receipt(receipt(1, [("a", NO_SAMPLES), ("c", NO_SAMPLES)]), is_training=False)
    shares["d"].load(shares["a"].pack())
    shares["d"].begin_loader_batch(tracks["d"], shares["d"].plan(tracks["d"]).slices.get("d"))
    step = receipt(2, [(name, shares[name].counts) for name in "acd"])
    first, *others = [shares[name].apply_receipt(step) for name in "acd"]
    assert others == [first, first] and shares["d"].counts == NO_SAMPLES
    size = first.contributions[0].num_samples
    assert [each.samples for each in first.contributions] == [((0, size),), ((2 * size, size),), ()]
    assert {repr(tracks[name].state) for name in "acd"} == {repr(tracks["a"].state)}
    assert tracks["a"].state.returned == ((size, size),) and "d" in shares["d"].plan(tracks["d"]).slices


def test_a_second_loader_of_the_same_arguments_does_not_begin_anew_without_a_word() -> None:
    share = founded("a")
    share.make(SAMPLER, "twelve")
    with pytest.raises(ShoalError, match=r"arguments already exists \(twelve\).*before the loop over epochs"):
        share.make(SAMPLER, "twelve")
    share.make(Sampler(12, 6, seed=1), "twelve, seed=1")


def test_a_joiner_goes_on_where_the_swarm_is_with_each_loader() -> None:
    share, joiner = founded("a"), SampleTracker()
    track, _ = share.make(SAMPLER, "first"), share.make(SAMPLER, "second")
    share.begin_loader_batch(track, Slice(0, 6))
    share.apply_receipt(receipt(1, [("a", (2, 2, 2))]))
    made = joiner.make(SAMPLER, "first")
    joiner.load(share.pack())
    assert made.state == SamplerState(4, ((0, 2),), 1)
    assert joiner.make(SAMPLER, "second").state == SamplerState() and joiner.contributors == ("a",)
    assert joiner.num_loads == 1 and joiner.pack() == share.pack()


def test_who_is_given_a_state_at_the_end_of_an_epoch_calls_what_the_members_call() -> None:
    sampler = Sampler(14, 6, epochs=2, drop_last=True)
    member, before, after = founded("a"), SampleTracker(), SampleTracker()
    track = member.make(sampler, "fourteen")
    for start in (0, 6):
        member.begin_loader_batch(track, member.plan(track).slices["a"])
        member.apply_receipt(receipt(start // 6 + 1, [("a", member.counts)]))
        member.spend()
    packed = member.pack()
    member.begin_loader_batch(track, member.plan(track).slices["a"])
    joined = before.make(sampler, "fourteen")
    before.begin_loader_batch(joined, None)
    before.load(packed)
    after.load(packed)
    after.begin_loader_batch(after.make(sampler, "fourteen"), None)
    assert before.collective == after.collective == member.collective
    assert member.collective.label == "fourteen, of loader 0, from 14 on"


def test_a_joiner_with_other_data_is_refused_with_both_values() -> None:
    share = founded("a")
    share.make(SAMPLER, "twelve samples")
    before, after = SampleTracker(), SampleTracker()
    before.make(SAMPLER, "nine samples")
    with pytest.raises(JoinRefused, match="nine samples here, twelve samples there"):
        before.load(share.pack())
    after.load(share.pack())
    with pytest.raises(JoinRefused, match="nine samples here, twelve samples there"):
        after.make(SAMPLER, "nine samples")


@pytest.mark.parametrize(
    "wrong",
    [None, [], [["a"]], [["a"], 0, [["x", "y", [], 0]]], [["a"], 0, [["x", 0, [1], 0]]], [1, 0, []], [[], "y", []]],
)
def test_what_is_no_state_is_refused(wrong: object) -> None:
    with pytest.raises(RemoteProtocolError, match="used samples cannot be read"):
        SampleTracker().load(wrong)


# Weights from the script


def batch(share: SampleTracker, track: Track, start: int, number: int) -> None:
    share.begin_loader_batch(track, Slice(start, number))
    share.begin_micro_batch(1.0, is_last=True)


def test_a_slice_weighs_what_the_script_says_and_its_samples_are_counted_as_before() -> None:
    share = founded("a", "b")
    track = share.make(SAMPLER, "twelve")
    batch(share, track, 0, 3)
    assert share.counts == (0, 3, 3)
    share.set_number(100)
    assert share.counts == (0, 3, 100)
    share.accumulate()  # under no_sync
    share.set_number(20)
    share.end()
    assert (
        share.counts == (0, 3, 120)
        and share.weight == 120
        and (share.parts.fraction, share.parts.is_last) == (1.0, True)
    )
    share.spend()
    batch(share, track, 6, 3)
    assert share.counts == (6, 3, 3), "the next one weighs its samples again"
    share.accumulate()
    with pytest.raises(ShoalError, match="call it before the first one"):
        share.set_number(7)


def test_micro_batches_are_averaged_by_the_weights_that_the_script_says() -> None:
    share = founded("a")
    share.begin_loader_batch(share.make(SAMPLER, "twelve"), Slice(0, 6))
    mean, weights = 0.0, [10, 0, 30]
    for turn, (value, weight) in enumerate(zip((1.0, 5.0, 2.0), weights, strict=True)):
        share.begin_micro_batch(1 / 3, is_last=turn == 2)
        share.set_number(weight)
        if share.parts.is_last:
            share.end()
        else:
            share.accumulate(is_joined=True)
        mean = mean * share.parts.keep + value * share.parts.fraction
    assert mean == pytest.approx((1.0 * 10 + 2.0 * 30) / 40) and share.counts == (0, 6, 40)


def test_who_has_no_slice_weighs_nothing_whatever_the_script_says() -> None:
    share = founded("a")
    share.begin_loader_batch(share.make(SAMPLER, "twelve"), None)
    share.set_number(50)
    assert share.counts == NO_SAMPLES


def test_samples_that_are_skipped_are_used_up() -> None:
    share = founded("a")
    track = share.make(SAMPLER, "twelve")
    batch(share, track, 0, 6)
    first, second = (Order(SAMPLER).indices(((start, 6),)) for start in (0, 6))
    assert share.indices == first
    share.skip()
    assert share.counts == (0, 6, 0)
    share.apply_receipt(receipt(1, [("a", share.counts)]))
    share.spend()
    batch(share, track, 0, 6)
    assert share.counts == (0, 6, 6) and track.state.position == 6
    assert share.indices == second
    share.void()
    assert share.indices == [], "they come back"


def test_a_batch_whose_loop_was_left_may_still_be_trained_on_once() -> None:
    share = founded("a")
    track = share.make(SAMPLER, "twelve")
    batch(share, track, 0, 6)
    share.end_iteration(track)
    assert share.counts == (0, 6, 6)
    share.spend()
    share.set_number(4)
    assert share.counts == (UNKNOWN_SAMPLE, 4, 4), "what comes now is the script's own"
    share.skip()
    assert share.counts == NO_SAMPLES


@pytest.mark.parametrize("is_trained_after", [True, False])
def test_a_loop_left_between_two_micro_batches_has_a_step_of_those_handed_out_or_none(is_trained_after: bool) -> None:
    share, buckets = founded("a"), list[float]()
    track = share.make(SAMPLER, "twelve", is_cut=True)
    share.parts.drop = buckets.clear
    share.begin_loader_batch(track, Slice(0, 6))
    for turn, value in enumerate((1.0, 5.0)):
        share.begin_micro_batch(1 / 3, is_last=False, num_samples=2)
        if turn == 0 or not is_trained_after:
            share.accumulate(is_joined=True)
            buckets.append(value * share.parts.fraction)
    share.end_iteration(track)
    if is_trained_after:
        assert share.parts.is_last and share.counts == (0, 4, 4)
        assert buckets[0] * share.parts.keep + 5.0 * share.parts.fraction == pytest.approx((1.0 + 5.0) / 2)
        share.apply_receipt(receipt(1, [("a", share.counts)]))
        share.spend()
        assert buckets and share.plan(track).batch == ((4, 6),), "the others come next"
    else:
        assert not buckets and not share.is_of_loader and share.plan(track).batch == ((0, 6),)
    assert share.counts == (UNKNOWN_SAMPLE, 1, 1) and (share.parts.keep, share.parts.fraction) == (1.0, 1.0)


def test_another_batch_begins_without_the_gradients_of_one_whose_step_has_not_ended() -> None:
    share, buckets = founded("a"), [1.0]
    track = share.make(SAMPLER, "twelve", is_cut=True)
    share.parts.drop = buckets.clear
    share.begin_loader_batch(track, Slice(0, 6))
    share.begin_micro_batch(1 / 3, is_last=False, num_samples=2)
    share.accumulate(is_joined=True)
    share.begin_loader_batch(track, Slice(0, 6))  # by a loop within the loop
    assert not buckets and share.counts == (0, 6, 6)


OF_SEED_0, OF_SEED_1 = (
    f"12 samples (list 1a2b3c4d), global_batch=6, epochs=1, seed={seed}, shuffle=True, drop_last=False, max_attempts=2"
    for seed in (0, 1)
)


def trained() -> SampleTracker:
    """A share that has committed two steps of two members."""
    share = founded("a", "b")
    track = share.make(SAMPLER, OF_SEED_0)
    share.begin_loader_batch(track, Slice(0, 3))
    share.apply_receipt(receipt(1, [("a", (0, 3, 3)), ("b", (3, 1, 1))]))
    share.num_trained = 1
    return share


@pytest.mark.parametrize("is_made_first", [False, True])
def test_who_goes_on_from_a_checkpoint_may_train_longer_with_another_batch(is_made_first: bool) -> None:
    state = trained().state_dict()
    assert state["done"] == 1
    share, longer = (
        SampleTracker(),
        OF_SEED_0.replace("epochs=1", "epochs=9").replace("global_batch=6", "global_batch=4"),
    )
    sampler = Sampler(12, 4, epochs=9)
    if is_made_first:
        track = share.make(sampler, longer)
        share.load_state_dict(state)
    else:
        share.load_state_dict(state)
        track = share.make(sampler, longer)
    assert (track.description, share.num_trained, share.tracks.epochs) == (longer, 1, (0,))
    share.apply_receipt(receipt(0, [(name, NO_SAMPLES) for name in ("c", "d", "e")]))
    assert share.plan(track).batch == ((4, 4),) and set(share.plan(track).slices) < {"c", "d", "e"}
    joiner = SampleTracker()
    joiner.load(share.pack())
    with pytest.raises(JoinRefused, match="loader 0 of this script is not the swarm's"):
        joiner.make(SAMPLER, OF_SEED_0)


def test_founders_that_each_go_on_by_hand_may_all_train_longer() -> None:
    state, longer = trained().state_dict(), OF_SEED_0.replace("epochs=1", "epochs=9")
    first, second = SampleTracker(), SampleTracker()
    for share in (first, second):
        share.load_state_dict(state)
    second.load(first.pack())  # as when the model is wrapped before either has created its loader
    for share in (first, second):
        assert share.make(Sampler(12, 6, epochs=9), longer).description == longer


@pytest.mark.parametrize("is_made_first", [False, True])
def test_a_checkpoint_of_other_samples_or_another_order_is_refused_with_both(is_made_first: bool) -> None:
    share = SampleTracker()
    if is_made_first:
        share.make(SAMPLER, OF_SEED_1)
    else:
        share.load_state_dict(trained().state_dict())
    with pytest.raises(JoinRefused, match=r"another order of them: .*seed=1.* here, .*seed=0.* there"):
        if is_made_first:
            share.load_state_dict(trained().state_dict())
        else:
            share.make(SAMPLER, OF_SEED_1)


def test_done_alone_can_be_set() -> None:
    share = SampleTracker()
    share.load_state_dict({"done": 5000})
    assert share.state_dict() == {"done": 5000, "samples": 0, "loaders": [], "run": ""}


class Ends:
    length_s = None

    def is_time_over(self) -> bool:
        return False

    def end_if_open(self) -> None:
        raise AssertionError("nothing is open")


def test_a_step_before_rounds_takes_a_batch_of_its_own_and_what_comes_then_is_a_round() -> None:
    share = founded("a")
    share.rounds, share.dense_steps = Ends(), 2
    track = share.make(Sampler(48, 12), "forty-eight")
    track.dense = Sampler(48, 4)
    numbers, kinds = [], []
    for step in range(1, 6):
        plan = share.plan(track)
        share.begin_loader_batch(track, plan.slices["a"])
        share.begin_micro_batch(1.0, is_last=True, num_samples=plan.slices["a"].length)
        kinds.append((share.is_dense, share.in_rounds, share.is_round_open))
        told = share.apply_receipt(receipt(step, [("a", share.counts)]))
        share.num_trained += 1
        share.spend()
        numbers.append(told.num_samples)
    assert numbers == [4, 4, 12, 12, 12] and share.num_samples == 44
    assert kinds == [(True, False, False)] * 2 + [(False, True, True)] * 3


@pytest.mark.parametrize(
    ("used", "is_used_after", "counts"),
    [([True, True], False, (0, 4, 4)), ([True, False], False, (0, 2, 2)), ([True, False], True, (0, 4, 4))],
)
def test_a_round_whose_loop_was_left_counts_no_batch_that_had_no_update(
    used: list[bool], is_used_after: bool, counts: Counts
) -> None:
    share = founded("a")
    share.rounds = Ends()
    track = share.make(SAMPLER, "twelve")
    share.begin_loader_batch(track, Slice(0, 6))
    for each in used:
        share.begin_micro_batch(1 / 3, is_last=False, num_samples=2)
        share.parts.is_used = each
    assert share.counts == (0, 4, 4), "it may leave one out"
    share.end_iteration(track)
    share.parts.is_used |= is_used_after
    assert share.counts == counts
    share.begin_loader_batch(track, Slice(0, 6))
    share.begin_micro_batch(1 / 3, is_last=False, num_samples=2)
    share.end_iteration(track)
    assert share.counts == NO_SAMPLES
    share.begin_loader_batch(track, Slice(0, 6))
    for is_used in (True, False):
        share.begin_micro_batch(1 / 3, is_last=False, num_samples=2)
        share.parts.is_used = is_used
    share.pass_over(track)  # by `end_epoch`, within the loop
    assert share.counts == (0, 2, 2)


def test_a_second_update_of_a_batch_before_rounds_counts_its_samples_once() -> None:
    share = founded("a")
    share.rounds, share.dense_steps = object(), 3  # type: ignore[assignment]
    track = share.make(SAMPLER, "twelve")
    share.begin_loader_batch(track, Slice(0, 6))
    assert share.counts == (0, 6, 6)
    share.num_trained += 1
    share.spend()
    assert share.counts == (UNKNOWN_SAMPLE, 0, 6)


def test_a_batch_is_cut_that_has_fewer_updates_than_others_had() -> None:
    share = founded("a", "b")
    track = share.make(SAMPLER, "twelve")
    share.begin_loader_batch(track, Slice(0, 3))
    share.spend()
    assert share.is_amid_batch and not share.is_batch_cut, "the first one may have no more"
    share.spend()
    share.begin_loader_batch(track, Slice(6, 3))
    assert not share.is_batch_cut, "it has none"
    share.spend()
    assert share.is_batch_cut
    share.spend()
    assert share.is_amid_batch and not share.is_batch_cut


def test_no_batch_is_under_way_behind_a_step_that_was_taken_back() -> None:
    share = founded("a", "b")
    share.begin_loader_batch(share.make(SAMPLER, "twelve"), Slice(0, 3))
    share.spend()
    share.end()
    share.give_up_step()
    assert not share.is_amid_batch


def test_a_batch_counts_in_no_step_behind_those_that_its_peer_has_missed() -> None:
    share = founded("a", "b")
    share.give_up_batch()
    assert share.counts == (UNKNOWN_SAMPLE, 1, 1), "of no loader"
    track = share.make(SAMPLER, "twelve")
    share.begin_loader_batch(track, Slice(0, 3))
    share.give_up_batch()
    assert track.is_spent and share.counts == NO_SAMPLES
    share.spend()
    share.begin_loader_batch(track, Slice(6, 3))
    share.spend()
    share.give_up_batch()
    assert not share.is_amid_batch and share.counts == NO_SAMPLES


def test_a_loader_of_fewer_epochs_than_a_checkpoint_has_is_over(caplog: pytest.LogCaptureFixture) -> None:
    first, again = Lockstep("a"), Lockstep("a")
    loaders = first.loaders([*range(6)], global_batch=2, epochs=3)
    for _ in loaders["a"].epochs():
        first.train(loaders)
    again.shares["a"].load_state_dict(first.shares["a"].state_dict())
    loader = again.loader("a", [*range(6)], global_batch=2, epochs=2)
    assert (loader.epoch, [*loader.epochs()], [*loader]) == (3, [], [])
    assert caplog.text.count("all 2 epochs of this loader are over, so this loop is empty") == 1
