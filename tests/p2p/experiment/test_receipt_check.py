from dataclasses import replace

from p2p.experiment.evaluation.receipt_check import ReceiptCheck, check
from p2p.step.receipts import Receipt
from p2p.telemetry.records import Kind
from tests.p2p.experiment.runs import A, B, killed, receipt, record, run


def of(*receipts: Receipt) -> ReceiptCheck:
    return check(run({A: receipts}, {}))


def test_what_a_killed_peer_was_to_add_comes_back_and_counts_once() -> None:
    chain = check(killed())
    assert (chain.num_steps, chain.lost, chain.unequal, chain.twice, chain.missing) == (4, (), (), 0, 0)
    assert chain.recounted["1" * 32, 3] == 10
    assert chain.goodput == round(100 / 110, 6)


def test_what_the_member_of_the_highest_rank_was_to_add_is_recounted_too_each_time_that_it_is_lost() -> None:
    both, alone = receipt(1, [A, B], [(0, 10), (10, 10)]), receipt(2, [A], [(20, 10)], view=2)
    last = [replace(alone, returned=((30, 10),)), receipt(3, [A], [(30, 20)], view=2)]
    chain = of(both, *last)
    assert (chain.recounted["1" * 32, 2], chain.goodput) == (10, round(50 / 60, 6))
    assert (chain.missing, chain.twice) == (0, 0)
    assert of(both, last[0]).missing == 10, "nobody has added them since"
    again = [replace(receipt(3, [A], [(40, 10)], view=2), returned=((30, 10),)), receipt(4, [A], [(30, 10)], view=2)]
    chain = of(both, last[0], *again)
    assert (sum(chain.recounted.values()), chain.missing) == (20, 0)


def test_a_hole_is_a_lost_step() -> None:
    assert of(receipt(1, [A]), receipt(3, [A])).lost == (("1" * 32, 2),)


def test_a_step_is_lost_that_a_peer_it_counts_has_no_receipt_of_although_it_went_on() -> None:
    steps = [receipt(step, [A, B]) for step in (1, 2, 3)]
    assert check(run({A: steps, B: [steps[0], steps[2]]}, {})).lost == (("1" * 32, 2),)
    assert check(run({A: steps, B: steps[:2]}, {})).lost == ()  # it was killed then


def test_a_peer_that_was_out_meanwhile_lacks_nothing() -> None:
    without, back = receipt(2, [A], view=2), receipt(3, [A, B], view=3)
    entries = [replace(each, incarnation=2 if each.peer_id == B else 1) for each in back.contributions]
    again = replace(back, contributions=tuple(entries))
    first = receipt(1, [A, B])
    assert check(run({A: [first, without, again], B: [first, again]}, {})).lost == ()


def test_a_sample_that_counts_twice_is_found() -> None:
    chain = of(receipt(1, [A], [(0, 10)]), receipt(2, [A], [(8, 10)]))
    assert chain.twice == 2


def test_a_sample_that_never_counts_is_found() -> None:
    chain = of(receipt(1, [A], [(0, 10)]), receipt(2, [A], [(12, 10)]))
    assert (chain.missing, chain.twice) == (2, 0)


def test_what_members_had_no_time_for_is_neither_computed_nor_missing_and_what_the_dead_had_is() -> None:
    by_time = [
        replace(receipt(1, [A, B], [(0, 8), (10, 8)]), unused=((8, 2), (18, 2))),
        replace(receipt(2, [A, B], [(8, 2), (18, 4)]), unused=((22, 3),)),
    ]
    chain = of(*by_time)
    assert (chain.goodput, chain.missing, sum(chain.recounted.values())) == (1, 0, 0)
    died = [receipt(3, [A], [(22, 3)], view=2), replace(receipt(4, [A], [(35, 5)], view=2), unused=((40, 5),))]
    chain = of(*by_time, *died)  # B had 25 to 35
    assert (chain.missing, chain.recounted["1" * 32, 4], chain.goodput) == (10, 10, round(30 / 40, 6))


def test_receipts_that_differ_are_found() -> None:
    theirs = [receipt(1, [A, B]), receipt(2, [A, B], view=2)]
    assert check(run({A: [receipt(1, [A, B]), receipt(2, [A, B])], B: theirs}, {})).unequal == (2,)


def test_steps_after_the_checkpoint_are_lost_and_their_samples_count_once() -> None:
    first = [receipt(step, [A], [(10 * (step - 1), 10)]) for step in (1, 2, 3)]
    second = [receipt(step, [B], [(10 * step, 10)], lineage="2") for step in (1, 2)]
    found = run({A: first, B: second}, {A: [record(1, Kind.ASKED)], B: [record(100, Kind.ASKED)]})
    chain = check(found)
    assert chain.lost == (("1" * 32, 2), ("1" * 32, 3))
    assert (chain.num_steps, chain.twice, chain.missing, chain.num_samples, chain.num_samples_lost) == (3, 0, 0, 30, 20)


def test_without_a_loader_nothing_is_claimed_of_samples() -> None:
    chain = of(receipt(1, [A], [(-1, 0)]))
    assert not chain.has_positions
    assert chain.goodput is None
