"""The director of `shoal bench`: runs the workers, combines their results, prints and writes them."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collectives.links import Links
from p2p.errors import LaunchError, ShoalError
from p2p.host.memory_left import memory_bytes
from p2p.staging import cuda_devices

from .measuring.explaining import explain
from .measuring.prediction import links_from, links_of, message_ns, predicted_s, wire_bytes
from .measuring.storage import Find, check_devices, devices_of, warnings_of_devices
from .measuring.venue import WORKER, run_workers
from .own import register_for_rates
from .plan import CPU, Plan, format_size
from .results.analysis import analyse
from .results.files import check_writable, make_report, to_csv, to_json, write_all
from .results.machine import machine
from .results.plotting import check_plot, plot
from .results.report import print_report, warnings_of
from .results.result import Measurement, Result, combine


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files to write besides the table; None: not written. `explains`: print which algorithm `auto` takes, and why."""

    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None
    explains: bool = False

    def check(self) -> None:
        """Raise LaunchError if one of the files could not be written."""
        for option, path in (("--json", self.json), ("--csv", self.csv), ("--plot", self.plot)):
            if path is not None:
                check_writable(option, path)
        if self.plot is not None:
            check_plot(self.plot)


def check_memory(plan: Plan, free_bytes: int) -> None:
    """Raise LaunchError if this machine cannot hold the largest arrays: one per peer, or one cut over all peers."""
    num_arrays = 1 if plan.operation in ("gather", "scatter", "all-to-all") else plan.num_peers
    num_arrays *= 1 if plan.device == CPU else 3  # the fetched array and the result have memory of their own
    largest = plan.sizes_bytes[-1]
    if num_arrays * largest > free_bytes:
        raise LaunchError(
            f"{plan.operation} of {format_size(largest)} with {plan.num_peers} peers needs at least "
            f"{num_arrays * largest >> 20:,} MiB, and {free_bytes >> 20:,} MiB of memory are free: take a smaller -e, "
            "or fewer peers"
        )


def run_bench(plan: Plan, environ: Mapping[str, str], outputs: Outputs, script: Path | None = None) -> int:
    """Measure what `plan` says, print a table, and write the files that are asked for.

    Args:
        plan: what to measure.
        environ: environment of the peers.
        outputs: the files.
        script: the script that each peer runs instead of worker.py, with devices of its own (`worker.run`).

    Returns:
        The exit code: 0 if every result was the exact sum, and the same bits on all peers.

    Raises:
        LaunchError: nothing was started.
        ShoalError: the run ended early, or results could not be written after they were printed.
        LabError: the network lab could not be created, or ended early.
    """
    register_for_rates(plan.algorithms, range(plan.num_peers))
    outputs.check()
    check_memory(plan, memory_bytes())
    if script is None:
        check_devices(plan, environ)
    described = machine()
    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        folder = Path(name)
        # Writing receipts to a file would be part of what is timed.
        inherited = {key: value for key, value in environ.items() if key != "SHOAL_RECEIPTS"}
        code, network = run_workers(plan, folder, inherited, script or WORKER)
        if code:
            return code
        found = [json.loads(_read(folder / f"{index}.json")) for index in range(plan.num_peers)]
    return report_results(plan, found, described, network, outputs)


def run_in_swarm(plan: Plan, told: Mapping[str, Any], outputs: Outputs, find: Find | None = None) -> int:
    """As `run_bench`, by the peers that wait in a swarm (swarm.py); `told`: how to join it; `find`: as `storage_of`."""
    from .measuring.swarm import submit_plan

    outputs.check()
    if find is None:
        check_devices(plan, os.environ)
    described = machine()
    agreed, found = submit_plan(plan, told, find or cuda_devices)
    return report_results(agreed, found, described, None, outputs)


def report_results(
    plan: Plan,
    found: Sequence[Mapping[str, Any]],
    described: Mapping[str, Any],
    network: Mapping[str, Any] | None,
    outputs: Outputs,
) -> int:
    """Print a table of the results, and write the files that are asked for. Returns the exit code."""
    results, explained = read_results(plan, found), found[0]["explained"]
    devices = [each["device"] for each in found]
    described = {**described, "devices": devices_of(devices)}
    analysis = analyse(plan, results)
    warnings = warnings_of(plan, described, network)
    warnings += warnings_of_devices(plan, devices)
    print_report(plan, results, analysis, described, network, warnings)
    if outputs.explains:
        print(*explain(explained), sep="\n")
    report = make_report(plan, results, analysis, described, network, warnings, found[0].get("turns"))
    texts: dict[Path, str | bytes] = {}
    if outputs.json is not None:
        texts[outputs.json] = to_json(report)
    if outputs.csv is not None:
        texts[outputs.csv] = to_csv(report)
    if outputs.plot is not None:
        texts[outputs.plot] = plot(report, outputs.plot.suffix)
    write_all(texts)
    return 1 if any(result.wrong or result.hash_equal is False for result in results) else 0


def read_results(plan: Plan, found: Sequence[Mapping[str, Any]]) -> list[Result]:
    """The combined results of all workers, with predicted times."""
    results = combine([[Measurement(**row) for row in each["found"]] for each in found], plan.operation)
    measured = links_from(found[0]["links"])
    given = None
    if plan.net is not None:
        cost_ns = message_ns(plan.net, plan.num_peers, found[0]["calibration_s"])
        given = links_of(plan.net, plan.num_peers, cost_ns, plan.per_host)
    return [predict(plan, result, given, measured) for result in results]


def _read(path: Path) -> str:
    if not path.is_file():
        raise ShoalError(f"peer {path.stem} ended without results; those of the others are not shown")
    return path.read_text()


def predict(plan: Plan, result: Result, given: Links | None, measured: Links | None) -> Result:
    """Add the times that the model predicts: over the links of `--net`, and over those that all peers have measured."""
    times_s = [
        None if links is None else predicted_s(plan, result.algorithm, result.mostly_ran, result.size_bytes, links)
        for links in (given or measured, measured)
    ]
    num_bytes = wire_bytes(plan, result.mostly_ran, result.size_bytes, measured)
    return replace(result, wire_bytes=num_bytes, predicted_s=times_s[0], predicted_by_rows_s=times_s[1])
