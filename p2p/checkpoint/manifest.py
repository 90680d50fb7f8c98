"""The manifest of a checkpoint, in JSON: its run and step, plain values, and the digest of each tensor."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

from ..errors import ShoalError

FILE: Final = "checkpoint.json"
TENSORS: Final = "state.safetensors"
FORMAT: Final = 1


class UnusableCheckpointError(ShoalError):
    """A folder has no complete checkpoint, or one that does not fit: says which, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Ancestry:
    """The origin of a state.

    Attributes:
        run: 32 hex digits, drawn when the run began.
        start: number of the start of the run, from 1.
        parent: id of the checkpoint before; empty: there is none.
        parent_step: steps of training in that one.
    """

    run: str
    start: int
    parent: str = ""
    parent_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checkpoint without its tensors.

    Attributes:
        ancestry: origin of the state.
        step: steps of training.
        epochs: the epoch of each loader.
        swarm: name of the swarm.
        lineage: of the receipts up to this checkpoint.
        last_step: the last step of these receipts.
        num_bytes: of all tensors.
        tree: the plain values of the state (tree.py).
        digests: xxh3-128 of each tensor, by name, in the order of the slots.
    """

    ancestry: Ancestry
    step: int
    epochs: tuple[int, ...]
    swarm: str
    lineage: str
    last_step: int
    num_bytes: int
    tree: Any
    digests: dict[str, str]

    def to_text(self) -> str:
        """Indented JSON."""
        fields = self._fields()
        return json.dumps({"id": _digest(fields), **fields}, indent=1) + "\n"

    @property
    def id(self) -> str:
        """The digest of the manifest, and so of the tensors, too: 32 hex digits."""
        return _digest(self._fields())

    @property
    def recency(self) -> tuple[int, int, str]:
        """Sort key: among checkpoints of one run, the one with the largest is resumed."""
        return self.ancestry.start, self.step, self.id

    def _fields(self) -> dict[str, Any]:
        origin = self.ancestry
        parent = {"id": origin.parent, "step": origin.parent_step} if origin.parent else None
        return {
            "format": FORMAT,
            "run": origin.run,
            "start": origin.start,
            "step": self.step,
            "parent": parent,
            "epochs": list(self.epochs),
            "swarm": self.swarm,
            "receipts": {"lineage": self.lineage, "last_step": self.last_step},
            "random_generators": "not saved",
            "num_bytes": self.num_bytes,
            "digests": self.digests,
            "state": self.tree,
        }


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint, without its tensors.

    Raises:
        UnusableCheckpointError: the manifest is not as written.
    """
    try:
        fields = json.loads((folder / FILE).read_text(encoding="utf-8"))
        written = fields.pop("id")
        if fields["format"] != FORMAT:
            raise UnusableCheckpointError(
                f"checkpoint {folder} has format {fields['format']}, but this version of shoal reads format {FORMAT}"
            )
        parent = fields["parent"] or {"id": "", "step": 0}
        manifest = Manifest(
            ancestry=Ancestry(fields["run"], fields["start"], parent["id"], parent["step"]),
            step=fields["step"],
            epochs=tuple(fields["epochs"]),
            swarm=fields["swarm"],
            lineage=fields["receipts"]["lineage"],
            last_step=fields["receipts"]["last_step"],
            num_bytes=fields["num_bytes"],
            tree=fields["state"],
            digests=fields["digests"],
        )
        if _digest(fields) != written or manifest.id != written:
            raise ValueError(f"its content does not match its id {written}")
    except KeyError as error:
        raise UnusableCheckpointError(f"checkpoint {folder}: {FILE} cannot be read: it has no {error}") from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableCheckpointError(f"checkpoint {folder}: {FILE} cannot be read: {error}") from None
    return manifest


def _digest(fields: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, separators=(",", ":")).encode())
