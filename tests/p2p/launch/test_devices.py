"""The GPU and the cores of each peer, and refusals and messages about them before anything starts."""

from pathlib import Path

import pytest

from p2p.errors import LaunchError
from p2p.launch.config import LaunchConfig, parse_num_peers, peer_environment
from p2p.launch.devices import (
    Gpu,
    ask_driver,
    cores_of_peer,
    count_devices,
    describe,
    parse,
    parse_cores,
    visible_devices,
)
from p2p.launch.target import Target

QUERIED = """0, GPU-5d5ba0d6-d33d, 00000000:07:00.0, NVIDIA H200
1, GPU-5d5c11aa-0001, 00000000:0F:00.0, NVIDIA H200
2, GPU-9e000000-0002, 00000001:47:00.0, NVIDIA H200
"""
LISTED = """GPU 0: NVIDIA H200 (UUID: GPU-5d5ba0d6-d33d)
GPU 1: NVIDIA H200 (UUID: GPU-5d5c11aa-0001)
  MIG 1g.18gb     Device  0: (UUID: MIG-c7384736-a75d)
  MIG 1g.18gb     Device  1: (UUID: MIG-a28ad590-3fda)
GPU 2: NVIDIA H200 (UUID: GPU-9e000000-0002)
"""
GPUS = parse(QUERIED, LISTED)
PLAIN = (GPUS[0], GPUS[2])


def given(names: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": names}


def test_devices_are_what_the_driver_offers(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert count_devices(tmp_path) == 2


def test_what_nvidia_smi_says_is_read() -> None:
    assert [(gpu.bus, gpu.name) for gpu in GPUS] == [
        ("0000:07:00.0", "NVIDIA H200"),
        ("0000:0f:00.0", "NVIDIA H200"),
        ("0001:47:00.0", "NVIDIA H200"),
    ]
    assert [gpu.parts for gpu in GPUS] == [(), ("MIG-c7384736-a75d", "MIG-a28ad590-3fda"), ()]


@pytest.mark.parametrize("said", ["exit 1", "echo 0, GPU-1, 00000000:3B:00.0, A; echo Unable to determine the handle"])
def test_a_driver_that_says_what_nobody_can_read_has_said_nothing(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_driver() == ()
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{said}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert ask_driver() == ()


def test_without_a_mask_each_gpu_is_named_by_its_uuid_and_one_that_is_cut_by_its_parts() -> None:
    assert visible_devices({}, GPUS) == (
        "GPU-5d5ba0d6-d33d",
        "MIG-c7384736-a75d",
        "MIG-a28ad590-3fda",
        "GPU-9e000000-0002",
    )
    assert visible_devices({}, ()) == () and visible_devices({}, (Gpu(), Gpu())) == ("0", "1")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("", ()), ("-1", ()), ("2,0", ("2", "0")), ("GPU-7a, 1", ("GPU-7a", "1")), ("3,-1,2", ("3",))],
)
def test_a_mask_is_respected_as_it_is_where_nobody_knows_better(mask: str, expected: tuple[str, ...]) -> None:
    assert visible_devices(given(mask), ()) == expected == visible_devices(given(mask), (Gpu(),))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("2,0", ("GPU-9e000000-0002", "GPU-5d5ba0d6-d33d")),
        ("1", ("1",)),
        ("GPU-9e", ("GPU-9e000000-0002",)),
        ("MIG-a28", ("MIG-a28ad590-3fda",)),
        ("MIG-GPU-5d5c11aa-0001/1/0", ("MIG-GPU-5d5c11aa-0001/1/0",)),
        ("0,-1,7", ("GPU-5d5ba0d6-d33d",)),
    ],
)
def test_names_of_a_mask_become_uuids(mask: str, expected: tuple[str, ...]) -> None:
    assert visible_devices(given(mask), GPUS) == expected


def test_numbers_stay_where_cuda_may_count_otherwise() -> None:
    mixed = (*PLAIN, Gpu("GPU-a1", "", "NVIDIA A2"))
    assert visible_devices(given("0,2"), mixed) == ("0", "2")
    assert visible_devices({**given("0,2"), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed) == (PLAIN[0].uuid, "GPU-a1")


@pytest.mark.parametrize(
    ("mask", "complaint"),
    [
        ("3", "CUDA_VISIBLE_DEVICES names device 3, and this host has 3: 0 to 2"),
        ("GPU-77", "has GPU-77, which is not a device of this host: GPU-5d5ba0d6-d33d, GPU-5d5c11aa-0001, MIG-c7"),
        ("0,GPU-5d5", "has GPU-5d5, which names more than one device"),
        ("MIG-0", "has MIG-0, which is not a device of this host"),
        ("MIG-GPU-77/1/0", "has MIG-GPU-77/1/0, which is not a device"),
        ("all", "has all, which is not a device of this host"),
        ("cuda:0", "has cuda:0, which is not a device"),
    ],
)
def test_names_of_nothing_are_refused(mask: str, complaint: str) -> None:
    for ask in (lambda: visible_devices(given(mask), GPUS), lambda: parse_num_peers("auto", given(mask), GPUS)):
        with pytest.raises(LaunchError) as error:
            ask()
        assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("environ", "gpus", "num_peers", "is_auto", "said"),
    [
        ({}, (), 1, True, "there is no GPU here, so -n auto is one peer, on the CPU"),
        (given(""), GPUS, 1, True, "CUDA_VISIBLE_DEVICES is '', so -n auto is one peer, on the CPU"),
        (given("-1"), (), 1, True, "CUDA_VISIBLE_DEVICES is '-1', so"),
        (given(""), GPUS, 3, False, "CUDA_VISIBLE_DEVICES is '', so no peer sees any of the 3 GPUs of this host"),
        (given(""), (), 3, False, ""),
        ({}, PLAIN, 2, True, ""),
        ({}, PLAIN, 5, False, "5 peers share 2 GPUs, which they use in turns: `-n auto` starts one peer for each"),
        (given("2"), GPUS, 2, False, "2 peers share the one GPU"),
        ({}, (), 5, False, ""),
    ],
)
def test_what_is_not_a_gpu_for_each_is_said(
    environ: dict[str, str], gpus: tuple[Gpu, ...], num_peers: int, is_auto: bool, said: str
) -> None:
    found = describe(environ, gpus, num_peers, is_auto=is_auto)
    assert found.startswith(said) and bool(found) == bool(said)


def test_the_number_of_peers_is_a_number_or_that_of_the_devices_or_one() -> None:
    assert parse_num_peers("3", {}, ()) == 3
    assert parse_num_peers("auto", {}, GPUS) == 4
    assert parse_num_peers("auto", given("0,1,2"), ()) == 3
    assert parse_num_peers("auto", given(""), GPUS) == 1
    with pytest.raises(LaunchError, match="-n is the number of peers, or `auto`, got 'many'"):
        parse_num_peers("many", {}, ())


def test_each_peer_sees_one_device_and_further_peers_begin_again() -> None:
    config = LaunchConfig(target=Target.of_command(["true"]), num_peers=2, swarm="pond", gpus=PLAIN)
    seen = [peer_environment(config, 0, {}, place) for place in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in seen] == [PLAIN[0].uuid, PLAIN[1].uuid, PLAIN[0].uuid]
    assert {each["LOCAL_RANK"] for each in seen} == {"0"}


def test_peers_share_the_cores_near_their_device(tmp_path: Path) -> None:
    names, usable = visible_devices({}, PLAIN), frozenset(range(16))

    def cores(num_peers: int) -> list[set[int]]:
        places = range(num_peers)
        return [set(cores_of_peer(each, num_peers, names, PLAIN, usable, tmp_path)) for each in places]

    assert cores(2) == [set(), set()]
    for gpu, near in zip(PLAIN, ("0-7,32-39", "8-15,40-47"), strict=True):
        folder = tmp_path / "bus/pci/devices" / gpu.bus
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(f"{near}\n")
    assert cores(2) == [set(range(8)), set(range(8, 16))]
    assert cores(4) == [{0, 1, 2, 3}, {8, 9, 10, 11}, {4, 5, 6, 7}, {12, 13, 14, 15}]
    assert cores(3) == [{0, 1, 2, 3}, set(range(8, 16)), {4, 5, 6, 7}]
    assert all(len(each) == 1 for each in cores(40))
    assert cores_of_peer(5, 2, names, PLAIN, usable, tmp_path) == set(range(8, 16))  # a second launch on this host
    assert not cores_of_peer(0, 2, (), PLAIN, usable, tmp_path)
    assert not cores_of_peer(0, 2, names, PLAIN, frozenset(range(8)), tmp_path)  # no restriction


def test_lists_of_cores_are_read() -> None:
    assert parse_cores("0-2,7,9-9\n") == {0, 1, 2, 7, 9} and parse_cores("\n") == set()
