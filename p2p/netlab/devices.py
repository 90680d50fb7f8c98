"""Network devices, created by `ip` of iproute2 or by pyroute2, whichever is installed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Final, Protocol

from ..errors import LabError

INSIDE: Final = "eth0"
"""A host's only device, besides `lo`."""
SAME_ADDRESS: Final = "02:00:00:00:00:01"
"""MAC address of the devices of all hosts. Without ARP, the kernel sends each frame to the address of the sending
device, so every host accepts it."""

_SBIN: Final = "/usr/sbin:/sbin"


class Devices(Protocol):
    """The operations that both implementations offer. All raise LabError."""

    def create_veth_pairs(self, pids: Sequence[int]) -> None:
        """Create a pair of devices per process: `veth0`, `veth1`, ... here, `eth0` in its network namespace."""

    def bring_up(self, address: str) -> None:
        """In a host: bring its devices up, with this address (`10.77.0.1/16`)."""

    def set_gso_max_segs(self, num_packets: int) -> None:
        """In a host: limit the number of packets per frame of its device."""


def find(path: str | None = None) -> Devices:
    """Return the available implementation, `ip` first; LabError if neither is installed."""
    given = os.environ.get("PATH", os.defpath) if path is None else path
    if command := shutil.which("ip", path=f"{given}:{_SBIN}" if path is None else path):
        return IpCommand(command)
    try:
        import pyroute2
    except ImportError:
        raise LabError(
            "the lab needs `ip` or pyroute2 to make network devices, and neither is here: install iproute2 "
            "(apt install iproute2), or pip install 'shoal[lab]'"
        ) from None
    return Pyroute(pyroute2)


class IpCommand:
    """Devices created by `ip -batch`: one process for all commands."""

    def __init__(self, command: str) -> None:
        self._command = command

    def create_veth_pairs(self, pids: Sequence[int]) -> None:
        lines: list[str] = []
        for index, pid in enumerate(pids):
            lines += (
                f"link add name veth{index} type veth peer name {INSIDE} netns {pid}",
                f"link set dev veth{index} up",
            )
        self._run(*lines)

    def bring_up(self, address: str) -> None:
        self._run(
            "link set dev lo up",
            f"link set dev {INSIDE} address {SAME_ADDRESS} arp off",
            f"addr add {address} dev {INSIDE}",
            f"link set dev {INSIDE} up",
        )

    def set_gso_max_segs(self, num_packets: int) -> None:
        self._run(f"link set dev {INSIDE} gso_max_segs {num_packets}")

    def _run(self, *lines: str) -> None:
        text = "\n".join(lines) + "\n"
        done = subprocess.run([self._command, "-batch", "-"], input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{self._command} could not make the lab's devices: {' '.join(done.stderr.split())}")


class Pyroute:
    """Devices created by pyroute2, over netlink."""

    def __init__(self, pyroute2: Any) -> None:
        self._pyroute2 = pyroute2

    def create_veth_pairs(self, pids: Sequence[int]) -> None:
        with self._route() as route:
            for index, pid in enumerate(pids):
                name = f"veth{index}"
                route.link("add", ifname=name, kind="veth", peer={"ifname": INSIDE, "net_ns_pid": pid})
                route.link("set", index=route.link_lookup(ifname=name)[0], state="up")

    def bring_up(self, address: str) -> None:
        host, _, length = address.partition("/")
        with self._route() as route:
            inside = route.link_lookup(ifname=INSIDE)[0]
            route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
            route.link("set", index=inside, address=SAME_ADDRESS, arp=False)
            route.addr("add", index=inside, address=host, prefixlen=int(length))
            route.link("set", index=inside, state="up")

    def set_gso_max_segs(self, num_packets: int) -> None:
        with self._route() as route:
            route.link("set", index=route.link_lookup(ifname=INSIDE)[0], gso_max_segs=num_packets)

    def _route(self) -> Any:
        return _Checked(self._pyroute2)


class _Checked:
    """A context with an IPRoute, which turns its errors into LabErrors."""

    def __init__(self, pyroute2: Any) -> None:
        self._pyroute2 = pyroute2

    def __enter__(self) -> Any:
        self._route = self._pyroute2.IPRoute()
        return self._route

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._route.close()
        if isinstance(error, self._pyroute2.NetlinkError):
            raise LabError(f"pyroute2 could not make the lab's devices: {error}") from error
