"""Addresses and names of hosts, and the environment variables of their commands. Reads no state."""

from collections.abc import Mapping, Sequence
from typing import Final

from ..launch.config import num_usable_cores
from .config import HostSettings

PORT: Final = 7400
"""Port of the first peer of each host."""
NUM_SEEDS: Final = 3
TORCH_PORT: Final = 29500
MEMORY: Final = "/dev/shm"
FOLDER: Final = f"{MEMORY}/lab"
"""A folder in memory, private to the host, which ends with it."""
HOME: Final = f"{FOLDER}/home"
KEY: Final = f"{FOLDER}/swarm.key"


def address(host: int) -> str:
    """IPv4 address of a host; the first has 10.77.0.1."""
    return f"10.77.{(host + 1) >> 8}.{(host + 1) & 255}"


def network(host: int) -> str:
    """Address of a host with the prefix length of the network."""
    return f"{address(host)}/16"


def names(hosts: Sequence[HostSettings]) -> str:
    """Content of /etc/hosts, the same in each host."""
    lines = ["127.0.0.1 localhost", *(f"{address(index)} {host.name}" for index, host in enumerate(hosts))]
    return "\n".join(lines) + "\n"


def environment(host: int, num_hosts: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that a command in a host gets in addition to `environ`: its own address and those of the others."""
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
