"""The commit of a script, from the files of its checkout."""

from pathlib import Path

import pytest

from p2p.host.git_commit import git_commit_of

COMMIT = "0123456789" * 4


def checkout(folder: Path, files: dict[str, str]) -> Path:
    """A checkout with a script in a subfolder."""
    for name, text in files.items():
        path = folder / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "src").mkdir()
    return folder / "src" / "train.py"


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"},
        {
            "HEAD": "ref: refs/heads/main\n",
            "packed-refs": f"# pack-refs\n{'f' * 40} refs/heads/a\n{COMMIT} refs/heads/main\n",
        },
    ],
)
def test_it_is_that_of_the_branch_which_is_checked_out_or_of_none(tmp_path: Path, files: dict[str, str]) -> None:
    assert git_commit_of(checkout(tmp_path, files)) == COMMIT


def test_that_of_a_worktree_is_its_own(tmp_path: Path) -> None:
    own = {"worktrees/one/HEAD": "ref: refs/heads/one\n", "worktrees/one/commondir": "../..\n"}
    checkout(tmp_path, {"HEAD": f"{'f' * 40}\n", "refs/heads/one": f"{COMMIT}\n", **own})
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").write_text(f"gitdir: {tmp_path}/.git/worktrees/one\n")
    assert git_commit_of(other / "train.py") == COMMIT


@pytest.mark.parametrize(
    "files", [{"HEAD": "ref: refs/heads/main\n"}, {"HEAD": "what?\n"}, {"config": ""}, {"HEAD": "", "packed-refs": ""}]
)
def test_where_none_can_be_read_there_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    assert git_commit_of(checkout(tmp_path, files)) == ""


@pytest.mark.parametrize("name", ["HEAD", "packed-refs"])
def test_a_name_that_is_no_utf_8_names_no_commit(tmp_path: Path, name: str) -> None:
    script = checkout(tmp_path, {"HEAD": "ref: refs/heads/main\n", "packed-refs": ""})
    (tmp_path / ".git" / name).write_bytes(b"ref: refs/heads/caf\xe9\n")
    assert git_commit_of(script) == ""
