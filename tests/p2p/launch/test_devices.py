"""How many GPUs peers can see, and what becomes of `-n`."""

from pathlib import Path

import pytest

from p2p.errors import LaunchError
from p2p.launch.config import parse_num_peers
from p2p.launch.devices import visible_devices


def test_devices_are_what_the_driver_offers(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_devices({}, tmp_path) == ("0", "1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", ()), ("-1", ()), ("2,0", ("2", "0")), ("GPU-7a, 1", ("GPU-7a", "1")), ("3,-1,2", ("3",))],
)
def test_a_mask_that_is_there_is_respected(given: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": given}, tmp_path) == expected


def test_the_number_of_peers_is_a_number_or_that_of_the_devices_or_one() -> None:
    assert parse_num_peers("3", {}) == 3
    assert parse_num_peers("auto", {"CUDA_VISIBLE_DEVICES": "0,1,2"}) == 3
    assert parse_num_peers("auto", {"CUDA_VISIBLE_DEVICES": ""}) == 1
    with pytest.raises(LaunchError, match="-n is the number of peers, or `auto`, got 'many'"):
        parse_num_peers("many", {})
