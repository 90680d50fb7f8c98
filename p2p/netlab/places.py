"""Where hosts are: addresses, names, and what a command is told of them. Reads nothing."""

from collections.abc import Mapping, Sequence
from typing import Final

from ..launch.config import num_usable_cores
from .config import HostSettings

PORT: Final = 7400
"""Of the first peer of each host."""
NUM_SEEDS: Final = 3
TORCH_PORT: Final = 29500
MEMORY: Final = "/dev/shm"
FOLDER: Final = f"{MEMORY}/lab"
"""Private to the host, in memory, and gone with it."""
HOME: Final = f"{FOLDER}/home"
KEY: Final = f"{FOLDER}/swarm.key"


def address(host: int) -> str:
    """Its IPv4 address, 10.77.0.1 of the first."""
    return f"10.77.{(host + 1) >> 8}.{(host + 1) & 255}"


def network(host: int) -> str:
    """The same with the length of what all addresses have in common."""
    return f"{address(host)}/16"


def names(hosts: Sequence[HostSettings]) -> str:
    """/etc/hosts of each."""
    lines = ["127.0.0.1 localhost", *(f"{address(index)} {host.name}" for index, host in enumerate(hosts))]
    return "\n".join(lines) + "\n"


def environment(host: int, num_hosts: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What a command in a host is told besides `environ`: who it is, and where the others are."""
    addresses = [address(index) for index in range(num_hosts)]
    num_threads = max(1, num_usable_cores() // num_hosts)
    return {
        "LAB_HOST": str(host),
        "LAB_ADDRESS": addresses[host],
        "LAB_ADDRESSES": ",".join(addresses),
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(TORCH_PORT),
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", str(num_threads)),
        "RANK": str(host),
        "WORLD_SIZE": str(num_hosts),
        "SHOAL_HOME": HOME,
        "SHOAL_KEY": KEY,
        "SHOAL_BIND": f"{addresses[host]}:{PORT}",
        "SHOAL_SEEDS": ",".join(f"{seed}:{PORT}" for seed in addresses[:NUM_SEEDS]),
    }
