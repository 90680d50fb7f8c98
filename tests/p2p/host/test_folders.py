"""The default folder of all swarms."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from p2p.errors import RegistryError
from p2p.host.folders import default_home


@pytest.mark.skipif(Path(f"/run/user/{os.geteuid()}").exists(), reason="this user has a folder in /run/user")
def test_who_has_no_place_for_a_folder_is_told_which_variable_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / f"runtime-{os.geteuid()}"
    taken.symlink_to(tmp_path / "elsewhere")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RegistryError, match=f"{re.escape(str(taken))} is a symlink.*set SHOAL_HOME"):
        default_home({})
