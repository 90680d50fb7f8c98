"""The swarm key: permissions and contents of the file, and derived keys."""

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import SecurityError
from p2p.host.keys import PREFIX, derive, in_memory, new_key, read_key, reference, show_key, write_key

SECRET = bytes(range(32))
KEY = PREFIX + SECRET.hex()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "swarm.key"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return path


def test_a_key_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new.key"
    write_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == PREFIX + read_key(path).hex() + "\n"
    assert len(read_key(path)) == 32


def test_no_two_keys_are_equal() -> None:
    assert len({new_key() for _ in range(100)}) == 100


def test_a_key_in_use_is_not_replaced(file: Path) -> None:
    with pytest.raises(SecurityError, match="is there already"):
        write_key(file)
    assert read_key(file) == SECRET


@pytest.mark.parametrize("mode", [0o604, 0o610, 0o601, 0o660, 0o777])
def test_a_key_that_others_may_use_is_refused_with_the_command_that_mends_it(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(SecurityError, match=rf"has mode {mode:04o}, so others may use it; run: chmod 600 {file}"):
        read_key(file)


@pytest.mark.parametrize("mode", [0o440, 0o640])
def test_a_group_of_this_process_may_read_a_key(file: Path, mode: int) -> None:
    os.chown(file, -1, os.getegid())
    file.chmod(mode)
    assert read_key(file) == SECRET


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
@pytest.mark.parametrize("mode", [0o440, 0o640])
def test_another_group_may_not(file: Path, mode: int) -> None:
    os.chown(file, -1, 12345)
    file.chmod(mode)
    with pytest.raises(SecurityError, match=rf"has mode {mode:04o}, so others may use it"):
        read_key(file)


def test_a_key_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POND_KEY", KEY)
    assert read_key(Path("env:POND_KEY")) == SECRET
    monkeypatch.delenv("POND_KEY")
    with pytest.raises(SecurityError, match="the environment variable POND_KEY, which is not set"):
        read_key(Path("env:POND_KEY"))
    monkeypatch.setenv("POND_KEY", "secret")
    with pytest.raises(SecurityError, match="env:POND_KEY holds no swarm key"):
        read_key(Path("env:POND_KEY"))


def test_a_key_from_a_pipe_becomes_one_that_can_be_read_again_and_again() -> None:
    reader, writer = os.pipe()
    os.write(writer, KEY.encode() + b"\n")
    os.close(writer)
    in_a_file = in_memory(Path(f"fd:{reader}"))
    assert [read_key(in_a_file) for _ in range(2)] == [SECRET, SECRET]
    for key in (f"fd:{reader}", reference(in_a_file)):
        os.close(int(key.removeprefix("fd:")))
    with pytest.raises(SecurityError, match=rf"cannot read the swarm key fd:{reader}: Bad file descriptor"):
        read_key(Path(f"fd:{reader}"))


def test_another_process_is_given_the_whole_path_of_a_file() -> None:
    assert reference(Path("swarm.key")) == f"{os.getcwd()}/swarm.key"
    assert [reference(Path(key)) for key in ("env:KEY", "fd:3")] == ["env:KEY", "fd:3"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_somebody_elses_key_is_refused(file: Path) -> None:
    os.chown(file, 12345, -1)
    with pytest.raises(SecurityError, match="belongs to user 12345, and this is user 0"):
        read_key(file)


def test_what_is_no_file_is_refused_and_does_not_block(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path in (fifo, tmp_path):
        with pytest.raises(SecurityError, match="is no file"):
            read_key(path)
    with pytest.raises(SecurityError, match=r"cannot read the swarm key .*No such file"):
        read_key(tmp_path / "missing")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        SECRET.hex().encode(),
        KEY[:-1].encode(),
        (KEY + "00").encode(),
        KEY.replace("key-1", "key-2").encode(),
        (PREFIX + " ".join(["00"] * 32)).encode(),
        KEY.encode() + b"\n" + KEY.encode(),
        b"\xff" * 5000,
        bytes(5000),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(SecurityError, match=r"holds no swarm key.*shoal key new") as caught:
        read_key(file)
    assert SECRET.hex() not in str(caught.value)


words = st.lists(st.text("abc/", max_size=4), min_size=1, max_size=4)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Prevents writes to files, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("full_disk")
def test_nothing_is_left_of_a_key_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "new.key"
    with pytest.raises(SecurityError, match=f"cannot write the swarm key to {path}: File too large"):
        write_key(path)
    assert not path.exists()


def test_a_key_that_stdout_does_not_take_is_one_line() -> None:
    with open("/dev/full", "wb") as full, pytest.raises(SecurityError, match="to stdout: No space left on device"):
        show_key(full.fileno())


@given(words, words)
def test_other_words_give_other_bytes_and_the_same_words_the_same(one: list[str], other: list[str]) -> None:
    assert (derive(SECRET, *one) == derive(SECRET, *other)) == (one == other)
    assert derive(SECRET, *one) != derive(bytes(32), *one)
    assert len(derive(SECRET, *one)) == 32


def test_the_command_makes_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "p2p.cli", "key", "new"]
    redirected, named = tmp_path / "redirected", tmp_path / "named"
    with redirected.open("wb") as stdout:
        redirected.chmod(0o644)
        subprocess.run(command, stdout=stdout, check=True)
    subprocess.run([*command, "--out", str(named)], check=True)
    assert len({read_key(redirected), read_key(named)}) == 2
    again = subprocess.run([*command, "--out", str(named)], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "is there already" in again.stderr


def test_a_key_in_place_of_where_it_is_is_refused_and_not_repeated() -> None:
    key = new_key()
    with pytest.raises(SecurityError, match="pass env:NAME") as refused:
        read_key(Path(key))
    assert key not in str(refused.value)
