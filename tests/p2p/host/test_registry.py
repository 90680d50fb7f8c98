import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from p2p.errors import RegistryError
from p2p.host.entries import MOST_DEAD_PAGES
from p2p.host.entry import Entry, Role, parse_entry
from p2p.host.exiting import Threads, lives
from p2p.host.folders import acquire, default_home, is_byte_locked, lock_byte, make_private, open_lock, place_of
from p2p.host.processes import process_start
from p2p.host.registry import Registry
from p2p.version import VERSION
from tests.p2p.host.entries import enter_and_die, registry, socket_paths

A, B, C, D = "a" * 16, "b" * 16, "c" * 16, "d" * 16


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_the_first_to_enter_founds_and_the_second_joins(home: Path) -> None:
    first = registry(home).enter(A, 1)
    second = registry(home).enter(B, 2)
    assert (first.own.role, first.others) == (Role.FOUNDER, ())
    assert (second.own.role, second.others) == (Role.JOINER, (first.own,))


def test_the_folders_are_private(home: Path) -> None:
    folder = registry(home).folder
    assert [path.stat().st_mode & 0o777 for path in (home, folder)] == [0o700, 0o700]


def test_an_entry_is_private_at_any_umask_and_its_lock_too(home: Path) -> None:
    before = os.umask(0)
    try:
        one = registry(home)
        one.enter(A, 1)
        modes = {path.name.partition(".")[2]: path.stat().st_mode & 0o777 for path in one.folder.iterdir()}
        assert modes == {"json": 0o600, "": 0o600} and one.folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_no_draft_stays_of_an_entry_that_cannot_be_written(home: Path) -> None:
    one = registry(home)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as on a full disk: files can only be created
        with pytest.raises(RegistryError, match="cannot write the registry entry"):
            one.enter(A, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [path.name for path in one.folder.iterdir()] == ["lock"]
    assert one.lock.resolve() not in [Path(f"/proc/self/fd/{fd}").resolve() for fd in os.listdir("/proc/self/fd")]


def test_an_address_is_a_socket_of_sixteen_hex_digits_in_the_folder(home: Path) -> None:
    one = registry(home)
    paths = socket_paths(one.enter(A, 1).own)
    assert len(set(paths)) == 2
    assert all(path.parent == one.folder and re.fullmatch("[0-9a-f]{16}", path.name) for path in paths)


def test_two_swarms_of_one_home_do_not_meet(home: Path) -> None:
    Registry(home, "pond").enter(A, 1)
    assert Registry(home, "lake").enter(B, 2).own.role is Role.FOUNDER


def test_peers_of_one_swarm_expect_one_network(home: Path) -> None:
    first = registry(home).enter(A, 1, network="wan")
    late = registry(home)
    with pytest.raises(RegistryError, match=f"process {os.getpid()} .* --network wan, and this one with --network lan"):
        late.enter(B, 2)
    assert not late.knows(B)
    assert late.enter(B, 2, network="wan").others == (first.own,)


@pytest.mark.parametrize("version", [1, VERSION + 1])
def test_a_living_peer_of_another_version_is_named_with_both_and_nobody_joins_it(home: Path, version: int) -> None:
    first, late = registry(home), registry(home)
    other = write_as(version, first, first.enter(A, 1).own)
    said = (
        rf"^process {os.getpid()} of swarm 'pond' speaks version {version} of the wire, "
        rf"and this one version {VERSION}: run the same version of shoal everywhere, or give this peer another --swarm$"
    )
    with pytest.raises(RegistryError, match=said):
        late.enter(B, 2)
    assert not late.knows(B)
    assert late.read(apart_from=B) == ((), ())
    other.unlink()
    assert late.enter(B, 2).own.role is Role.FOUNDER


@pytest.mark.parametrize("version", [1, VERSION + 1])
def test_what_a_dead_peer_of_another_version_left_is_removed(home: Path, version: int) -> None:
    dead = enter_and_die(home, A, 1)
    one = registry(home)
    write_as(version, one, dead)
    assert one.enter(B, 2).own.role is Role.FOUNDER
    assert sorted(path.name for path in one.folder.iterdir()) == [f"{B}.json", "lock"]


def test_a_peer_of_another_version_that_comes_later_ends_nobody_who_waits(home: Path) -> None:
    """The late peer is refused; one of version 1 does not understand the existing entries, and founds."""
    dead = enter_and_die(home, A, 1)
    one, late = registry(home), registry(home)
    held = open_lock(one.lock)
    assert lock_byte(held, place_of(A))
    (one.folder / f"{A}.json").write_text(
        json.dumps({**asdict(dead), "pid": os.getpid(), "process_start": process_start(os.getpid())})
    )
    assert one.enter(B, 2).own.role is Role.JOINER
    write_as(1, late, replace(dead, peer_id=C, process_start=process_start(os.getpid()) or 0))
    (one.folder / f"{A}.json").unlink()
    assert one.take_over().own.role is Role.FOUNDER
    os.close(held)


def write_as(version: int, registry: Registry, entry: Entry) -> Path:
    """Write `entry` as a peer of that version does; later ones may add fields."""
    written = asdict(entry)
    if version == 1:
        del written["version"]
    else:
        written |= {"version": version, "added": [version]}
    path = registry.folder / f"{entry.peer_id}.json"
    path.write_text(json.dumps(written))
    return path


def test_a_home_reached_through_a_link_further_up_is_the_same_home(home: Path, tmp_path: Path) -> None:
    first = registry(home).enter(A, 1)
    (tmp_path / "link").symlink_to(tmp_path)
    assert registry(tmp_path / "link" / "home").enter(B, 2).others == (first.own,)


def test_who_finds_only_dead_peers_founds_and_removes_what_they_left(home: Path) -> None:
    dead = enter_and_die(home, A, 1, role=Role.MEMBER)
    one = registry(home)
    assert one.enter(B, 2).own.role is Role.FOUNDER
    assert sorted(path.name for path in one.folder.iterdir()) == [f"{B}.json", "lock"]
    assert not any(path.exists() for path in socket_paths(dead))


def test_an_entry_of_another_boot_is_dead(home: Path) -> None:
    one = registry(home)
    entry = one.enter(A, 1).own
    one.leave()
    (one.folder / f"{A}.json").write_text(json.dumps(asdict(replace(entry, host="another"))))
    assert registry(home).enter(B, 2).own.role is Role.FOUNDER
    assert not (one.folder / f"{A}.json").exists()


def test_a_peer_that_enters_again_is_held_for_alive_all_the_time(home: Path) -> None:
    one = registry(home)
    for incarnation in (1, 2):
        one.enter(A, incarnation)
        assert is_byte_locked(one.lock, place_of(A)) and not is_byte_locked(one.lock, place_of(B))
    one.leave()
    assert not is_byte_locked(one.lock, place_of(A))
    one.enter(B, 3)
    assert is_byte_locked(one.lock, place_of(B)) and not is_byte_locked(one.lock, place_of(A))


def test_leaving_removes_the_entry_and_the_sockets_and_what_the_dead_left(home: Path) -> None:
    one = registry(home)
    own = one.enter(A, 1).own
    for path in socket_paths(own):
        path.touch()
    one.mark_member()
    enter_and_die(home, B, 2, role=Role.MEMBER)
    one.leave()
    one.leave()
    assert [path.name for path in one.folder.iterdir()] == ["lock"]


def test_what_can_be_seen_of_the_dead_goes_with_the_last_who_leaves(home: Path) -> None:
    one, other = registry(home), registry(home)
    one.enter(A, 1)
    pages = [one.folder / f"{number:016x}.page" for number in range(MOST_DEAD_PAGES + 3)]
    for number, page in enumerate(pages):
        page.touch()
        os.utime(page, (number, number))
    own = one.folder / f"{A}.page"
    own.touch()
    other.enter(B, 2)
    assert sorted(one.folder.glob("*.page")) == [*pages[3:], own]
    other.leave()
    assert pages[-1].exists()
    one.leave()  # and then removes its own
    assert list(one.folder.glob("*.page")) == [own]


def test_what_could_be_seen_of_a_run_that_was_killed_goes_with_the_next_one(home: Path) -> None:
    enter_and_die(home, A, 1, role=Role.MEMBER)
    page = registry(home).folder / f"{A}.page"
    page.touch()
    registry(home).enter(B, 2)
    assert not page.exists()


def test_pages_that_go_while_others_look_at_them_keep_nobody_from_entering_or_leaving(home: Path) -> None:
    """A peer that leaves removes its page after its entry, and without the lock."""
    one = registry(home)
    page = one.folder / f"{B}.page"
    child = os.fork()
    if child == 0:
        while True:
            page.touch()
            page.unlink(missing_ok=True)
    try:
        for incarnation in range(300):
            one.enter(A, incarnation)
            one.leave()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_cannot_be_swept_keeps_no_peer_from_removing_its_own(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = registry(home)
    own = one.enter(A, 1).own
    for path in socket_paths(own):
        path.touch()
    (one.folder / f"{B}.page").mkdir()
    one.leave()
    assert {path.name for path in one.folder.iterdir()} == {"lock", f"{B}.page"}
    assert "stays for the next to clean up" in caplog.text


def test_a_peer_that_cannot_get_the_lock_still_removes_its_own(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = Registry(home, "pond", lock_timeout_s=0.01)
    one.enter(A, 1)
    with (one.folder / "lock").open("w") as held:
        assert acquire(held.fileno(), timeout_s=0.0)
        one.leave()
    assert [path.name for path in one.folder.iterdir()] == ["lock"]
    assert "stays for the next to clean up" in caplog.text


def test_an_entry_that_cannot_be_written_is_an_error_that_names_it(home: Path) -> None:
    one = registry(home)
    (one.folder / f"{A}.draft").mkdir()
    with pytest.raises(RegistryError, match=f"cannot write the registry entry .*{A}.json: Is a directory"):
        one.enter(A, 1)


def test_a_peer_acts_only_after_it_entered(home: Path) -> None:
    one = registry(home)
    one.leave()
    with pytest.raises(ValueError, match="enter"):
        one.take_over()
    with pytest.raises(ValueError, match="16 hex digits"):
        one.enter("A", 1)


def test_a_forked_child_does_not_remove_the_entry_of_its_parent(home: Path) -> None:
    one = registry(home)
    one.enter(A, 1)
    child = os.fork()
    if child == 0:
        one.leave()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (one.folder / f"{A}.json").exists()


def test_nobody_takes_over_while_the_founder_lives(home: Path) -> None:
    founder = registry(home).enter(A, 1).own
    waiting = registry(home)
    waiting.enter(B, 2)
    assert waiting.take_over().own.role is Role.JOINER
    assert waiting.take_over().others == (founder,)


def test_nobody_takes_over_while_a_member_lives(home: Path) -> None:
    founder = registry(home)
    founder.enter(A, 1)
    waiting = registry(home)
    waiting.enter(B, 2)
    founder.mark_member()
    enter_and_die(home, C, 3, role=Role.MEMBER)
    assert waiting.take_over().own.role is Role.JOINER


def test_the_first_of_those_who_wait_takes_over_from_a_founder_that_died_alone(home: Path) -> None:
    founder = registry(home)
    founder.enter(A, 1)
    later, earlier = registry(home), registry(home)
    later.enter(B, 3)
    earlier.enter(C, 2)
    enter_and_die(home, A, 1, role=Role.FOUNDER)
    assert later.take_over().own.role is Role.JOINER
    assert earlier.take_over().own.role is Role.FOUNDER
    assert later.take_over().own.role is Role.JOINER


def test_who_waits_takes_over_when_the_founder_left(home: Path) -> None:
    founder = registry(home)
    founder.enter(A, 1)
    waiting = registry(home)
    waiting.enter(B, 2)
    founder.mark_member()
    founder.leave()
    assert waiting.take_over().own.role is Role.FOUNDER


def test_who_waits_is_told_when_the_last_member_died(home: Path) -> None:
    registry(home).enter(A, 1)
    waiting = registry(home)
    waiting.enter(B, 2)
    enter_and_die(home, A, 1, role=Role.MEMBER)
    with pytest.raises(RegistryError, match=f"all members of swarm 'pond' are gone.*{A}.*start anew"):
        waiting.take_over()


def test_where_members_died_who_holds_the_newest_state_goes_on_once_all_have_said(home: Path) -> None:
    registry(home).enter(A, 1)
    one, other, third = registry(home), registry(home), registry(home)
    for number, (each, peer_id) in enumerate([(one, B), (other, C), (third, D)], start=2):
        each.enter(peer_id, number)
    enter_and_die(home, A, 1, role=Role.MEMBER)
    assert one.take_over(7).own.role is Role.JOINER, "the others may hold a newer one"
    assert other.take_over(9).own.role is Role.JOINER
    assert third.take_over(0).own.role is Role.JOINER, "it holds none, and waits for who does"
    assert one.take_over(7).own.role is Role.JOINER
    assert other.take_over(9).own.role is Role.FOUNDER
    assert [entry.role for entry in one.take_over(7).others] == [Role.FOUNDER, Role.JOINER]
    other.stay()
    other.leave()
    assert other.enter(C, 5).own.role is Role.FOUNDER, "as another incarnation, whoever waits"
    assert [path.stem for path in sorted(other.folder.glob("*.json"))] == [B, C, D], "the dead are forgotten"
    other.leave()
    assert [path.stem for path in sorted(other.folder.glob("*.json"))] == [B, D]


def test_of_two_that_hold_the_same_step_the_first_goes_on_and_who_sees_neither_alone(
    home: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    one, other, apart = registry(home), registry(home), registry(elsewhere)
    for place, waiting in ((home, ((one, B, 3), (other, C, 2))), (elsewhere, ((apart, D, 4),))):
        registry(place).enter(A, 1)
        for each, peer_id, incarnation in waiting:
            each.enter(peer_id, incarnation)
        enter_and_die(place, A, 1, role=Role.MEMBER)
    assert one.take_over(4).own.role is Role.JOINER
    assert other.take_over(4).own.role is Role.FOUNDER
    assert one.take_over(4).own.role is Role.JOINER
    assert apart.take_over(2).own.role is Role.FOUNDER


def test_nobody_goes_on_where_nobody_holds_a_state_or_a_member_was_of_another_host(home: Path) -> None:
    founder, one, other = (registry(home) for _ in range(3))
    for each, peer_id in zip((founder, one, other), (A, B, C), strict=True):
        each.enter(peer_id, 1)
    founder.leave()
    dead = enter_and_die(home, A, 1, role=Role.MEMBER)
    assert one.take_over(0).own.role is Role.JOINER
    for waiting in (other, one):
        with pytest.raises(RegistryError, match="all members"):
            waiting.take_over(0)
    (one.folder / f"{A}.json").write_text(json.dumps(asdict(replace(dead, host="f" * 16))))
    with pytest.raises(RegistryError, match="all members"):
        one.take_over(9)


def test_a_joiner_that_comes_later_does_not_hide_that_the_last_member_died(home: Path) -> None:
    registry(home).enter(A, 1)
    early, late = registry(home), registry(home)
    early.enter(B, 2)
    dead = enter_and_die(home, A, 1, role=Role.MEMBER)
    assert late.enter(C, 3).own.role is Role.JOINER
    assert not any(path.exists() for path in socket_paths(dead))
    for waiting in (early, late):
        with pytest.raises(RegistryError, match="all members"):
            waiting.take_over()
        waiting.leave()
    assert [path.name for path in early.folder.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 10_000, b'{"peer_id": "aaaaaaaaaaaaaaaa"}'],
    ids=["empty", "cut", "list", "no-fields", "not-utf8", "nested", "few-fields"],
)
def test_a_broken_entry_is_named_once_and_ignored(text: bytes, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = registry(home)
    broken = one.folder / f"{A}.json"
    broken.write_bytes(text)
    with caplog.at_level(logging.WARNING):
        assert one.enter(B, 2).own.role is Role.FOUNDER
        one.enter(B, 3)
    assert [str(broken) in record.getMessage() for record in caplog.records] == [True]
    assert broken.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"pid": True},
        {"pid": "1"},
        {"role": "boss"},
        {"swarm": "lake"},
        {"peer_id": C},
        {"control_address": "ipc:///etc/passwd"},
        {"data_address": "tcp://127.0.0.1:1"},
        {"extra": 1},
        {"version": str(VERSION)},
        {"version": VERSION + 1, "pid": "1"},
    ],
    ids=str,
)
def test_an_entry_with_a_wrong_field_is_ignored(change: dict[str, object], home: Path) -> None:
    one = registry(home)
    entry = asdict(one.enter(A, 1).own)
    (one.folder / f"{A}.json").write_text(json.dumps({**entry, **change}))
    assert registry(home).enter(B, 2).own.role is Role.FOUNDER


def test_an_entry_is_read_as_it_was_written(home: Path) -> None:
    one = registry(home)
    own = one.enter(A, 2**62).own
    assert parse_entry((one.folder / f"{A}.json").read_bytes()) == own


@pytest.mark.parametrize("swarm", ["", ".", "..", "a/b", "a b", "a\n", "x" * 65, "\u00e9"])
def test_an_unfit_swarm_name_is_refused(swarm: str, home: Path) -> None:
    with pytest.raises(RegistryError, match="a swarm's name has"):
        Registry(home, swarm)


def test_a_path_too_long_for_a_socket_is_refused_with_its_length(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 100)
    length = len(str(home)) + len("/pond/") + 16
    with pytest.raises(RegistryError, match=f"has {length} bytes.*SHOAL_HOME"):
        Registry(home, "pond")
    assert not home.exists()


@pytest.mark.parametrize("mode", [0o755, 0o720, 0o702, 0o777])
def test_a_folder_that_others_may_use_is_refused_with_the_remedy(mode: int, home: Path) -> None:
    home.mkdir()
    home.chmod(mode)
    with pytest.raises(RegistryError, match=f"has mode {mode:04o}.*chmod 700 {home}"):
        Registry(home, "pond")


def test_a_swarm_folder_that_others_may_use_is_refused(home: Path) -> None:
    registry(home).folder.chmod(0o770)
    with pytest.raises(RegistryError, match="has mode 0770"):
        Registry(home, "pond")


def test_a_link_in_place_of_the_folder_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    home.symlink_to(tmp_path / "target")
    with pytest.raises(RegistryError, match="symbolic link"):
        Registry(home, "pond")


def test_a_file_in_place_of_the_folder_is_refused(home: Path) -> None:
    home.touch()
    with pytest.raises(RegistryError, match="cannot make the registry folder"):
        Registry(home, "pond")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 12345, -1)
    with pytest.raises(RegistryError, match="belongs to user 12345"):
        make_private(home)


def test_the_home_is_what_the_environment_says_or_the_platform() -> None:
    assert default_home({"SHOAL_HOME": "/run/x"}) == Path("/run/x")
    assert default_home({}).name == "shoal"


def test_an_ended_process_has_no_start_even_before_it_is_reaped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert process_start(process.pid) is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(process.pid) is None
    process.communicate()
    assert process_start(process.pid) is None


def test_the_name_of_a_program_does_not_confuse_its_start(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to("/bin/cat")
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"x")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]
    assert process.stdout.read(1) == b"x"  # type: ignore[union-attr]
    own, other = process_start(os.getpid()), process_start(process.pid)
    assert own is not None and other is not None and other >= own
    process.communicate()


def test_who_waits_for_a_lock_gets_it_when_it_is_free(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as held, (tmp_path / "lock").open("w") as wanted:
        assert acquire(held.fileno(), timeout_s=0.0)
        assert not acquire(wanted.fileno(), timeout_s=0.01)
        held.close()
        assert acquire(wanted.fileno(), timeout_s=5.0)


def test_a_lock_that_stays_held_is_an_error_that_names_it(home: Path) -> None:
    one = Registry(home, "pond", lock_timeout_s=0.01)
    with (one.folder / "lock").open("w") as held:
        assert acquire(held.fileno(), timeout_s=0.0)
        with pytest.raises(RegistryError, match=f"has held {one.folder / 'lock'} for 0.01 s"):
            one.enter(A, 1)
    # The abandoned wait does not hold the lock.
    assert registry(home).enter(A, 1).own.role is Role.FOUNDER


ENTER = """
import sys
from pathlib import Path
from p2p.host.registry import Registry

registry = Registry(Path(sys.argv[1]), "pond")
print("ready", flush=True)
input()
print(registry.enter(sys.argv[2], 1).own.role, flush=True)
input()
"""


def test_of_processes_that_enter_at_once_exactly_one_founds(home: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ENTER, home, f"{number:016x}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for number in range(6)
    ]
    try:
        pipes = [(process.stdin, process.stdout) for process in processes]
        for _, stdout in pipes:
            assert stdout is not None and stdout.readline() == "ready\n"
        for stdin, _ in pipes:
            assert stdin is not None
            stdin.write("\n")
        roles = [stdout.readline().strip() for _, stdout in pipes if stdout is not None]
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    assert sorted(roles) == ["founder"] + ["joiner"] * 5


LARGE = "import sys; memory = b'1' * (300 << 20); print('here', flush=True); sys.stdin.read()"


def test_what_a_peer_leaves_that_is_being_killed_goes_with_the_last_of_the_others(home: Path) -> None:
    """The kernel takes a while to release a killed peer's memory, and others know of the death before that."""
    last = registry(home)
    last.enter(A, 1)
    with subprocess.Popen([sys.executable, "-c", LARGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None and victim.stdout.readline() == b"here\n"
        entry = registry(home).enter(B, 2).own
        start = process_start(victim.pid)
        assert start is not None
        theirs = replace(entry, pid=victim.pid, process_start=start)
        (last.folder / f"{B}.json").write_text(json.dumps(asdict(theirs)))
        threads = Threads.open(victim.pid, start)
        assert threads is not None and lives(victim.pid, start)
        victim.kill()
        while not threads.are_exiting():
            pass
        last.leave()
        threads.close()
        assert not lives(victim.pid, start)
    assert [path.name for path in last.folder.iterdir()] == ["lock"]
