"""Peers of a host as OpenMetrics text 1.0, for Prometheus and the like. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..telemetry.snapshot import Snapshot
from .local import Condition, PeerStatus
from .report import last_step, latest_snapshot

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Sample = tuple[str, str, float]
"""Family, labels, value."""
FAMILIES: Final = {
    "shoal_members": ("gauge", "Members of the newest view that is known."),
    "shoal_view": ("gauge", "Number of that view."),
    "shoal_peers": ("gauge", "Peers of this host, by the state of their processes."),
    "shoal_step": ("gauge", "The last step that a peer has committed."),
    "shoal_steps_per_second": ("gauge", "Over the last seconds."),
    "shoal_step_part_seconds": ("gauge", "Compute, exchange and wait of a step; they add up to it."),
    "shoal_snapshot_age_seconds": ("gauge", "Since the last report of a peer."),
    "shoal_resident_bytes": ("gauge", "Memory of the process."),
    "shoal_open_files": ("gauge", "Descriptors of the process."),
    "shoal_counted_steps": ("counter", "Steps with this peer on the receipt."),
    "shoal_samples": ("counter", "Samples of this peer that count."),
    "shoal_dropped_frames": ("counter", "Frames that changed nothing, by reason."),
    "shoal_change_waited_seconds": ("gauge", "What the last change of the view has cost."),
    "shoal_steps_lost": ("gauge", "By that change; 0, as long as the protocol holds."),
    "shoal_logged": ("gauge", "Values that the script passed to peer.log."),
}


def openmetrics(found: Mapping[str, Sequence[PeerStatus]]) -> str:
    """The whole text; names and their order do not depend on which peers exist."""
    samples: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for swarm, peers in sorted(found.items()):
        for name, labels, value in _of_swarm(swarm, peers):
            suffix = "_total" if FAMILIES[name][0] == "counter" else ""
            samples[name].append(f"{name}{suffix}{{{labels}}} {_number(value)}")
    lines = []
    for name, (kind, text) in FAMILIES.items():
        lines += [f"# TYPE {name} {kind}", f"# HELP {name} {text}"]
        if name.endswith(("_seconds", "_bytes")):
            lines.insert(-1, f"# UNIT {name} {name.rpartition('_')[2]}")
        lines += samples[name]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _of_swarm(swarm: str, peers: Sequence[PeerStatus]) -> Iterator[Sample]:
    own = _labels(swarm=swarm)
    if (latest := latest_snapshot(peers)) is not None:
        yield "shoal_members", own, len(latest.members)
        yield "shoal_view", own, latest.view
    for condition in Condition:
        number = sum(looked.condition is condition for looked in peers)
        yield "shoal_peers", f"{own},{_labels(condition=condition.value)}", number
    for looked in peers:
        who = looked.seen.identity
        yield from _of_peer(looked, f"{own},{_labels(peer=who.name, peer_id=who.peer_id)}")


def _of_peer(looked: PeerStatus, own: str) -> Iterator[Sample]:
    snapshot = looked.seen.snapshot
    yield "shoal_step", own, last_step(looked.seen)
    yield "shoal_snapshot_age_seconds", own, round(looked.age_s, 3)
    if snapshot is None:
        return
    is_going_on = looked.condition in (Condition.RUNNING, Condition.ELSEWHERE)
    yield "shoal_steps_per_second", own, snapshot.pace.steps_per_s if is_going_on else 0.0
    if looked.condition is not Condition.DEAD:
        yield from _of_now(snapshot, own)
    yield "shoal_counted_steps", own, snapshot.counted.steps
    yield "shoal_samples", own, snapshot.counted.samples
    for reason, number in snapshot.dropped.items():
        yield "shoal_dropped_frames", f"{own},{_labels(reason=reason)}", number


def _of_now(snapshot: Snapshot, own: str) -> Iterator[Sample]:
    """What a dead peer has no more: memory, say, or a loss."""
    for part in ("compute", "exchange", "wait"):
        yield "shoal_step_part_seconds", f'{own},part="{part}"', getattr(snapshot.pace, f"{part}_s")
    yield "shoal_resident_bytes", own, snapshot.resident_bytes
    yield "shoal_open_files", own, snapshot.num_files
    if snapshot.change.view:
        yield "shoal_change_waited_seconds", own, snapshot.change.waited_s
        yield "shoal_steps_lost", own, snapshot.change.num_lost
    for name, value in snapshot.logged.items():
        yield "shoal_logged", f"{own},{_labels(name=name)}", value


def _labels(**labels: str) -> str:
    escaped = (
        (name, text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, text in labels.items()
    )
    return ",".join(f'{name}="{text}"' for name, text in escaped)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
