"""report.json: the cost of each event, over all repetitions, and whether all is as expected. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from ...errors import ExperimentError
from ..clocks import Clocks
from ..config import Bound, Experiment
from ..events import ENDS
from ..folder import Run
from ..lines import nearest
from ..usage import growth
from .cost import Cost
from .costs import costs
from .host_clocks import clock_metrics
from .last_words import unrecorded
from .planned import off_share
from .receipt_check import ReceiptCheck, check
from .slow_links import name_links
from .statistics import describe
from .steps import Step, StepBreakdown, splits, steps
from .suspicions import suspicions

COUNTS: Final = (
    *("steps", "steps_lost", "samples", "samples_twice", "samples_missing", "receipts_unequal"),
    *("events_missed", "peers_failed", "goodput", "step_ms_p50", "accounting_ms_max", "split_error_max"),
    *("memory_growth_mb_max", "files_growth_max", "steps_unrecorded", "records_missed"),
    *("at_step_off_share", "clock_width_ms_max", "clock_off_ms_max"),
)
DOS: Final = ("kill", "leave", "pause", "join", "restart_all", "cut", "kill_host")
TIMES: Final = ("detect", "agree", "resume", "beyond", "left", "gap", "back")
SUFFIXES: Final = ("p50", "p99", "max")
_TIMES_OF: Final = {
    "detect": "detected",
    "agree": "agreed",
    "resume": "resumed",
    "left": "left",
    "back": "back_after_it_went_on",
}
_EXPECTED_CODES: Final = (0, 143, -15)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One run and its evaluation."""

    run: Run
    chain: ReceiptCheck
    costs: list[Cost]
    steps: list[Step]
    splits: dict[str, StepBreakdown]

    @property
    def failed(self) -> list[str]:
        """In words, peers that failed and were not ended by the experiment; empty for a run that was no experiment."""
        processes = () if self.run.log is None else self.run.log.processes
        return [
            f"peer {each.index} ended with {each.code}: {each.last_line or 'it printed nothing'}"
            for each in processes
            if not each.ended_by_experiment and each.code not in _EXPECTED_CODES
        ]

    @property
    def origin_ns(self) -> int:
        """The origin of all times that are shown: the start of the run, or the first record."""
        if self.run.log is not None:
            return self.run.log.began_ns
        return min((track.records[0].time_ns for track in self.run.tracks.values() if track.records), default=0)


def evaluate(run: Run) -> Evaluated:
    chain = check(run)
    found = costs(run, chain)
    name_links(run, found)
    return Evaluated(run, chain, found, steps(run), splits(run))


def metrics(evaluated: Sequence[Evaluated]) -> dict[str, float]:
    """All figures that `[expect]` may name, over all runs. Times are over all events of a kind."""
    found: dict[str, float] = {
        "steps": min((each.chain.num_steps for each in evaluated), default=0),
        "steps_lost": sum(len(each.chain.lost) for each in evaluated),
        "samples": min((each.chain.num_samples for each in evaluated), default=0),
        "samples_twice": sum(each.chain.twice for each in evaluated),
        "samples_missing": sum(each.chain.missing for each in evaluated),
        "receipts_unequal": sum(len(each.chain.unequal) for each in evaluated),
        "events_missed": sum(is_missed(cost) for each in evaluated for cost in each.costs),
        "steps_unrecorded": sum(len(unrecorded(each.run)) for each in evaluated),
        "records_missed": sum(each.run.num_missed for each in evaluated),
    }
    if any(each.run.log is not None for each in evaluated):  # `shoal postmortem` says it of other runs
        found["peers_failed"] = sum(len(each.failed) for each in evaluated)
    parts = [each.chain.goodput for each in evaluated]
    if known := [part for part in parts if part is not None]:
        found["goodput"] = min(known)
    if took := [step.took_ms for each in evaluated for step in each.steps if step.took_ms is not None]:
        found["step_ms_p50"] = round(median(took), 3)
    found |= _accounting(evaluated)
    if (off := off_share(cost.event for each in evaluated for cost in each.costs)) is not None:
        found["at_step_off_share"] = off
    clocks = [clock_metrics(each.run) for each in evaluated]
    found |= {name: max(each[name] for each in clocks if name in each) for each in clocks for name in each}
    grown = [growth(each.run.log.usage) for each in evaluated if each.run.log is not None]
    found |= {name: max(each[name] for each in grown if name in each) for each in grown for name in each}
    for do in ("", *DOS):
        for name in TIMES:
            values = times(evaluated, do, name)
            described = describe(values)
            prefix = f"{do}_{name}_ms" if do else f"{name}_ms"
            found |= {f"{prefix}_{suffix}": described[suffix] for suffix in SUFFIXES if values}
    return found


def _accounting(evaluated: Sequence[Evaluated]) -> dict[str, float]:
    """The largest errors of sums of parts: for survivors, in ms, and for steps, as a share."""
    found = {}
    ended = [cost for each in evaluated for cost in each.costs if cost.event.do in ("kill", "leave")]
    if off := [cost.off_ms for cost in ended if cost.off_ms is not None]:
        found["accounting_ms_max"] = max(off)
    if errors := [split.error for each in evaluated for split in each.splits.values()]:
        found["split_error_max"] = max(errors)
    return found


def is_missed(cost: Cost) -> bool:
    """Whether the event has not happened, or was not over: peers have not continued, or not come back."""
    if cost.event.do in ("pause", "cut"):  # these may end before any peer is removed, or be cut short by the run's end
        return bool(cost.event.why_not) or (bool(cost.event.until_ns) and "back" in cost.why)
    return bool(cost.event.why_not) or "resumed" in cost.why


def times(evaluated: Sequence[Evaluated], do: str, name: str) -> list[float]:
    """The time `name` of all events of the kind `do` that have it; `do` empty: of kills and leaves."""
    dos = (do,) if do else ENDS
    chosen = [cost for each in evaluated for cost in each.costs if cost.event.do in dos]
    if name == "gap":
        return [cost.gap_ms for cost in chosen if cost.gap_ms is not None]
    if name == "beyond":
        whole = [(cost.times_ms["resumed"], cost.step_ms) for cost in chosen if "resumed" in cost.times_ms]
        return [resumed_ms - step_ms for resumed_ms, step_ms in whole if step_ms is not None]
    return [cost.times_ms[key] for cost in chosen if (key := _TIMES_OF[name]) in cost.times_ms]


def check_expectations(experiment: Experiment) -> None:
    """ExperimentError: an expectation names an unknown figure, or one of events or hosts that the file lacks."""
    known: dict[str, Sequence[str]] = dict.fromkeys(COUNTS, ())
    for do in ("", *DOS):
        keys = (f"{do}_{name}_ms_{suffix}".removeprefix("_") for name in TIMES for suffix in SUFFIXES)
        known |= dict.fromkeys(keys, (do,) if do else ENDS)
    planned = {event.do for event in experiment.events}
    for key in experiment.expect:
        if key not in known:
            hint = nearest(key, [*known])
            hint = (
                hint
                if hint.startswith(", did")
                else f"; known are {', '.join(COUNTS)}, kill_resume_ms_p99 and the like"
            )
            raise ExperimentError(f"{experiment.where(key)}unknown figure {key}{hint}")
        if known[key] and planned.isdisjoint(known[key]):
            raise ExperimentError(
                f"{experiment.where(key)}{key} is of each {' and '.join(known[key])}, and there is no such event: "
                "add one, or leave it out"
            )
        if lacks := _lacks(key, experiment):
            raise ExperimentError(f"{experiment.where(key)}{key} is of {lacks}: leave it out")


def _lacks(key: str, experiment: Experiment) -> str:
    """The subject of a figure that the file does not have, in words; empty: it has that."""
    num_hosts = 0 if experiment.network is None else len(experiment.network.hosts)
    if key in ("clock_width_ms_max", "clock_off_ms_max") and num_hosts < 2:
        return "two hosts of a [network], and there are none"
    if key == "at_step_off_share" and all(event.at_step is None for event in experiment.events):
        return "events that wait for at_step, and there is none"
    return ""


def failures(evaluated: Sequence[Evaluated], expect: Mapping[str, Bound]) -> list[str]:
    """In words, unmet expectations (of the file, and `_ALWAYS`, which the file may override), and runs ended early."""
    found = metrics(evaluated)
    wrong = []
    for key, bound in {**_ALWAYS, **expect}.items():
        if key in _WHERE_KNOWN and key not in found and key not in expect:
            continue
        if key not in found:
            wrong.append(f"{key} is not known: no event had one")
        elif not bound.is_met(found[key]):
            wrong.append(f"{key} is {found[key]:g}, expected {bound}{_whose(key, evaluated)}")
    if any(each.run.log is not None and each.run.log.ended_by in ("limit", "interrupt") for each in evaluated):
        wrong.append("a run was ended before its time")
    return wrong


def _whose(key: str, evaluated: Sequence[Evaluated]) -> str:
    """For `accounting_ms_max`: the event and the survivor whose records do not add up; else empty."""
    known = [(cost.off_ms, cost) for each in evaluated for cost in each.costs if cost.off_ms is not None]
    if key != "accounting_ms_max" or not known:
        return ""
    _, cost = max(known, key=lambda pair: pair[0])
    return f": event {cost.event.number} ({cost.event.who}, step {cost.event.at_step}), by the records of {cost.off_by}"


_ALWAYS: Final = {
    "events_missed": Bound("==", 0.0),
    "peers_failed": Bound("==", 0.0),
    "receipts_unequal": Bound("==", 0.0),
    "samples_twice": Bound("==", 0.0),
    "accounting_ms_max": Bound("<=", 5.0),
    "split_error_max": Bound("<=", 0.02),
}
_WHERE_KNOWN: Final = ("peers_failed", "accounting_ms_max", "split_error_max")


def to_json(name: str, evaluated: Sequence[Evaluated], expect: Mapping[str, Bound]) -> dict[str, Any]:
    """The content of report.json."""
    return {
        "version": 1,
        "name": name,
        "failures": failures(evaluated, expect),
        "expect": {key: str(bound) for key, bound in expect.items()},
        "metrics": metrics(evaluated),
        "events": _over_runs(evaluated),
        "runs": [_run(each) for each in evaluated],
    }


def planned_events(evaluated: Sequence[Evaluated]) -> list[tuple[int, str, list[Cost]]]:
    """Each planned event: its number, what it does in words, and its costs over all repetitions.

    Where a seed has drawn when events come, those of one number may differ in kind; then each kind is an event.
    """
    found: dict[tuple[int, str], list[Cost]] = {}
    for cost in (cost for each in evaluated for cost in each.costs):
        found.setdefault((cost.event.number, cost.event.do), []).append(cost)
    whos = {key: {cost.event.who for cost in same} for key, same in found.items()}
    return [
        (key[0], min(whos[key]) if len(whos[key]) == 1 else f"{key[1]}, peers differ", found[key])
        for key in sorted(found)
    ]


def _over_runs(evaluated: Sequence[Evaluated]) -> list[dict[str, Any]]:
    """Statistics of each planned event over all repetitions."""
    rows = []
    for number, who, same in planned_events(evaluated):
        names = dict.fromkeys(name for cost in same for name in cost.times_ms)
        described = {name: describe([cost.times_ms[name] for cost in same if name in cost.times_ms]) for name in names}
        gaps = describe([cost.gap_ms for cost in same if cost.gap_ms is not None])
        rows.append({"number": number, "who": who, "times_ms": {**described, "gap": gaps}})
    return rows


def _run(each: Evaluated) -> dict[str, Any]:
    account, chain = each.run.log, each.chain
    return {
        "seed": None if account is None else account.seed,
        "ended_by": None if account is None else account.ended_by,
        "environment": None if account is None else account.environment,
        "steps": chain.num_steps,
        "steps_lost": [list(key) for key in chain.lost],
        "samples": chain.num_samples if chain.has_positions else None,
        "samples_twice": chain.twice if chain.has_positions else None,
        "samples_missing": chain.missing if chain.has_positions else None,
        "receipts_unequal": list(chain.unequal),
        "goodput": chain.goodput,
        "failed": None if account is None else each.failed,
        "events": [_event(cost, each.origin_ns) for cost in each.costs],
        "clocks": _clocks(each.run.clocks),
        "suspicions": [
            {**asdict(found), "at_s": round((found.time_ns - each.origin_ns) / 1e9, 3)}
            for found in suspicions(each.run)
        ],
        "splits_ms": {peer_id: asdict(split) for peer_id, split in each.splits.items()},
    }


def _clocks(clocks: Clocks | None) -> dict[str, Any] | None:
    """How far the clock of each host is ahead of the reference, per window of steps; None: there is one clock."""
    if clocks is None:
        return None
    hosts = {
        host: {
            "ahead_ms": [[each.low_ns / 1e6, each.high_ns / 1e6] for each in bounds],
            "drift_ppm": clocks.drift_ppm(host) if bounds else None,
        }
        for host, bounds in clocks.bounds.items()
    }
    return {"reference": clocks.reference, "plus_minus_ms": clocks.plus_minus_ms, "hosts": hosts}


def _event(cost: Cost, origin_ns: int) -> dict[str, Any]:
    event = cost.event
    return {
        "number": event.number,
        "do": event.do,
        "who": event.who,
        "planned": event.planned,
        "at_step": event.at_step,
        "at_s": round((event.time_ns - origin_ns) / 1e9, 3) if event.time_ns else None,
        "victims": event.victims,
        "detected_by": cost.by,
        "was_at": cost.at,
        "times_ms": cost.times_ms,
        "phases_ms": cost.phases_ms,
        "accounting_off_ms": cost.off_ms,
        "accounting_off_by": cost.off_by,
        "gap_ms": cost.gap_ms,
        "step_ms_before": cost.step_ms,
        "steps_lost": cost.lost,
        "steps_redone": cost.redone,
        "samples_recounted": cost.recounted,
        "steps_followed": cost.followed,
        "state_bytes": cost.state_bytes,
        "state_bytes_per_s": cost.state_bytes_per_s,
        "donors": cost.donors,
        "why": cost.why,
    }
