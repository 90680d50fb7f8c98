import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from p2p.checkpoint.folder import check_is_usable, checkpoints, manifests, read_state, remove_leftovers
from p2p.checkpoint.manifest import FILE, TENSORS, Ancestry, UnusableCheckpointError, read_manifest
from p2p.checkpoint.writer import child_of
from p2p.errors import ShoalError
from tests.p2p.checkpoint.states import RUN, make_state, manifest, written


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("whole")
    written(folder, [12])
    yield folder / "00000012"


def look(path: Path) -> str:
    """The error in a checkpoint; empty: it is complete, and contains the written state."""
    try:
        state = read_state(path, read_manifest(path))
    except UnusableCheckpointError as error:
        return str(error)
    expected = make_state(12)
    assert state.tree == expected.tree
    assert [bytes(part) for part in state.tensors] == list(expected.tensors)
    return ""


def test_a_state_comes_back_bit_by_bit(whole: Path) -> None:
    assert look(whole) == ""
    manifest = read_manifest(whole)
    assert (manifest.step, manifest.ancestry.run, manifest.last_step) == (12, RUN, 15)
    assert manifest.num_bytes == sum(len(part) for part in make_state(12).tensors)


def test_others_find_each_tensor_by_its_name_with_its_elements_in_order(whole: Path) -> None:
    tensors = load_file(whole / TENSORS)
    torch.manual_seed(12)
    weight = torch.nn.Conv2d(2, 3, 2).weight
    assert tensors["model.0.weight"].shape == weight.shape
    assert (tensors["model.0.weight"] - weight).abs().max() < 0.01  # one step of the optimizer
    assert tensors["optimizer.state.0.exp_avg"].shape == weight.shape
    assert tensors["model.2.weight"].dtype == torch.bfloat16
    assert tensors["extra.0.$.$tensor"].tolist() == [0, 1, 2]
    assert tensors["extra.0.complex"].dtype == torch.uint8, "the format has no complex numbers"


@given(data=st.data())
def test_a_checkpoint_that_is_cut_at_any_byte_is_named(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = shutil.copytree(whole, tmp_path_factory.mktemp("cut") / whole.name)
    file = path / data.draw(st.sampled_from([FILE, TENSORS]))
    content = file.read_bytes()
    length = data.draw(st.integers(0, len(content)))
    file.write_bytes(content[:length])
    is_all = content[:length].rstrip(b"\n") == content.rstrip(b"\n") if file.name == FILE else length == len(content)
    why = look(path)
    assert (why == "") == is_all
    assert is_all or str(path) in why


@given(data=st.data())
@settings(max_examples=100)
def test_a_checkpoint_with_another_byte_is_named_or_means_the_same(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = shutil.copytree(whole, tmp_path_factory.mktemp("other") / whole.name)
    file = path / data.draw(st.sampled_from([FILE, TENSORS]))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    why = look(path)  # asserts that the state read equals the written one
    assert why == "" or str(path) in why


def test_the_first_tensor_that_differs_is_named(whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / whole.name)
    tensors = load_file(path / TENSORS)
    place = (path / TENSORS).read_bytes().index(tensors["model.0.bias"].numpy().tobytes())
    with (path / TENSORS).open("r+b") as file:
        file.seek(place)
        file.write(b"\x01\x02")
    assert look(path) == f"checkpoint {path}: tensor model.0.bias is damaged: its digest differs"


@pytest.mark.parametrize("missing", [FILE, TENSORS])
def test_a_checkpoint_without_one_of_its_files_is_named(whole: Path, tmp_path: Path, missing: str) -> None:
    path = shutil.copytree(whole, tmp_path / whole.name)
    (path / missing).unlink()
    assert missing in look(path)


def test_runs_that_share_a_folder_by_mistake_lose_no_checkpoint_to_each_other(tmp_path: Path) -> None:
    runs = [digits * 16 for digits in ("ab", "cd", "ef")]
    for run in runs:
        written(tmp_path, [5], run=run)
    names = ["00000005", "00000005~1", "00000005~2"]
    assert [path.name for path in checkpoints(tmp_path)] == names
    assert {read_manifest(path).ancestry.run for path in checkpoints(tmp_path)} == {*runs}
    for _ in range(2):
        written(tmp_path, [5], run=runs[-1])
    assert {read_manifest(path).ancestry.run for path in checkpoints(tmp_path)} == {*runs}


def test_the_last_ones_of_a_run_are_kept_and_those_of_another_are_left_alone(tmp_path: Path) -> None:
    written(tmp_path, [5], run="ef" * 16)
    written(tmp_path, [10, 20, 30], keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["00000005", "00000020", "00000030"]
    written(tmp_path, [15], start=2, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["00000005", "00000015", "00000030"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_who_writes_on_beside_a_later_start_keeps_what_it_writes(tmp_path: Path) -> None:
    first = written(tmp_path, [10], keep=2)
    written(tmp_path, [20, 30], start=2, keep=2)
    for step in (40, 50, 60):
        first.begin(make_state(step), manifest(step, child_of(first.written, Ancestry(RUN, 1))))
        first.wait()
    assert [path.name for path in checkpoints(tmp_path)] == ["00000020", "00000030", "00000050", "00000060"]


def test_a_step_that_another_branch_has_come_to_gives_way(tmp_path: Path) -> None:
    written(tmp_path, [10])
    first = read_manifest(tmp_path / "00000010").id
    written(tmp_path, [10], start=2)
    assert read_manifest(tmp_path / "00000010").ancestry.start == 2
    assert read_manifest(tmp_path / "00000010~1").id == first
    assert len(manifests(tmp_path)) == 2


def test_what_a_dead_writer_has_left_is_removed_and_what_another_one_writes_is_not(tmp_path: Path) -> None:
    for name in (".00000007.dead", ".00000008.busy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / TENSORS).write_bytes(b"half of it")
    busy = os.open(tmp_path / ".00000008.busy", os.O_RDONLY)
    try:
        fcntl.flock(busy, fcntl.LOCK_EX)
        written(tmp_path, [10])
        assert sorted(path.name for path in tmp_path.iterdir()) == [".00000008.busy", "00000010"]
    finally:
        os.close(busy)


def test_hidden_folders_of_somebody_else_stay(tmp_path: Path) -> None:
    theirs = [".00000007", ".7.dead", ".config.bak", ".git.old", ".venv-3.11"]
    for name in (*theirs, ".00000008.f00d", ".00000009~2.123.gone"):
        (tmp_path / name / "lib").mkdir(parents=True)
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == theirs


def test_a_file_system_without_locks_takes_checkpoints_and_leftovers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    (tmp_path / ".00000007.dead" / "half").mkdir(parents=True)
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert written(tmp_path, [10]).failure == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [".00000007.dead", "00000010"]


def test_older_checkpoints_are_room_for_the_next_one(tmp_path: Path) -> None:
    written(tmp_path, [10, 20, 30])
    older = sum(each.num_bytes for path, each in manifests(tmp_path).items() if path.name != "00000030")
    with pytest.raises(ShoalError, match=r"and only \d+ are free, including the space of older ones") as refused:
        check_is_usable(tmp_path, 1 << 60)
    free = int(str(refused.value).partition(" are free")[0].split()[-1])
    assert older > 0 and abs(free - older - shutil.disk_usage(tmp_path).free) < 1 << 30  # other processes write, too


def test_a_folder_with_too_little_room_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=rf"one takes at least {1 << 60} bytes, and only \d+ are free, .*; make room"):
        check_is_usable(tmp_path / "new", 1 << 60)
    check_is_usable(tmp_path / "new", 1000)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_format_of_another_version_is_named(whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / whole.name)
    (path / FILE).write_text((path / FILE).read_text().replace('"format": 1', '"format": 2'))
    assert look(path) == f"checkpoint {path} has format 2, but this version of shoal reads format 1"
