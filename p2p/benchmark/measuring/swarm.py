"""Benchmarks in a swarm: peers that wait in it (`shoal bench --serve`), and one that brings a plan (`--swarm`).

The plan is shared by an all-gather of bytes in which one row is not empty; the plan, its rounds and its results are
committed operations like any other. A plan is numbers and names, checked by every peer; it contains no code, and is
limited by `MOST_BYTES` and `MOST_S`. A peer that is lost during a run ends it, for all peers at the same step; a peer
that joins during a run gets an operation mismatch, and joins again.
"""

import json
import platform
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from p2p.config import LoopConfig
from p2p.device import Device
from p2p.errors import LaunchError, OperationInterrupted, OperationMismatch, RootLost, ShoalError
from p2p.joining import join_as
from p2p.peer import Peer
from p2p.staging import cuda_devices

from ..arrays import Array
from ..plan import CPU, EARLY, Plan, format_size, whole_sizes
from ..roles import ALL_REDUCE
from .contenders import SHOAL, check_all_are_there
from .link_warmup import warm_up_links, warmup_sizes
from .storage import Find, HostStorage, Storage, storage_of
from .worker import Bench, PeerExchange, calibrate, links_of

ROW_BYTES: Final = 16 << 10
"""Size of a plan as JSON, at most."""
MOST_BYTES: Final = 256 << 20
MOST_S: Final = 3600.0
MOST_ROUNDS: Final = 10_000
MOST_WARMUP: Final = 100
"""Most warm-up rounds of each size: no time limit ends them."""
LOOK_S: Final = 0.5
"""Interval at which waiting peers ask each other for a plan."""
REJOIN_S: Final = 10.0
"""A peer that came in the middle of a run waits this long: each attempt changes the view of the peers that measure."""
WAIT_S: Final = 24 * 3600.0
MAY_DIFFER: Final = (
    *(
        "n",
        "algos",
        "root",
        "b",
        "e",
        "f",
        "sizes-from",
        "dtype",
        "iters",
        "duration",
        "until",
        "warmup",
        "json",
        "csv",
    ),
    *("plot", "explain", "device", "serve", "swarm", "seeds", "bind", "key", "script", "1", "2", "3"),
)
"""Parts of the run description that may differ: they do not affect the benchmark."""
RUN_ENDING_ERRORS: Final = (OperationInterrupted, RootLost)

JoinArguments = Mapping[str, Any]
"""How to join: arguments of `p2p.join`."""


def swarm_of(name: str) -> str:
    """The swarm's name for the given name; distinct from the names of training swarms."""
    return f"bench-{name}"


def check(plan: Plan) -> None:
    """Raise LaunchError if the plan is not for a swarm, or exceeds the limits."""
    if not plan.swarm:
        raise LaunchError("--swarm needs the name of the swarm that peers wait in, got ''")
    if plan.schedules:
        raise LaunchError("--swarm carries no code to its peers: leave --schedule out")
    if plan.net is not None or plan.baseline is not None:
        raise LaunchError("--swarm is for peers that wait: leave --net and --baseline out")
    if ways := [name for name in plan.algorithms if name.partition("@")[2] not in ("", EARLY)]:
        raise LaunchError(f"--swarm: its peers decide the way, so {', '.join(ways)} cannot be measured: leave out @")
    if plan.sizes_bytes[-1] > MOST_BYTES:
        raise LaunchError(f"--swarm takes up to {format_size(MOST_BYTES)}, got {format_size(plan.sizes_bytes[-1])}")
    if plan.slowed or plan.turns is not None or plan.num_warmup > MOST_WARMUP:
        raise LaunchError(f"--swarm slows no peer, takes no turns, and at most {MOST_WARMUP} rounds of --warmup")
    num_rounds = len(plan.sizes_bytes) * (plan.num_warmup + (plan.num_iters or 0))
    if num_rounds > MOST_ROUNDS or (plan.duration_s or 0) > MOST_S:
        raise LaunchError(
            f"--swarm takes up to {MOST_ROUNDS} rounds and {MOST_S:g} s, got {num_rounds} and {plan.duration_s or 0:g}"
        )
    if len(plan.to_json()) >= ROW_BYTES:
        raise LaunchError(f"--swarm takes plans of less than {ROW_BYTES} bytes, got {len(plan.to_json())}: fewer sizes")


class Storages:
    """Storages of one peer: the plan determines which one it uses, and the plan comes after the peer has joined."""

    def __init__(self, find: Find) -> None:
        """`find`: returns the devices of this process, of which the first is used."""
        self._find = find
        self._of: dict[str, Storage] = {CPU: HostStorage()}
        self._taken = self._of[CPU]

    def device_of(self, tensor: Any) -> Device:
        """As of `LoopConfig`."""
        return self._taken.device_of(tensor)

    def take(self, plan: Plan) -> Storage:
        """The storage for a plan; later plans reuse it. Raises ShoalError if this host has no such device."""
        if plan.device not in self._of:
            self._of[plan.device] = storage_of(plan, 0, self._find)
        self._taken = self._of[plan.device]
        return self._taken


def serve(name: str, told: JoinArguments, find: Find = cuda_devices) -> int:
    """Measure the plans of other peers until this process is told to end; `find`: returns the devices that it sees."""
    storages = Storages(find)
    say(f"waits in swarm {swarm_of(name)} for `shoal bench OPERATION --swarm {name}`")
    while True:
        try:
            with _enter(name, told, storages) as peer:
                while True:
                    try:
                        _serve_one(peer, storages)
                    except RUN_ENDING_ERRORS as error:
                        say(f"the run has ended: {error}")
        except OperationMismatch:
            say(f"a run is under way: this peer tries again in {REJOIN_S:g} s")
            threading.Event().wait(REJOIN_S)


def _serve_one(peer: Peer, storages: Storages) -> None:
    while (said := _offer(peer, b"")) is None:
        pass
    try:
        plan = _plan_of(peer, said)
    except (ShoalError, AttributeError, KeyError, TypeError, ValueError) as error:
        say(f"a plan was refused: {error}")
        return
    say(f"measures {plan.operation} of {len(plan.sizes_bytes)} sizes with {plan.num_peers} peers")
    try:
        measure(peer, plan, storages)
        say("has measured it")
    except RunEnded as error:
        say(f"the run has ended: {error}")


def submit_plan(plan: Plan, told: JoinArguments, find: Find) -> tuple[Plan, list[dict[str, Any]]]:
    """Have the swarm of `plan` measure it, with `plan.num_peers` peers at least.

    Returns:
        The plan as it was carried out, and the results of each peer, by rank.

    Raises:
        ShoalError: a peer left or joined in the middle, or has no such device.
    """
    assert plan.swarm is not None
    check(plan)
    mine, said, num_there, storages = plan.to_json().encode(), b"", -1, Storages(find)
    with _enter(plan.swarm, told, storages) as peer:
        while True:
            is_there = peer.world_size >= plan.num_peers
            if not is_there and num_there != peer.world_size:
                num_there = peer.world_size
                what = f"{num_there} of {plan.num_peers} peers are there: start `shoal bench --serve --swarm"
                say(f"{what} {plan.swarm}` elsewhere")
            said = _offer(peer, mine if is_there else b"") or b""
            if said:
                agreed = _plan_of(peer, said)
                try:
                    found = measure(peer, agreed, storages)
                except RunEnded as error:
                    raise ShoalError(str(error)) from None
                if said == mine:
                    return agreed, found
                say("has measured an earlier plan of another peer")


def _enter(name: str, told: JoinArguments, storages: Storages) -> Peer:
    ours = {"swarm": swarm_of(name), "min_peers": 1, "step_timeout_s": WAIT_S, "may_differ": MAY_DIFFER}
    given = {key: value for key, value in told.items() if value is not None}
    peer = join_as({**given, **ours, "loop": LoopConfig(device_of=storages.device_of)})
    peer.wait_view()
    return peer


def _offer(peer: Peer, plan: bytes) -> bytes | None:
    """The plan of the first rank that has one, the same at all peers; None, after a pause: no rank has one."""
    row = np.zeros(ROW_BYTES, np.uint8)
    row[: len(plan)] = np.frombuffer(plan, np.uint8)
    rows: Array = peer.all_gather(row)
    for each in rows:
        if each[0]:
            return bytes(each).rstrip(b"\0")
    threading.Event().wait(LOOK_S)
    return None


def _plan_of(peer: Peer, said: bytes) -> Plan:
    """The plan for the peers of the current view, limited to `MOST_S`."""
    plan, num_peers = Plan.from_json(said.decode()), peer.world_size
    check(plan)
    sizes_bytes = whole_sizes(plan.operation, plan.sizes_bytes, num_peers, plan.dtype)
    return replace(plan, num_peers=num_peers, sizes_bytes=sizes_bytes, duration_s=plan.duration_s or MOST_S)


class RunEnded(Exception):
    """The run ended, at the same step at all peers: members changed during it, or one has no device to measure on."""


def measure(peer: Peer, plan: Plan, storages: Storages) -> list[dict[str, Any]]:
    """Carry out the plan; returns the results of each rank."""
    before = {member.peer_id for member in peer.view.members} if peer.view is not None else set[str]()
    table = PeerExchange(peer, plan.num_peers, peer.rank)
    try:
        storage = _agree_on_storage(table, plan, storages)
        contenders = [SHOAL[name.partition("@")[2]](peer, name, plan, storage) for name in plan.algorithms]
        calibration_s = calibrate(table)
        warm_up_links(table, warmup_sizes(plan))
        bench = Bench(plan, contenders, peer.rank, is_single_host=False)
        bench.run(table)
        calibration_s += calibrate(table)
        explained = [peer.explain(size) for size in plan.sizes_bytes] if plan.operation == ALL_REDUCE else []
        found = {"found": bench.written(), "explained": explained}
        device = storage.said()
        device = device and {**device, "place": f"{platform.node()} {device['place']}"}
        said = found | {"calibration_s": calibration_s, "links": links_of(peer), "device": device}
        return [json.loads(text) for text in _exchange(table, json.dumps(said).encode())]
    except ShoalError as error:
        if isinstance(error, OperationInterrupted):
            error = _peer_loss_error(peer, plan, error)
        now = {member.peer_id for member in peer.view.members} if peer.view is not None else set[str]()
        if now == before:
            raise
        gone, came = ", ".join(sorted(before - now)), ", ".join(sorted(now - before))
        changed = "; ".join([f"peer {gone} is gone"] * bool(gone) + [f"peer {came} has come"] * bool(came))
        raise RunEnded(f"{changed}: {error}") from None


def _peer_loss_error(peer: Peer, plan: Plan, interrupted: OperationInterrupted) -> ShoalError:
    """The error that names the loss of a peer, if that interrupted the operation; otherwise `interrupted`.

    Waits for a barrier first: when the operation is interrupted, a peer may not know yet which one is gone.
    """
    peer.barrier()
    try:
        check_all_are_there(peer, plan.num_peers)
    except ShoalError as error:
        return error
    return interrupted


def _agree_on_storage(table: PeerExchange, plan: Plan, storages: Storages) -> Storage:
    """This peer's storage for the plan.

    Raises:
        RunEnded: a peer, at which all peers end the run, has no such storage.
    """
    if plan.device == CPU:
        return storages.take(plan)
    storage, why = None, ""
    try:
        storage = storages.take(plan)
    except ShoalError as error:
        why = str(error)
    has_one = table.exchange(np.array([float(storage is not None)]))[:, 0]
    if storage is None:
        raise RunEnded(f"this peer cannot measure it: {why}")
    if not has_one.all():
        members = table.peer.view.members if table.peer.view is not None else ()
        named = ", ".join(member.peer_id for member, has in zip(members, has_one, strict=True) if not has)
        raise RunEnded(
            f"peer {named} has no GPU for --device {plan.device}: end its `shoal bench --serve`, or leave --device out"
        )
    return storage


def _exchange(table: PeerExchange, mine: bytes) -> list[bytes]:
    """The bytes of all peers, by rank."""
    lengths = table.exchange(np.array([float(len(mine))]))[:, 0].astype(int)
    row = np.zeros(lengths.max(), np.uint8)
    row[: len(mine)] = np.frombuffer(mine, np.uint8)
    rows: Array = table.peer.all_gather(row)
    return [bytes(each[:length]) for each, length in zip(rows, lengths, strict=True)]


def say(line: str) -> None:
    print(f"shoal: {line}", file=sys.stderr, flush=True)
