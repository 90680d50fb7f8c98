"""Available memory of a peer: with made-up control groups, and in a real group with a limit."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2p.host.memory_left import CGROUPS, MACHINE, MemoryLeft, available_bytes, group_limits, memory_left

MIB = 1 << 20
LIMIT_BYTES = 256 * MIB
UNLIMITED = 9223372036854771712


def write(folder: Path, **files: int | str) -> None:
    """Write the files of a group; names are the kernel's, with `memory_` for `memory.`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(f"{value}\n")


def left(groups: str, root: Path) -> list[MemoryLeft | None]:
    return [each.left() for each in group_limits(groups, root)]


def test_of_version_2_each_group_around_the_process_has_its_limits(tmp_path: Path) -> None:
    groups = "12:cpu:/old\n0::/a/b\n"
    assert group_limits(groups, tmp_path) == []
    write(tmp_path / "a" / "b", memory_max="max", memory_current=5, memory_high=12)
    write(tmp_path / "a", memory_max=100, memory_current=70)
    write(tmp_path, memory_max=1000, memory_current=10)
    write(tmp_path / "a" / "other", memory_max=1, memory_current=1)
    assert left(groups, tmp_path) == [
        MemoryLeft(7, str(tmp_path / "a" / "b" / "memory.high")),
        MemoryLeft(30, str(tmp_path / "a" / "memory.max")),
        MemoryLeft(990, str(tmp_path / "memory.max")),
    ]
    assert group_limits("12:cpu:/old\n", tmp_path) == []


def test_of_version_1_the_group_of_the_memory_controller_counts(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    groups = "9:name=systemd:/a\n4:hugetlb,memory:/a/b\n1:cpu:/c\n0::/\n"
    write(folder / "a" / "b", memory_limit_in_bytes=UNLIMITED, memory_usage_in_bytes=5)
    write(folder / "a", memory_limit_in_bytes=100, memory_usage_in_bytes=120)
    write(folder, memory_limit_in_bytes=UNLIMITED, memory_usage_in_bytes=500)
    assert left(groups, tmp_path) == [MemoryLeft(0, str(folder / "a" / "memory.limit_in_bytes"))]


@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_the_group_lies_where_groups_are_mounted(tmp_path: Path, version: int) -> None:
    """The group is listed with a path that exists only outside of the container."""
    if version == 1:
        write(tmp_path / "memory", memory_limit_in_bytes=100, memory_usage_in_bytes=40)
        groups = "4:memory:/docker/0123\n"
    else:
        write(tmp_path, memory_max=100, memory_current=40)
        groups = "0::/docker/0123\n"
    assert [each and each.num_bytes for each in left(groups, tmp_path)] == [60]


def test_beside_version_1_groups_of_version_2_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "unified" / "a", memory_max=100, memory_current=40)
    assert left("0::/a\n", tmp_path) == [MemoryLeft(60, str(tmp_path / "unified" / "a" / "memory.max"))]


def test_what_a_group_holds_of_files_counts_as_free(tmp_path: Path) -> None:
    both = "inactive_file {}\nactive_file {}\nshmem 60\ntotal_inactive_file {}\ntotal_active_file {}"
    write(tmp_path, memory_max=100, memory_current=90, memory_stat=both.format(20, 3, 0, 0))
    write(tmp_path / "memory", memory_limit_in_bytes=100, memory_usage_in_bytes=90)
    write(tmp_path / "memory", memory_stat=both.format(0, 0, 40, 2))
    found = left("4:memory:/\n0::/\n", tmp_path)
    assert [each and each.num_bytes for each in found] == [52, 33]


def test_a_limit_that_is_lifted_counts_no_more(tmp_path: Path) -> None:
    write(tmp_path, memory_max=100, memory_current=90)
    (limit,) = group_limits("0::/\n", tmp_path)
    write(tmp_path, memory_max="max")
    assert limit.left() is None
    (tmp_path / "memory.max").unlink()
    assert limit.left() is None


def test_of_this_process_it_is_no_more_than_the_machine_has() -> None:
    found = memory_left()
    assert 0 < found.num_bytes <= 1.5 * available_bytes()
    assert found.limited_by == MACHINE or Path(found.limited_by).is_relative_to(CGROUPS)


# In a group

ASKS = """
import json, logging, sys
from p2p.config import LEAST_ARENA_BYTES, default_arena_bytes
from p2p.device import HOST
from p2p.doctor.host import arena as look_at_arena, memory as look_at_memory
from p2p.host.memory_left import memory_left
from p2p.memory.arena import REGIONS_OFFSET, Arena
from p2p.memory.extents import EXTENT_BYTES, Extents

sys.stdin.read()  # until this process is in the group
logging.basicConfig(format="%(message)s")
left = memory_left()
arena = Arena(REGIONS_OFFSET + 16 * EXTENT_BYTES, "00112233445566aa")
Extents(arena).pin(HOST, range(8))
found = {
    "left": [left.num_bytes, left.limited_by],
    "has_half": arena.allocate(left.num_bytes // 2) is not None,
    "has_double": arena.allocate(left.num_bytes * 2) is not None,
    "is_least": default_arena_bytes(1) == LEAST_ARENA_BYTES,
    "doctor": [look_at_memory(left).says, look_at_arena(left).says],
}
print(json.dumps(found))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """The limit's file of a new group inside of this process's group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            around, name = CGROUPS / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
            break
    else:
        around, name = CGROUPS / path.lstrip("/"), "memory.max"
    made = around / f"test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            (made / name).write_text(str(LIMIT_BYTES))
        except OSError as error:
            pytest.skip(f"no cgroup with a limit of memory can be made here: {error}")
        yield made / name
    finally:
        made.rmdir()


def test_the_limit_of_a_group_is_named_and_held_where_memory_is_asked_for(group: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as process:
        group.with_name("cgroup.procs").write_text(str(process.pid))
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    num_bytes, limited_by = found["left"]
    assert limited_by == str(group) and LIMIT_BYTES // 2 < num_bytes <= LIMIT_BYTES
    assert found["is_least"] and not found["has_double"]
    of_memory, of_arena = found["doctor"]
    assert f"{group} leaves " in of_memory and f"though a quarter of what {group} leaves is less" in of_arena
    assert f"({group} leaves " in stderr and "bytes of memory, and 67108864 are wanted)" in stderr, stderr
