"""Findings of `shoal doctor`: on this machine, in made-up files, and on a stand-in for a device."""

import json
import resource
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collectives import CODECS, Array
from p2p.cli import app
from p2p.device import Mark
from p2p.doctor import devices, host
from p2p.doctor.command import parse_count
from p2p.doctor.devices import look_at_device
from p2p.doctor.lender import lent
from p2p.doctor.rounds import MEMBERS, cost_of_exchanges
from p2p.errors import LaunchError, ShoalError
from p2p.host.memory_left import MACHINE, MemoryLeft
from p2p.host.threads import ThreadsLeft
from p2p.staging import cuda_devices
from tests.p2p.staging.standin import StandIn

MIB = 1 << 20


def test_all_is_said_for_people_and_for_programs() -> None:
    said = CliRunner().invoke(app, ["doctor", "--parameters", "10M"], catch_exceptions=False)
    assert said.exit_code == 0
    shown = CliRunner().invoke(app, ["doctor", "--parameters", "10M", "--json"], catch_exceptions=False)
    found = json.loads(shown.stdout)
    names = ["versions", "cores", "memory", "arena", "shm", "files", "threads", "deaths", "lab"]
    names += ["numerics", "gradients"]
    assert [name for name in found if name in names] == names
    assert [line[2:17].strip() for line in said.stdout.splitlines()] == [*found]
    assert found["arena"]["is_well"] and found["gradients"]["arena_bytes"] == 80_000_000
    assert found["round int4"]["members"]["16"]["sent_bytes"] == 15 * found["round int4"]["payload_bytes"]
    if not cuda_devices()[0]:
        assert found["devices"]["says"].startswith("no GPU: ") and found["devices"]["number"] == 0


def test_each_codec_costs_a_payload_per_peer_and_what_does_not_fit_is_said() -> None:
    gradients, *rounds = cost_of_exchanges(10_000_000, arena_bytes=MIB, memory_bytes=10 * MIB)
    assert not gradients.is_well and "1.05 MB of the arena are there" in gradients.says
    assert [each.name for each in rounds] == [f"round {codec}" for codec in CODECS]
    for each in rounds:
        payload, members = each.facts["payload_bytes"], each.facts["members"]
        for n in MEMBERS:
            expected = {"sent_bytes": (n - 1) * payload, "held_bytes": n * payload, "is_held": n * payload <= 10 * MIB}
            assert members[str(n)] == expected
    assert [round(each.facts["payload_bytes"] / 10_000) for each in rounds] == [4000, 508, 133, 63, 17]


def test_a_device_is_tried_before_memory_is_registered_and_then_and_nothing_stays() -> None:
    device, clock = StandIn(0), count(0, 0.5)
    pinned, peers = look_at_device(device, "cpu", lambda: next(clock), MIB)
    assert pinned.is_well and pinned.facts["pinned"] == {
        "fetch_gb_per_s": 2 * MIB / 1e9,
        "store_gb_per_s": 2 * MIB / 1e9,
    }
    assert peers.is_well and peers.facts == {
        "read-only": False,
        "writable": True,
        "writable_times": {"register_s": 0.5, "store_gb_per_s": 2 * MIB / 1e9},
    }
    assert "read-only: no (the stand-in registers no memory that may only be read); writable: yes; " in peers.says
    assert device.num_pins == 3 and device.pinned == {} and device.num_copies == 5 * devices.NUM_COPIES


def test_bytes_of_another_process_that_do_not_arrive_as_they_are_end_the_look() -> None:
    class Wrong(StandIn):
        def store(self, source: Array, into: Any, after: Sequence[Mark]) -> Mark:
            mark = super().store(source, into, after)
            mark.wait()
            into[7] += len(self.pinned) == 1 and self.num_pins == 3
            return mark

    looked = look_at_device(Wrong(0), "cpu", lambda: next(clock), MIB)
    clock = count(0, 0.5)
    assert next(looked).is_well
    peers = next(looked)
    assert not peers.is_well and "read wrong bytes from a peer" in peers.says


def test_a_process_that_has_no_memory_to_share_is_named_with_its_reason() -> None:
    with (
        pytest.raises(ShoalError, match="could not share memory: there are no 17592186044416 bytes of memory"),
        lent(1 << 44),
    ):
        pass


def test_a_device_that_registers_nothing_is_named_with_the_reason() -> None:
    device, clock = StandIn(0), count(0, 0.5)
    device.refuses_every = 1
    pinned, peers = look_at_device(device, "cpu", lambda: next(clock), MIB)
    assert not pinned.is_well and "cannot be registered (the stand-in refuses each 1th)" in pinned.says
    assert not peers.is_well and peers.facts == {"read-only": False, "writable": False}
    assert device.num_copies == 2 * devices.NUM_COPIES


@pytest.mark.parametrize(
    ("limited_by", "of_memory", "quarter"),
    [
        (MACHINE, "no limit that is less", "a quarter of what this machine leaves"),
        ("/a/memory.max", "/a/memory.max leaves 8 GB", "a quarter of what /a/memory.max leaves"),
    ],
)
def test_what_limits_memory_is_named(limited_by: str, of_memory: str, quarter: str) -> None:
    left = MemoryLeft(8_000_000_000, limited_by)
    memory, arena = host.memory(left), host.arena(left)
    assert f"of the cgroup: {of_memory};" in memory.says and memory.facts["limited_by"] == limited_by
    assert memory.facts["left_bytes"] == left.num_bytes and quarter in arena.says


@pytest.mark.parametrize(
    ("hard", "peers", "is_well"),
    [(resource.RLIM_INFINITY, None, True), (1024, 48, False), (1280, 64, True), (9, 0, False)],
)
def test_open_files_are_counted_in_peers(hard: int, peers: int | None, is_well: bool) -> None:
    found = host.open_files((9, hard))
    assert found.facts["peers"] == peers and found.is_well == is_well and ("ulimit -Hn 1280" in found.says) != is_well


@pytest.mark.parametrize(("number", "peers", "is_well"), [(383, 63, False), (384, 64, True), (5, 0, False)])
def test_threads_are_counted_in_peers(number: int, peers: int, is_well: bool) -> None:
    found = host.threads(ThreadsLeft(number, 400, "raise /a/pids.max to {0}"))
    assert (found.facts, found.is_well) == ({"most": 400, "left": number, "peers": peers}, is_well)
    assert found.says.startswith(
        f"{number} more can start here ({400 - number} of 400 run), enough for {peers} peers: "
    )
    assert found.says.endswith(f"; for 64 raise /a/pids.max to {400 - number + 64 * 6}") != is_well


def test_where_no_limit_of_threads_is_known_that_is_said() -> None:
    found = host.threads(None)
    assert found.is_well and found.says.startswith("no limit is known that keeps 64 peers from starting; ")


def test_a_folder_that_workers_need_is_named_where_it_is_not_there(tmp_path: Path) -> None:
    assert not host.shared_files(tmp_path / "shm").is_well
    assert host.shared_files(tmp_path).facts["total_bytes"] > 0


@pytest.mark.parametrize(("text", "expected"), [("7", 7), ("124M", 124_000_000), ("1.5g", 1_500_000_000)])
def test_a_number_of_parameters_may_have_a_unit(text: str, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize("text", ["", "M", "0", "-1", "many", "1e99", "nan"])
def test_what_is_no_number_of_parameters_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match=r"--parameters must be a number such as 124M"):
        parse_count(text)
