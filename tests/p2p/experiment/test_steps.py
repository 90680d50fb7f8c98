from p2p.experiment.evaluation.report import evaluate, metrics
from p2p.experiment.evaluation.steps import Step, rates, steps
from p2p.telemetry.records import Kind
from tests.p2p.experiment.runs import A, B, event, receipt, record, run


def test_after_a_restart_a_rate_is_of_the_samples_and_the_time_since_then() -> None:
    def step(lineage: str, number: int, time_s: float, took_ms: float | None) -> Step:
        time_ns = round(time_s * 1e9)
        return Step(lineage=lineage, number=number, time_ns=time_ns, took_ms=took_ms, num_members=1, num_samples=10)

    before = [step("1", number, 0.125 * number, 125.0 if number else None) for number in range(30)]
    after = [step("2", number, 10 + 0.125 * number, 125.0 if number else None) for number in range(30)]
    assert [rate for _, rate in rates([*before, *after])] == [80.0] * 58


def test_steps_whose_commits_were_overwritten_before_they_were_read_make_no_other_step_longer() -> None:
    receipts = [receipt(step, [A, B]) for step in range(1, 31)]
    commits = [
        record(10.0 * step, Kind.COMMITTED, step)._replace(number=step) for step in (*range(1, 11), *range(20, 31))
    ]
    late = event("heal", 205)
    found = evaluate(run({A: receipts, B: receipts}, {A: commits, B: commits}, [event("heal", 105), late]))
    assert {step.took_ms for step in steps(found.run)} == {None, 10.0}
    assert [cost.gap_ms for cost in found.costs] == [None, 10.0]
    assert [cost.step_ms for cost in found.costs] == [10.0, 10.0]
    assert metrics([found])["records_missed"] == 18
    assert {round(rate) for _, rate in rates(found.steps)} == {0}, "there are no samples"
