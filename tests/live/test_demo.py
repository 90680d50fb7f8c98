"""The demo: its verdict on made-up receipts, and one short run with real processes."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo.verdict import Figures, Run, Verdict, judge, measure
from p2p.data.ranges import count, union
from p2p.data.sampler import Plan, Sampler, SamplerState, fold
from p2p.step.receipts import Contribution, Receipt
from p2p.telemetry.records import How, Kind, Record

ROOT = Path(__file__).parents[2]

NUM_SAMPLES = 48
VICTIM, JOINER = "c", "e"
KILLED_AFTER, ENTERED_AT = 2, 4
"""The victim's last committed step, and the joiner's first."""


def contributions(members: str, plan: Plan) -> tuple[Contribution, ...]:
    parts = {member: plan.positions(plan.slices[member]) if member in plan.slices else () for member in members}
    return tuple(Contribution(member, ord(member), part, count(part), count(part)) for member, part in parts.items())


def counting(contribution: Contribution, *samples: tuple[int, int]) -> list[Contribution]:
    return [replace(contribution, samples=samples, num_samples=count(samples))]


def all_receipts() -> list[Receipt]:
    """Receipts of a correct run: four peers, without `c` from step 3 on, and with `e` from step 4 on."""
    sampler = Sampler(NUM_SAMPLES, 8)
    state, before, receipts = SamplerState(), "", list[Receipt]()
    while sampler.epoch(state) < sampler.epochs:
        step = len(receipts)
        members = "abcd" if step <= KILLED_AFTER else "abd" if step < ENTERED_AT else "abde"
        plan, before = sampler.plan(state, before), members
        receipt = Receipt(
            lineage="f00d",
            view_number=len(set(members)),
            step=step,
            contributions=contributions(members, plan),
            algorithms=("ring",) if step else (),
            digest=f"{step:032x}" if step else "",
            state_digest=f"5{step:031x}" if step else "",
        )
        receipts.append(receipt)
        state = fold(state, union(part for each in receipt.contributions for part in each.samples)) if step else state
    return receipts


def good_run() -> Run:
    receipts = all_receipts()
    last = {VICTIM: KILLED_AFTER}
    first = {JOINER: ENTERED_AT}
    files = {name: receipts[first.get(name, 0) : last.get(name, len(receipts)) + 1] for name in "abcde"}
    return Run(receipts=files, victim=VICTIM, joiner=JOINER, num_samples=NUM_SAMPLES)


def edited(peers: str, step: int, edit: Callable[[Receipt], list[Receipt]]) -> Run:
    """The good run with `edit` applied to the receipts of `step` in the files of `peers`."""
    run = good_run()
    files = {
        name: [new for old in own for new in (edit(old) if name in peers and old.step == step else [old])]
        for name, own in run.receipts.items()
    }
    return replace(run, receipts=files)


def recounted(step: int, peer_id: str, edit: Callable[[Contribution], list[Contribution]]) -> Run:
    """The good run with `edit` applied to the contribution of `peer_id` in `step`, at all peers."""

    def apply(receipt: Receipt) -> list[Receipt]:
        entries = [new for old in receipt.contributions for new in (edit(old) if old.peer_id == peer_id else [old])]
        return [replace(receipt, contributions=tuple(entries))]

    return edited("abcde", step, apply)


def test_a_run_that_lost_nothing_is_ok() -> None:
    verdict = judge(good_run())
    assert verdict.failures == ()
    assert str(verdict) == "OK - 7 steps, 0 lost, 4 peers, digest 5000000000000000 equal on all"


def test_all_failures_are_told() -> None:
    assert str(Verdict(7, 4, "5", ("this", "that"))) == "FAILED - this; that"


def test_a_run_without_a_step_fails() -> None:
    nothing = Run(receipts={"a": all_receipts()[:1]}, victim=VICTIM, joiner=JOINER, num_samples=NUM_SAMPLES)
    assert judge(nothing).failures == ("no step was committed",)


@pytest.mark.parametrize(
    ("run", "failure"),
    [
        (edited("b", 5, lambda _: []), "b has no receipt of step 5 (1 of 0 to 7 are missing)"),
        (edited("b", 7, lambda _: []), "b has no receipt of step 7"),
        (edited("e", 6, lambda _: []), "e has no receipt of step 6"),
        (edited("c", 1, lambda _: []), "c has no receipt of step 1"),
        (edited("b", 5, lambda r: [r, r]), "the receipts of b are not in order"),
        (edited("d", 5, lambda r: [replace(r, digest="0bad")]), "a and d have different receipts of step 5"),
        (edited("e", 7, lambda r: [replace(r, state_digest="0bad")]), "a and e have different receipts of step 7"),
        (edited("c", 2, lambda r: [replace(r, view_number=9)]), "a and c have different receipts of step 2"),
        (edited("e", 5, lambda r: [replace(r, lineage="beef")]), "2 lineages"),
        (edited("abcde", 3, lambda r: [replace(r, digest="")]), "step 3 has no digest"),
        (edited("abcde", 6, lambda r: [replace(r, state_digest="")]), "step 6 has no state_digest"),
    ],
)
def test_receipts_that_are_missing_or_differ_are_found(run: Run, failure: str) -> None:
    assert failure in str(judge(run))


@pytest.mark.parametrize(
    ("run", "failure"),
    [
        (recounted(5, "b", lambda _: []), "b is not on the receipt of step 5"),
        (recounted(1, "c", lambda _: []), "c, which was killed, is not on all receipts until its death"),
        (recounted(6, "e", lambda _: []), "e joined and is not on all receipts from then on"),
        (edited("e", ENTERED_AT, lambda _: []), "e is on receipts from step 4 on, and has them from step 5 on"),
    ],
)
def test_a_peer_that_is_not_counted_is_found(run: Run, failure: str) -> None:
    assert failure in str(judge(run))


def test_a_victim_that_is_counted_to_the_end_is_found() -> None:
    run = replace(good_run(), victim="d")
    assert "d was killed and is still on the last receipt" in judge(run).failures


def test_a_victim_that_committed_more_than_the_survivors_is_found() -> None:
    run = good_run()
    extra = replace(run.receipts["a"][-1], step=8)
    longer = replace(run, receipts={**run.receipts, VICTIM: [*run.receipts["a"], extra]})
    assert "a has no receipt of step 8 (1 of 0 to 8 are missing)" in judge(longer).failures


def test_a_peer_that_committed_nothing_is_found() -> None:
    run = good_run()
    failures = judge(replace(run, receipts={**run.receipts, JOINER: []})).failures
    assert "e has committed nothing" in failures


def test_a_joiner_without_samples_is_found() -> None:
    run = good_run()
    for step in range(ENTERED_AT, 8):
        without = [
            counting(entry)[0] if entry.peer_id == JOINER else entry for entry in run.receipts["a"][step].contributions
        ]
        files = {
            name: [replace(r, contributions=tuple(without)) if r.step == step else r for r in own]
            for name, own in run.receipts.items()
        }
        run = replace(run, receipts=files)
    assert "e joined and added no sample to any step" in judge(run).failures


@pytest.mark.parametrize(
    ("run", "failure"),
    [
        (recounted(2, "b", lambda c: counting(c, (c.samples[0][0], 1))), "samples 11 to 11 are counted in no step"),
        (recounted(2, "b", lambda c: counting(c, (0, 2))), "sample 0 is counted in step 1 and in step 2"),
        (recounted(1, "a", lambda c: counting(c, (0, 3))), "sample 2 is counted in step 1 and in step 1"),
        (recounted(1, "a", lambda c: [replace(c, samples=())]), "step 1 counts samples that nobody handed out"),
        (replace(good_run(), num_samples=50), "samples 48 to 49 are counted in no step"),
        (replace(good_run(), num_samples=47), "step 7 counts samples 46 to 47, and there are 47"),
    ],
)
def test_samples_that_are_lost_or_counted_twice_are_found(run: Run, failure: str) -> None:
    assert failure in str(judge(run))


def at(time_s: float, kind: Kind, step: int = -1, view: int = 0, peer_id: str = "") -> Record:
    return Record(1, round(time_s * 1e9), kind, How.UNKNOWN, 0, step, view, peer_id, 0.0)


def after_a_kill(gone_s: float, active_s: float, committed_s: float) -> list[Record]:
    return [
        *(at(float(step), Kind.COMMITTED, step) for step in range(3)),
        at(gone_s, Kind.GONE, peer_id=VICTIM),
        at(active_s, Kind.ACTIVE, 2, 3),
        at(committed_s, Kind.COMMITTED, 3),
    ]


def test_the_cost_of_a_kill_is_that_of_the_slowest_survivor() -> None:
    told = {"a": after_a_kill(2.5, 2.75, 4.0), "b": after_a_kill(2.75, 3.25, 4.5)}
    figures = measure(good_run(), told, killed_at_s=2.25)
    assert figures == Figures(2.25, 1.0, 0.5, 0.5)


def test_a_cost_that_nobody_noted_is_unknown() -> None:
    assert measure(good_run(), {}, killed_at_s=2.25) == Figures(None, None, None, None)


@pytest.mark.long
@pytest.mark.timeout(150)
def test_a_short_demo_ends_with_ok() -> None:
    command = [
        sys.executable,
        "-m",
        "examples.demo",
        "--seed",
        "1",
        "--steps",
        "90",
        "--kill-step",
        "6",
        "--join",
        "at-kill",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, _ = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0, output
    last = output.splitlines()[-1]
    assert re.fullmatch(r"demo: OK - 9\d steps, 0 lost, 4 peers, digest [0-9a-f]{16} equal on all", last), output
