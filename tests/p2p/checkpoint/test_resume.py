"""Founders in threads of one process, without peers: what one commits, all do, except those that have died."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Array
from p2p.catchup.replica import Replica
from p2p.checkpoint.folder import checkpoints
from p2p.checkpoint.manifest import TENSORS, Ancestry, Manifest, read_manifest
from p2p.checkpoint.resume import Resume
from p2p.data.sample_tracker import SampleTracker
from p2p.errors import ShoalError
from p2p.net.parcels import PackedState
from tests.p2p.checkpoint.states import RUN, make_state, manifest, written

HANG_S: Final = 20.0
LINEAGE: Final = b"\x01" * 16


class GoneError(Exception):
    """A founder dies here."""


class Founder:
    """A founder, and the state that it receives. It dies before its operation number `dies_at`, from 0."""

    def __init__(self, swarm: "Founders", name: str, folder: Path, *, forced: str = "", dies_at: int = -1) -> None:
        self.swarm, self.name, self.dies_at = swarm, name, dies_at
        self.num_called = 0
        self.share = SampleTracker()
        self.loaded: PackedState | None = None
        self.result: tuple[Ancestry, Manifest | None] | BaseException | None = None
        view = SimpleNamespace(lineage=LINEAGE)
        history = SimpleNamespace(known_view=lambda: view)
        session: Any = SimpleNamespace(share=self.share, history=history, loop=SimpleNamespace(peer_id=name))
        replica = Replica(traits={}, pack=lambda: make_state(100), load=self._load, compare=str)
        self.resume = Resume(session, self, replica, folder, forced)  # type: ignore[arg-type]

    def _load(self, state: PackedState) -> None:
        self.loaded = state

    def run(self) -> None:
        try:
            self.result = self.resume.run()
        except (GoneError, ShoalError) as error:
            self.result = error
        finally:
            self.swarm.gone(self.name)

    def _call(self, value: Array) -> Mapping[str, Array]:
        if self.num_called == self.dies_at:
            raise GoneError
        self.num_called += 1
        values = self.swarm.meet(self.name, value)
        self.share.contributors = tuple(values)
        return values

    def gather(self, row: Array, label: str) -> Array:
        return np.stack(list(self._call(row).values()))

    def all_reduce(self, array: Array, *arguments: object, **named: object) -> None:
        array[...] = sum(self._call(array.copy()).values())


class Founders:
    """All founders, which meet in each operation."""

    def __init__(self) -> None:
        self.founders: list[Founder] = []
        self._news = threading.Condition()
        self._here: dict[str, Array] = {}
        self._gone: set[str] = set()
        self._number = 0
        self._result: Mapping[str, Array] = {}

    def add(self, folder: Path, *, forced: str = "", dies_at: int = -1) -> Founder:
        self.founders.append(Founder(self, "abc"[len(self.founders)], folder, forced=forced, dies_at=dies_at))
        return self.founders[-1]

    def run(self) -> None:
        threads = [threading.Thread(target=founder.run, daemon=True) for founder in self.founders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive()

    def meet(self, name: str, value: Array) -> Mapping[str, Array]:
        with self._news:
            number = self._number
            self._here[name] = value
            self._commit_if_all_are_here()
            assert self._news.wait_for(lambda: self._number > number, HANG_S)
            return self._result

    def gone(self, name: str) -> None:
        with self._news:
            self._gone.add(name)
            self._commit_if_all_are_here()

    def _commit_if_all_are_here(self) -> None:
        members = [founder.name for founder in self.founders if founder.name not in self._gone]
        if members and self._here.keys() >= {*members}:
            self._result = {name: self._here[name] for name in members}
            self._here, self._number = {}, self._number + 1
            self._news.notify_all()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Folders: `long` has the newest checkpoint, `short` an older one, `empty` none."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("long", "short", "empty")}
    written(made["long"], [10, 20])
    written(made["short"], [15])
    return made


def has(founder: Founder, step: int) -> bool:
    """Whether a founder received, bit by bit, the state of that checkpoint."""
    expected, found = make_state(step), founder.loaded
    return found is not None and (found.tree, [bytes(part) for part in found.tensors]) == (
        expected.tree,
        list(expected.tensors),
    )


def test_all_are_given_the_best_one_that_any_can_read(folders: Mapping[str, Path]) -> None:
    swarm = Founders()
    founders = [swarm.add(folders[name]) for name in ("empty", "long", "short")]
    swarm.run()
    for founder in founders:
        assert has(founder, 20)
        assert isinstance(founder.result, tuple)
        ancestry, manifest = founder.result
        assert (ancestry.run, ancestry.start, ancestry.parent_step) == (RUN, 2, 20)
        assert (manifest is not None) == (founder.name == "b")


def test_where_nobody_has_any_the_run_begins(folders: Mapping[str, Path]) -> None:
    swarm = Founders()
    founders = [swarm.add(folders["empty"]) for _ in range(2)]
    swarm.run()
    assert [founder.result for founder in founders] == [(Ancestry(LINEAGE.hex(), 1), None)] * 2
    assert all(founder.loaded is None for founder in founders)


@given(dies_at=st.integers(0, 40), order=st.permutations(["long", "short", "empty"]))
@settings(max_examples=25)
def test_whoever_dies_meanwhile_all_others_have_one_state_and_it_is_whole(
    folders: Mapping[str, Path], dies_at: int, order: list[str]
) -> None:
    swarm = Founders()
    founders = {name: swarm.add(folders[name], dies_at=dies_at if name == "long" else -1) for name in order}
    for founder in founders.values():
        founder.resume.piece_bytes = 256
    swarm.run()
    is_dead = isinstance(founders["long"].result, GoneError)
    steps = {20} if not is_dead else {15, 20}
    survivors = [founder for founder in founders.values() if not isinstance(founder.result, GoneError)]
    assert len(survivors) == 3 - is_dead
    assert any(all(has(founder, step) for founder in survivors) for step in steps)
    if is_dead:
        assert all(has(founder, 15) for founder in survivors)


def test_one_that_is_not_whole_is_passed_over_by_all(folders: Mapping[str, Path], tmp_path: Path) -> None:
    written(tmp_path, [20, 30])
    tensors = tmp_path / "00000030" / TENSORS
    tensors.write_bytes(tensors.read_bytes()[:-1])
    swarm = Founders()
    founders = [swarm.add(folder) for folder in (tmp_path, folders["short"])]
    swarm.run()
    assert all(has(founder, 20) for founder in founders)


def test_where_the_last_start_is_not_whole_nobody_is_led_back_to_what_it_had_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, [10, 20, 30])
    before = read_manifest(tmp_path / "00000010")
    later = written(tmp_path, [], start=2)
    later.begin(make_state(15), manifest(15, Ancestry(RUN, 2, before.id, 10)))
    later.wait()
    damaged = tmp_path / "00000015"
    (damaged / TENSORS).write_bytes(b"")
    (tmp_path / "00000005").mkdir()
    swarm = Founders()
    founder = swarm.add(tmp_path)
    swarm.run()
    assert has(founder, 10)
    said = [each for each in caplog.messages if each.endswith("; this checkpoint is skipped")]
    assert [each.partition(":")[0] for each in said] == [f"checkpoint {tmp_path / '00000005'}", f"checkpoint {damaged}"]


def test_where_none_is_whole_all_are_told_why(folders: Mapping[str, Path], tmp_path: Path) -> None:
    written(tmp_path, [30])
    (path,) = checkpoints(tmp_path)
    (path / TENSORS).unlink()
    swarm = Founders()
    founders = [swarm.add(folders["empty"]), swarm.add(tmp_path)]
    swarm.run()
    for founder in founders:
        assert isinstance(founder.result, ShoalError) and f"checkpoint {path}: {TENSORS}" in str(founder.result)


def test_two_runs_in_one_folder_are_named_and_neither_is_taken(folders: Mapping[str, Path], tmp_path: Path) -> None:
    other = "ef" * 16
    written(tmp_path, [10])
    written(tmp_path, [30], run=other)
    for first, second in ((tmp_path, folders["empty"]), (folders["long"], tmp_path)):
        swarm = Founders()
        founders = [swarm.add(folder) for folder in (first, second)]
        swarm.run()
        for founder in founders:
            said = str(founder.result)
            assert isinstance(founder.result, ShoalError) and said.startswith(
                "it is not clear which checkpoint to resume: "
            )
            assert f"of run {RUN[:8]}, step " in said and f"of run {other[:8]}, step 30" in said
    swarm = Founders()
    founder = swarm.add(tmp_path, forced=str(tmp_path / "00000010"))
    swarm.run()
    assert has(founder, 10)


def test_one_that_is_named_is_taken_and_the_next_start_is_later_than_all(tmp_path: Path) -> None:
    written(tmp_path, [10, 20])
    written(tmp_path, [15], start=2)
    swarm = Founders()
    founders = [swarm.add(tmp_path, forced=str(tmp_path / "00000010")) for _ in range(2)]
    swarm.run()
    for founder in founders:
        assert has(founder, 10)
        assert isinstance(founder.result, tuple) and founder.result[0].start == 3
