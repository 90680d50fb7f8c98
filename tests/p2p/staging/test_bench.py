"""The benchmarks of a GPU, with the stand-in: the code runs, and the numbers mean nothing."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench import gpu_tests, here, staging
from p2p.staging import cuda_devices
from tests.p2p.staging.standin import StandIn

pytestmark = pytest.mark.light
NEEDS_NONE = pytest.mark.skipif(bool(cuda_devices()[0]), reason="there is a GPU")


@pytest.fixture(autouse=True)
def threads_of_autograd() -> Iterator[None]:
    """Restores autograd's threads, which a model on a device switches off."""
    before = torch._C._is_multithreading_enabled()
    yield
    torch.autograd.set_multithreading_enabled(before)


@pytest.mark.long
def test_the_stand_in_goes_through_all_that_a_gpu_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["staging", "--device", "stand-in", "--mib", "1", "--width", "16"])
    with pytest.raises(SystemExit) as ended:
        staging.main()
    report = json.loads((tmp_path / "staging.json").read_text())
    assert ended.value.code == 0, report
    names = ["cpu pinned", "cpu peers", "read-only", "calls", "border", "refusal", "callback", "core", "1 MiB", "step"]
    assert [*report["found"]] == names and report["found"]["step"]["parameters"] == 4 * (16 * 16 + 16)
    assert all(f"  {name}" in (tmp_path / "staging.log").read_text() for name in names)


def test_where_nothing_can_be_registered_that_is_said_of_borders_too() -> None:
    device = StandIn(0)
    device.refuses_every = 1
    found = staging._border(device, "cpu")
    assert not found.is_well and found.says.startswith("nothing was registered (the stand-in refuses")


def test_the_stages_of_a_step_are_seen_each_with_its_end() -> None:
    _, stages = staging.steps(StandIn(0), "cpu", 16)
    assert {name for name, _, _ in stages} == {"backward", "D2H", "H2D"}
    assert all(begun <= ended for _, begun, ended in stages)


def test_what_was_carried_to_a_machine_is_found_by_its_peers_behind_what_is_installed_there() -> None:
    assert here.python_path(["", "/installed", str(here.WHEELS)]) == [str(here.ROOT), "/installed", str(here.WHEELS)]
    assert here.python_path(["", "/installed"]) == [str(here.ROOT)]


def test_every_file_of_peers_that_asks_for_a_gpu_is_run_where_there_is_one() -> None:
    files = (each for each in (here.ROOT / "tests" / "live").glob("test_*.py") if "pytest.mark.gpu" in each.read_text())
    assert {f"tests/live/{each.name}" for each in files} == {each for each in gpu_tests.PLACES if "/live/" in each}


def test_tests_that_a_signal_has_ended_have_failed() -> None:
    assert [gpu_tests.worst(codes) for codes in ([0, 0], [1, 0], [-11, 0], [-6, 1])] == [0, 1, 11, 6]


@NEEDS_NONE
def test_without_a_gpu_one_line_says_why_and_the_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        staging.found_device("cuda")
    assert ended.value.code == 2 == gpu_tests.main()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("bench.staging: no GPU: torch") and second.startswith("make test-gpu: no GPU: torch")
