"""Single parts of a lab: devices, reasons for missing namespaces, frames, lateness, the end of a run."""

import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from p2p.errors import LabError
from p2p.netlab.config import LabConfig
from p2p.netlab.devices import IpCommand, find
from p2p.netlab.emulator import Lateness
from p2p.netlab.namespaces import why_not
from p2p.netlab.packets import measure
from p2p.netlab.run import summary


def test_without_ip_and_pyroute2_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with pytest.raises(LabError, match=re.escape("needs `ip` or pyroute2")) as caught:
        find(path="")
    assert "apt install iproute2" in str(caught.value) and "pip install 'shoal[lab]'" in str(caught.value)


def test_ip_is_taken_where_it_is(tmp_path: Path) -> None:
    program = tmp_path / "ip"
    program.write_text("#!/bin/sh\necho it is Tuesday >&2\nexit 1\n")
    program.chmod(0o755)
    found = find(path=str(tmp_path))
    assert isinstance(found, IpCommand)
    with pytest.raises(LabError, match="could not make the lab's devices: it is Tuesday"):
        found.bring_up("10.77.0.1/16")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"kernel/apparmor_restrict_unprivileged_userns": "1", "user/max_user_namespaces": "100"},
            "kernel.apparmor_restrict_unprivileged_userns is 1: an administrator may allow it "
            "(sysctl -w kernel.apparmor_restrict_unprivileged_userns=0)",
        ),
        (
            {"kernel/unprivileged_userns_clone": "0", "user/max_user_namespaces": "0"},
            "user.max_user_namespaces is 0 and kernel.unprivileged_userns_clone is 0: an administrator may allow it "
            "(sysctl -w user.max_user_namespaces=10000, sysctl -w kernel.unprivileged_userns_clone=1)",
        ),
        (
            {"kernel/apparmor_restrict_unprivileged_userns": "0"},
            "look at user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns; a container needs a security profile",
        ),
    ],
)
def test_the_setting_that_forbids_namespaces_is_named(tmp_path: Path, values: dict[str, str], said: str) -> None:
    for name, value in values.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{value}\n")
    text = why_not("Operation not permitted", 65534, tmp_path)
    assert text.startswith("cannot make namespaces as user 65534: Operation not permitted; ")
    assert said in text


def frame(num_bytes: int, gso_type: int, gso_size: int) -> bytearray:
    """A frame as from the kernel: virtio_net_hdr, Ethernet, IPv4, then TCP with a header of 32 bytes, or UDP."""
    header = struct.pack("=BBHHHH", 1, gso_type, 0, gso_size, 34, 16)
    transport = bytearray(num_bytes - 20)
    transport[12] = 0x80
    return bytearray(header) + bytes(14) + bytes(20) + transport


@pytest.mark.parametrize(
    ("num_bytes", "gso_type", "gso_size", "measured"),
    [
        (1500, 0, 0, (1500, 1)),
        (52 + 1448, 1, 1448, (1500, 1)),
        (52 + 2 * 1448, 1, 1448, (3000, 2)),
        (52 + 2 * 1448 + 1, 1, 1448, (3053, 3)),
        (28 + 4 * 1000, 5, 1000, (4112, 4)),
    ],
)
def test_a_frame_is_as_many_packets_as_it_would_be_cut_into(
    num_bytes: int, gso_type: int, gso_size: int, measured: tuple[int, int]
) -> None:
    data = frame(num_bytes, gso_type, gso_size)
    assert measure(data, len(data)) == measured


def test_lateness_is_said_by_its_percentiles() -> None:
    lateness = Lateness()
    assert lateness.percentile_ns(0.99) == 0
    for late_ns in [1_000] * 98 + [400_001, 3_000_000_000]:
        lateness.note(late_ns)
    assert lateness.percentile_ns(0.5) == 10_000
    assert lateness.percentile_ns(0.99) == 410_000
    assert lateness.percentile_ns(1.0) == lateness.max_ns == 3_000_000_000


def shown(late_us: float, **drops: int) -> dict[str, Any]:
    counters = {f"dropped_{why}": drops.get(why, 0) for why in ("queue", "loss", "mtu", "cut")}
    late = {"p50": 20.0, "p99": late_us, "max": late_us}
    return {"lateness_us": late, "pairs": [{"packets": 1234, **counters}], "num_missed": drops.get("missed", 0)}


def test_a_run_that_was_late_is_marked() -> None:
    config = LabConfig.uniform(2, "delay=20ms")
    assert summary(shown(1900, loss=3, cut=1500), config) == [
        "1,234 packets, dropped 3 by loss, 1,500 by cut; lateness p50 0.02 ms, p99 1.90 ms"
    ]
    assert "late by more than 10% of the shortest delay, 20 ms" in summary(shown(2100), config)[1]
    assert summary(shown(90_000), LabConfig.uniform(2))[1:] == []
    assert "7 frames were lost by the lab itself" in summary(shown(0, missed=7), config)[1]
