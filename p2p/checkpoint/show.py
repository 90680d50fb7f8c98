"""`shoal checkpoint show` and `verify`: list the checkpoints in a folder, and check their tensors."""

from pathlib import Path

from ..errors import ShoalError
from .folder import checkpoints, read_state
from .manifest import FILE, Manifest, UnusableCheckpointError, read_manifest


def find(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, which may be a checkpoint itself.

    Raises:
        ShoalError: no checkpoint is found.
    """
    found = [folder] if (folder / FILE).exists() else checkpoints(folder)
    if not found:
        raise ShoalError(
            f"there is no checkpoint in {folder}: pass the folder that the script passes to p2p.Checkpoint"
        )
    return found


def show(folder: Path) -> list[str]:
    """A line for each checkpoint, without reading its tensors; the one that its run would resume is marked.

    Raises:
        ShoalError: no checkpoint is found.
    """
    rows: list[tuple[Path, Manifest | str]] = []
    for path in find(folder):
        try:
            rows.append((path, read_manifest(path)))
        except UnusableCheckpointError as error:
            rows.append((path, str(error)))
    newest: dict[str, Manifest] = {}
    for _, row in rows:
        if isinstance(row, Manifest):
            former = newest.get(row.ancestry.run, row)
            newest[row.ancestry.run] = max(former, row, key=lambda each: each.recency)
    lines = [f"  {'':12} {'step':>9} {'epoch':>6} {'MB':>9}  run       start  after"]
    for path, row in rows:
        if isinstance(row, str):
            lines.append(f"  {path.name:12} {row}")
            continue
        ancestry = row.ancestry
        after = f"step {ancestry.parent_step}" if ancestry.parent else "-"
        epoch = str(row.epochs[0]) if row.epochs else "-"
        mark = "*" if row is newest[ancestry.run] else " "
        lines.append(
            f"{mark} {path.name:12} {row.step:9} {epoch:>6} {row.num_bytes / 1e6:9.1f}  "
            f"{ancestry.run[:8]}  {ancestry.start:5}  {after}"
        )
    return [*lines, "* a run resumes this one"]


def verify(folder: Path) -> tuple[list[str], bool]:
    """Read the tensors of each checkpoint. Returns a line for each, and whether all are intact. Imports torch.

    Raises:
        ShoalError: no checkpoint is found.
    """
    lines, are_whole = [], True
    for path in find(folder):
        try:
            manifest = read_manifest(path)
            read_state(path, manifest)
            lines.append(f"{path}: whole, {len(manifest.digests)} tensors")
        except UnusableCheckpointError as error:
            lines.append(str(error))
            are_whole = False
    return lines, are_whole
