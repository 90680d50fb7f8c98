from pathlib import Path

import pytest
from typer.testing import CliRunner

from p2p.checkpoint.manifest import FILE, TENSORS
from p2p.cli import app
from p2p.errors import ShoalError
from tests.p2p.checkpoint.states import written


def shoal(*words: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, ["checkpoint", *words])
    if isinstance(result.exception, ShoalError):
        raise result.exception
    return result.exit_code, result.output.splitlines()


def test_a_folder_is_shown_with_the_one_that_a_run_goes_on_from(tmp_path: Path) -> None:
    written(tmp_path, [10, 20])
    written(tmp_path, [15], start=2)
    (tmp_path / "00000030").mkdir()
    code, lines = shoal("show", str(tmp_path))
    assert code == 0
    assert [line[:14].strip() for line in lines[1:-1]] == ["00000010", "* 00000015", "00000020", "00000030"]
    assert lines[2].split()[1:] == ["00000015", "15", "0", "0.0", "abababab", "2", "-"]
    assert lines[3].endswith("step 10")
    assert FILE in lines[4]


def test_each_checkpoint_is_verified_and_the_tensor_that_differs_is_named(tmp_path: Path) -> None:
    written(tmp_path, [10, 20])
    assert shoal("verify", str(tmp_path / "00000010"))[0] == 0
    tensors = tmp_path / "00000020" / TENSORS
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\xff")
    code, lines = shoal("verify", str(tmp_path))
    assert code == 1 and lines[0].startswith(f"{tmp_path}/00000010: whole, ")
    assert lines[1].startswith(f"checkpoint {tmp_path}/00000020: tensor ")


def test_what_a_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    written(tmp_path, [10])
    (tmp_path / "00000010" / FILE).write_text("{}")
    code, lines = shoal("verify", str(tmp_path))
    assert code == 1
    assert lines == [f"checkpoint {tmp_path}/00000010: {FILE} cannot be read: it has no 'id'"]


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_folder_without_any_is_one_line(tmp_path: Path, command: str) -> None:
    with pytest.raises(ShoalError, match=f"there is no checkpoint in {tmp_path}"):
        shoal(command, str(tmp_path))
