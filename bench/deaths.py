"""Kills and pauses of bench.elastic as experiments on small_training.py, and the cost of each."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.here import ROOT
from p2p.benchmark.results.result import percentile
from p2p.experiment.config import Experiment
from p2p.experiment.evaluation.cost import Cost as Measured
from p2p.experiment.evaluation.report import Evaluated, evaluate, failures, metrics
from p2p.experiment.evaluation.timeline import Timeline
from p2p.experiment.folder import read_run
from p2p.experiment.run.runner import ExperimentRunner, plans

SCRIPT: Final = ROOT / "bench" / "small_training.py"
LIMIT_S: Final = 120.0
PER_EVENT_S: Final = 30.0

RUN: Final = """
[run]
script = "{script}"
args = {args}
peers = {peers}
start = "{start}"
resident = "{resident}"
cycles = {number}
until_step = 400
limit_s = {limit_s}

[[event]]
at_step = 20
wait_s = 0.3
jitter_s = 0.5
"""
KILL: Final = """do = "kill"

[[event]]
after = "previous resumed"
wait_s = 0.3
do = "join"
"""
PAUSE: Final = """do = "pause"
for_s = {stop_s}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a kill for the survivors.

    Attributes:
        peers: members before the kill.
        rank: of the victim.
        detect_ms: until the first survivor detected the victim's death.
        agree_ms: until the last survivor had installed the view without it.
        resume_ms: until the last survivor had committed the first step that every survivor committed in that view or
            at its barrier; less the run's median step.
        step_ms: the run's median step.
        steps_lost: from this event to the next, steps that some peer has committed and others lack.
        digests_equal: whether in that time all receipts of a step are the same bytes at every peer that has one.
    """

    peers: int
    rank: int
    detect_ms: float
    agree_ms: float
    resume_ms: float
    step_ms: float
    steps_lost: int
    digests_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause: one peer was stopped, and continued later.

    Attributes:
        peers: members before.
        rank: of the stopped peer.
        out_ms: from SIGSTOP until the last of the others had installed a view without it; None: it was not removed.
        stall_ms: the longest time without a commit, while it was stopped.
        steps_meanwhile: steps that the others committed while it was stopped.
        rejoined: whether the same process committed steps with the others again; if it was removed, as a new member.
        back_ms: from SIGCONT until it had committed a step that no peer had committed before; None if it ended instead.
        ended_with: its exit code, if it ended.
        steps_lost, digests_equal: as in `Cost`.
    """

    peers: int
    rank: int
    out_ms: float | None
    stall_ms: float | None
    steps_meanwhile: int
    rejoined: bool
    back_ms: float | None
    ended_with: int | None
    steps_lost: int
    digests_equal: bool


def conduct(
    text: str, seed: int, environ: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Evaluated, list[str]]:
    """Run an experiment once; returns its evaluation and its unmet expectations.

    Raises:
        KeyboardInterrupt: the run was interrupted; all of its processes have ended.
        RuntimeError: no step was committed, or an event did not happen.
    """
    experiment = Experiment.parse(text, "elastic", ROOT)
    with TemporaryDirectory(prefix="shoal-") as folder:
        out = Path(folder) / "out"
        if not ExperimentRunner(environ, say).run(experiment, plans(experiment, seed, 1), out):
            raise KeyboardInterrupt
        evaluated = evaluate(read_run(out / "run-1"))
    wrong = failures([evaluated], experiment.expect)
    missed = [why for cost in evaluated.costs for why in [cost.event.why_not] if why]
    if missed or not evaluated.steps:
        raise RuntimeError("\n".join([*missed, *evaluated.failed, *wrong]))
    return evaluated, wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The peers of an experiment: their number, how they are started, the memory of each; `args` of the script."""

    number: int
    start: str
    resident: str
    args: tuple[str, ...] = ()


def plan(peers: Peers, number: int, stop_s: float) -> str:
    """The file of an experiment: `number` kills, each followed by a join, or pauses of `stop_s`."""
    limit_s = LIMIT_S + number * (PER_EVENT_S + 2 * stop_s)
    head = RUN.format(
        script=SCRIPT,
        args=json.dumps(peers.args),
        peers=peers.number,
        start=peers.start,
        resident=peers.resident,
        number=number,
        limit_s=limit_s,
    )
    return head + (PAUSE.format(stop_s=stop_s) if stop_s else KILL)


def kills(evaluated: Evaluated) -> list[Cost]:
    """Costs of all kills of one run, in order."""
    step_ms = metrics([evaluated])["step_ms_p50"]
    return [
        Cost(
            peers=len(members),
            rank=members.index(cost.event.victims[0]),
            detect_ms=cost.times_ms["detected"],
            agree_ms=cost.times_ms["agreed"],
            resume_ms=round(cost.times_ms["resumed"] - step_ms, 3),
            step_ms=step_ms,
            **_losses(cost, evaluated, after),
        )
        for cost, members, after in _in_order(evaluated, "kill")
    ]


def pauses(evaluated: Evaluated) -> list[Pause]:
    """Costs of all pauses of one run, in order."""
    timeline = Timeline(evaluated.run, evaluated.chain)
    account = evaluated.run.log
    assert account is not None
    codes = {each.index: None if each.ended_by_experiment else each.code for each in account.processes}
    return [
        Pause(
            peers=len(members),
            rank=members.index(cost.event.victims[0]),
            out_ms=cost.times_ms.get("agreed"),
            stall_ms=cost.gap_ms,
            steps_meanwhile=len(timeline.keys_between(cost.event.time_ns, cost.event.until_ns)),
            rejoined="back" in cost.times_ms,
            back_ms=cost.times_ms.get("back_after_it_went_on"),
            ended_with=codes[cost.event.peers[0]],
            **_losses(cost, evaluated, after),
        )
        for cost, members, after in _in_order(evaluated, "pause")
    ]


def _in_order(evaluated: Evaluated, do: str) -> Iterator[tuple[Measured, list[str], int]]:
    """Events of one kind, each with the members on its victim's last receipt before it, and the next event's step."""
    chosen = [cost for cost in evaluated.costs if cost.event.do == do]
    for cost, after in zip(chosen, [*(cost.event.at_step for cost in chosen[1:]), 1 << 62], strict=True):
        receipts = evaluated.run.tracks[cost.event.victims[0]].receipts
        before = [each for each in receipts if each.step <= cost.event.at_step] or receipts[:1]
        yield cost, [entry.peer_id for entry in before[-1].contributions], after


def _losses(cost: Measured, evaluated: Evaluated, after: int) -> dict[str, Any]:
    chain, begin = evaluated.chain, cost.event.at_step
    return {
        "steps_lost": sum(begin <= step < after for _, step in chain.lost),
        "digests_equal": not any(begin <= step < after for step in chain.unequal),
    }


def summary_of_kills(found: Sequence[Cost]) -> dict[str, Any]:
    """p50 and p99 of the times; whether anything was lost."""
    names = ("detect_ms", "agree_ms", "resume_ms")
    times = {name: [getattr(entry, name) for entry in found] for name in names}
    return {
        **{name: {"p50": round(percentile(v, 50), 1), "p99": round(percentile(v, 99), 1)} for name, v in times.items()},
        "step_ms": median(entry.step_ms for entry in found),
        "steps_lost": sum(entry.steps_lost for entry in found),
        "digests_equal": all(entry.digests_equal for entry in found),
        "is_good": all(entry.digests_equal and not entry.steps_lost for entry in found),
        "kills": len(found),
        "kills_of_rank_0": sum(entry.rank == 0 for entry in found),
    }


def summary_of_pauses(found: Sequence[Pause]) -> dict[str, Any]:
    """The worst values of all pauses."""
    steps_lost, digests_equal = sum(entry.steps_lost for entry in found), all(entry.digests_equal for entry in found)
    rejoined = all(entry.rejoined for entry in found)
    return {
        "pauses": len(found),
        "out_ms_max": max((entry.out_ms for entry in found if entry.out_ms is not None), default=None),
        "back_ms_max": max((entry.back_ms for entry in found if entry.back_ms is not None), default=None),
        "rejoined": rejoined,
        "steps_lost": steps_lost,
        "digests_equal": digests_equal,
        "is_good": rejoined and digests_equal and not steps_lost,
    }
