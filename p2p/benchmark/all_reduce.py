"""The director of `shoal bench all-reduce`: has the workers run, puts results together, and hands them out."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from p2p.errors import ShoalError

from .analysis import analyse
from .explaining import explain
from .files import check_writable, make_report, to_csv, to_json, write_all
from .machine import machine
from .plan import Plan
from .plotting import check_plot, plot
from .prediction import links_of, message_ns, predicted_s, wire_bytes
from .report import print_report, warnings_of
from .result import AllReduceResult, Measurement, combine
from .venue import run_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files to write besides the table; None: not. `explains`: say what `auto` takes, and why."""

    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None
    explains: bool = False

    def check(self) -> None:
        """LaunchError if one of them could not be written."""
        for option, path in (("--json", self.json), ("--csv", self.csv), ("--plot", self.plot)):
            if path is not None:
                check_writable(option, path)
        if self.plot is not None:
            check_plot(self.plot)


def bench_all_reduce(plan: Plan, environ: Mapping[str, str], outputs: Outputs = Outputs()) -> int:
    """Measure what `plan` says, print a table, and write the files that are asked for.

    Returns:
        The exit code: 0 if every result was the exact sum, and the same bits on all peers.

    Raises:
        LaunchError: nothing was started.
        ShoalError: it ended early, or results could not be written after they were printed.
        LabError: there can be no network lab, or it has ended early.
    """
    outputs.check()
    described = machine()
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        folder = Path(name)
        # Receipts would put a file into what is timed.
        inherited = {key: value for key, value in environ.items() if key != "SHOAL_RECEIPTS"}
        code, network = run_workers(plan, folder, inherited)
        if code:
            return code
        results = read_results(plan, folder)
        explained = json.loads(_read(folder / "0.json"))["explained"]
    analysis = analyse(plan, results)
    warnings = warnings_of(plan, described, network)
    print_report(plan, results, analysis, described, network, warnings)
    if outputs.explains:
        print(*explain(explained), sep="\n")
    report = make_report(plan, results, analysis, described, network, warnings)
    texts: dict[Path, str | bytes] = {}
    if outputs.json is not None:
        texts[outputs.json] = to_json(report)
    if outputs.csv is not None:
        texts[outputs.csv] = to_csv(report)
    if outputs.plot is not None:
        texts[outputs.plot] = plot(report, outputs.plot.suffix)
    write_all(texts)
    return 1 if any(result.wrong or result.hash_equal is False for result in results) else 0


def read_results(plan: Plan, folder: Path) -> list[AllReduceResult]:
    """What the workers wrote, put together.

    Raises:
        ShoalError: a worker ended without.
    """
    found = [json.loads(_read(folder / f"{index}.json")) for index in range(plan.num_peers)]
    results = combine([[Measurement(**row) for row in each["found"]] for each in found])
    return [_predict(plan, result, found[0]["calibration_s"]) for result in results]


def _read(path: Path) -> str:
    if not path.is_file():
        raise ShoalError(f"peer {path.stem} ended without results; nothing can be said of the others")
    return path.read_text()


def _predict(plan: Plan, result: AllReduceResult, calibration_s: Sequence[float]) -> AllReduceResult:
    """With what the model says of it."""
    num_bytes = wire_bytes(result.ran, plan.num_peers, result.size_bytes)
    if plan.net is None:
        return replace(result, wire_bytes=num_bytes)
    links = links_of(plan.net, plan.num_peers, message_ns(plan.net, plan.num_peers, list(calibration_s)))
    price_s = predicted_s(result.algorithm, result.ran, result.size_bytes, links)
    return replace(result, wire_bytes=num_bytes, predicted_s=price_s)
