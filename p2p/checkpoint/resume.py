"""Resuming: the founders of a swarm agree on a checkpoint, and all receive it, before they train.

The founders tell each other the best checkpoint that each can read. Among those of one run the latest start wins, then
the most steps: a run that was resumed from an older checkpoint, because later ones were bad, does not return to these.
The holder reads the checkpoint, and sends it to all in operations that commit. A death meanwhile leaves no partial
state: if the holder died, all see from the receipt that it was not counted, and choose again.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..catchup.replica import Replica
from ..errors import JoinRefused, RemoteProtocolError, ShoalError
from ..net.parcels import PackedState
from ..net.trees import unpack_tree
from ..session.calls import Calls
from ..session.session import Session
from .folder import checkpoints, manifests, read_state
from .manifest import Ancestry, Manifest, UnusableCheckpointError, read_manifest
from .tree import from_json, name_slots

logger = logging.getLogger("p2p")

ROW_BYTES: Final = 8704
"""Size of a message from a founder to the others."""

MOST_WORDS: Final = 600
"""Characters of a reason or path in such a message: each takes up to 6 bytes."""

OF_MODEL: Final = {"trained", "made", "begun"}
"""Keys of the first part of a state that is neither an optimizer nor from `extra`."""

PIECE_BYTES: Final = 16 << 20
"""Bytes of a state that are sent per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The checkpoint that one founder can offer.

    Attributes:
        path: of the checkpoint; empty: there is none.
        id, run, start, step: of its manifest.
        latest_start: the latest start of all checkpoints that the founder sees.
        is_forced: the user has named it.
        trouble: why a checkpoint is unusable; empty: all are usable, or none exists.
        rival: the best checkpoint of another run that the founder sees, in words.
    """

    path: str = ""
    id: str = ""
    run: str = ""
    start: int = 0
    step: int = 0
    latest_start: int = 0
    is_forced: bool = False
    trouble: str = ""
    rival: str = ""


Offers = Sequence[tuple[str, Offer]]
"""(peer_id, offer) of the members on a receipt, in its order."""


def choose(offers: Offers) -> tuple[str, Offer] | None:
    """The offer that all resume, and its peer; None: a new run begins. The same result on every peer.

    Raises:
        ShoalError: checkpoints exist, and none is usable; or it is ambiguous which one is meant.
    """
    forced = [each for each in offers if each[1].is_forced]
    able = [each for each in forced or offers if each[1].path]
    if not able:
        if trouble := next((offer.trouble for _, offer in offers if offer.trouble), ""):
            raise ShoalError(f"no checkpoint can be resumed: {trouble}; pass another folder to start a new run")
        return None
    one = able[0][1]
    for _, other in able:
        differs = other.run != one.run or (forced and other.id != one.id)
        if rival := in_words(other.path, other.run, other.step) if differs else other.rival:
            raise ShoalError(
                f"it is not clear which checkpoint to resume: {in_words(one.path, one.run, one.step)}, and {rival}. "
                "Name one with --resume, and give each run a folder of its own"
            )
    best = max((offer.start, offer.step, offer.id) for _, offer in able)
    return next(each for each in able if (each[1].start, each[1].step, each[1].id) == best)


def in_words(path: str, run: str, step: int) -> str:
    """A checkpoint in words."""
    return f"{path} is of run {run[:8]}, step {step}"


def is_abandoned(each: Manifest, later: Manifest) -> bool:
    """Whether a later start of the run began before `each`: then none resumes from `each`, even if that is damaged."""
    theirs, ours = later.ancestry, each.ancestry
    return theirs.run == ours.run and theirs.start > ours.start and theirs.parent_step < each.step


def misfit(tree: Any, ours: Any) -> str:
    """How the model in a packed state differs from ours, in words; empty: it does not.

    If the model was changed as planned, at other steps than ours, it is not compared: loading adapts ours.
    """
    if _made(tree) != _made(ours):
        return ""
    here, there = _rows(ours), _rows(tree)
    for index in range(max(len(here), len(there))):
        mine = here[index] if index < len(here) else "missing"
        theirs = there[index] if index < len(there) else "missing"
        if mine != theirs:
            return f"its model differs: tensor {index} is {mine} here, {theirs} there"
    num_here, num_there = _num_given(ours), _num_given(tree)
    if num_here != num_there:
        return f"it has {num_there} optimizers and objects in `extra`, but this script passes {num_here}"
    if len(ours["parts"]) != len(tree["parts"]):  # rounds have a part more
        names = ["p2p.DataParallel", "p2p.DiLoCo"][:: 1 if len(ours["parts"]) < len(tree["parts"]) else -1]
        return "this script trains with {}, and it is of {}".format(*names)
    return ""


def _num_given(tree: Any) -> int:
    """The number of optimizers and objects in `extra` of a state; after them it has parts of the wrapper."""
    parts = tree["parts"]
    of_model = (index for index, part in reversed([*enumerate(parts)]) if part.keys() >= OF_MODEL)
    return next(of_model, len(parts))


def _made(tree: Any) -> Any:
    """The steps after which the model was changed."""
    part = tree["parts"][_num_given(tree) :][:1]
    return part[0]["made"] if part else []


def _rows(tree: Any) -> list[str]:
    names = name_slots(tree)
    rows = [(name, row) for name, row in zip(names, tree["slots"], strict=True) if name.startswith("model.")]
    return [f"{name.removeprefix('model.')} {dtype}{list(shape)}" for name, (shape, dtype, _) in rows]


class Resume:
    """Resumes a checkpoint together with the other founders.

    Attributes:
        path: of the best checkpoint that this peer can read.
        piece_bytes: bytes of a state that are sent per step.
    """

    def __init__(self, session: Session, calls: Calls, replica: Replica, folder: Path, forced: str) -> None:
        """Read nothing yet.

        Args:
            session: has a seat, and has committed only step 0.
            calls: operations of this peer.
            replica: receives the state.
            folder: of the checkpoints.
            forced: path of the checkpoint to resume; empty: the best one.
        """
        self._session, self._calls, self._replica = session, calls, replica
        self._folder, self._forced = folder, forced
        self._bad: dict[str, str] = {}
        self._said: set[Path] = set()
        self.path, self.piece_bytes = Path(), PIECE_BYTES

    def run(self) -> tuple[Ancestry, Manifest | None]:
        """Load the checkpoint that all resume, if there is one.

        Returns:
            The ancestry of the state, and the manifest, if this peer has sent the checkpoint.

        Raises:
            ShoalError: checkpoints exist and none is usable, or it is ambiguous which one is meant.
            OperationMismatch, QuorumLost, RemovedFromView, StepTimeout: as any operation.
        """
        while True:
            offers = self._gather(self._find())
            chosen = choose(offers)
            if chosen is None:
                view = self._session.history.known_view()
                return Ancestry(view.lineage.hex(), 1), None
            source, offer = chosen
            manifest, state, why = self._read(offer) if source == self._session.loop.peer_id else (None, None, "")
            if self._fetch(source, offer, state, why):
                start = 1 + max(each.latest_start for _, each in offers)
                return Ancestry(offer.run, start, offer.id, offer.step), manifest

    # The choice.

    def _find(self) -> Offer:
        """The best checkpoint that this peer can read, judging by manifests."""
        ours = unpack_tree(self._replica.pack().tree)
        paths = [Path(self._forced)] if self._forced else checkpoints(self._folder)
        fitting: list[tuple[Manifest, Path]] = []
        seen: list[Manifest] = []
        trouble, latest = "", 0
        for path in paths:
            try:
                seen.append(manifest := read_manifest(path))
                latest = max(latest, manifest.ancestry.start)
                if why := self._why_not(manifest, ours):
                    raise UnusableCheckpointError(f"checkpoint {path}: {why}")
            except UnusableCheckpointError as error:
                trouble = str(error)[:MOST_WORDS]
                self._say_once(path, trouble)
                continue
            if manifest.id in self._bad:
                trouble = self._bad[manifest.id]
                continue
            fitting.append((manifest, path))
        fitting = [(each, path) for each, path in fitting if not any(is_abandoned(each, later) for later in seen)]
        starts = [each.ancestry.start for each in manifests(self._folder).values()] if self._forced else []
        latest = max(latest, *starts, 0)  # the next start must be later than all of them
        if not fitting:
            return Offer(is_forced=bool(self._forced), trouble=trouble, latest_start=latest)
        manifest, self.path = max(fitting, key=lambda each: each[0].recency)
        others = [each for each in fitting if each[0].ancestry.run != manifest.ancestry.run]
        rival, path = max(others, key=lambda each: each[0].recency, default=(None, Path()))
        return Offer(
            rival="" if rival is None else in_words(str(path)[-MOST_WORDS:], rival.ancestry.run, rival.step),
            path=str(self.path)[-MOST_WORDS:],
            id=manifest.id,
            run=manifest.ancestry.run,
            start=manifest.ancestry.start,
            step=manifest.step,
            latest_start=latest,
            is_forced=bool(self._forced),
        )

    def _why_not(self, manifest: Manifest, ours: Any) -> str:
        try:
            indices = {name: index for index, name in enumerate(manifest.digests)}
            return misfit(from_json(manifest.tree, indices), ours)
        except (KeyError, ValueError, TypeError, AttributeError, RemoteProtocolError) as error:
            return f"it does not describe a state: {error!r}"

    def _say_once(self, path: Path, trouble: str) -> None:
        if path not in self._said and not self._forced:
            logger.warning("%s; this checkpoint is skipped", trouble)
        self._said.add(path)

    # The transfer.

    def _fetch(self, source: str, offer: Offer, state: PackedState | None, why: str) -> bool:
        """Load a checkpoint that `source` has read. False: it is damaged, or its holder is gone: all choose again."""
        stream = [] if state is None else _flatten(state)
        told = dict(self._tell({"size": sum(part.size for part in stream), "why": why[:MOST_WORDS]}))
        if source not in told:
            return False
        if told[source]["why"]:
            self._bad[offer.id] = told[source]["why"]
            return False
        whole = self._send(source, stream, told[source]["size"])
        if whole is None:
            return False
        self._load(_split(whole), offer)
        return True

    def _read(self, offer: Offer) -> tuple[Manifest | None, PackedState | None, str]:
        path = self.path
        try:
            manifest = read_manifest(path)
            if manifest.id != offer.id:
                raise UnusableCheckpointError(f"checkpoint {path} was replaced by another one in the meantime")
            return manifest, read_state(path, manifest), ""
        except UnusableCheckpointError as error:
            self._say_once(path, str(error))
            return None, None, str(error)

    def _send(self, source: str, stream: Sequence[np.ndarray[Any, Any]], size: int) -> memoryview | None:
        """Send the bytes of `stream`, which only `source` has, to every peer; None: `source` is gone."""
        whole = np.empty(-(-size // 8) * 8, np.uint8)
        end = 0
        for part in stream:
            whole[end : end + part.size] = part
            end += part.size
        piece = np.empty(self.piece_bytes // 8, np.int64)
        for start in range(0, whole.size, self.piece_bytes):
            part = whole[start : start + self.piece_bytes].view(np.int64)
            mine = piece[: part.size]
            mine[...] = part if stream else 0
            self._calls.all_reduce(mine, "sum", None, out=None, async_op=False, commit=True)  # integers keep every bit
            if source not in self._counted():
                return None
            part[...] = mine
        return whole[:size].data

    def _load(self, state: PackedState, offer: Offer) -> None:
        try:
            with self._session.share.resuming():
                self._replica.load(state)
        except (JoinRefused, RemoteProtocolError) as error:
            raise ShoalError(f"checkpoint {offer.path} does not fit this script: {error}") from None

    def _gather(self, offer: Offer) -> Offers:
        fields = {name: getattr(offer, name) for name in Offer.__slots__}
        return [(peer_id, Offer(**fields)) for peer_id, fields in self._tell(fields)]

    def _tell(self, fields: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Exchange messages with all members; returns (peer_id, message) of each."""
        text = json.dumps(fields).encode()
        row = np.zeros(ROW_BYTES, np.uint8)
        row[: len(text)] = np.frombuffer(text, np.uint8)
        rows = self._calls.gather(row, "which checkpoint to resume (checkpoint=)")
        return [(who, json.loads(bytes(each).rstrip(b"\0"))) for who, each in zip(self._counted(), rows, strict=True)]

    def _counted(self) -> tuple[str, ...]:
        return self._session.share.contributors


def _flatten(state: PackedState) -> list[np.ndarray[Any, Any]]:
    """A state as one stream of bytes: the number and lengths of its parts, then the parts."""
    parts = [np.frombuffer(part, np.uint8) for part in (state.tree, *state.tensors)]
    lengths = np.array([len(parts), *(part.size for part in parts)], np.int64)
    return [lengths.view(np.uint8), *parts]


def _split(stream: memoryview) -> PackedState:
    """The inverse of `_flatten`."""
    number = int(np.frombuffer(stream[:8], np.int64)[0])
    lengths = np.frombuffer(stream[8 : 8 * (number + 1)], np.int64).tolist()
    parts: list[memoryview] = []
    start = 8 * (number + 1)
    for length in lengths:
        parts.append(stream[start : start + length])
        start += length
    tree, *tensors = parts
    return PackedState(bytes(tree), tensors)
