import logging
import resource
import threading
from pathlib import Path

import pytest

from p2p.checkpoint import Checkpoint
from p2p.checkpoint.folder import checkpoints, read_state
from p2p.checkpoint.manifest import Ancestry, read_manifest
from p2p.checkpoint.writer import Writer, child_of
from p2p.net.parcels import PackedState
from tests.p2p.checkpoint.states import RUN, make_state, manifest, written


def test_a_state_may_change_as_soon_as_it_is_copied(tmp_path: Path) -> None:
    state = make_state(1)
    lent = [bytearray(part) for part in state.tensors]
    writer = Writer(Checkpoint(tmp_path, every=1), "peer")
    writer.prepare(state)
    writer.wait()
    writer.begin(PackedState(state.tree, [memoryview(part) for part in lent]), manifest(1))
    for part in lent:
        part[:] = bytes(len(part))
    writer.wait()
    path = tmp_path / "00000001"
    assert [bytes(part) for part in read_state(path, read_manifest(path)).tensors] == list(state.tensors)


def test_a_checkpoint_names_the_one_before(tmp_path: Path) -> None:
    writer = written(tmp_path, [5])
    ancestry = child_of(writer.written, Ancestry(RUN, 2, "f" * 32, 3))
    assert ancestry == Ancestry(RUN, 2, read_manifest(tmp_path / "00000005").id, 5)
    assert child_of(None, ancestry) == ancestry


def test_a_disk_that_is_full_is_one_line_and_the_next_checkpoint_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = written(tmp_path, [5])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # the kernel's error is then that a file is too large
    try:
        writer.begin(make_state(6), manifest(6))
        writer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    start = f"cannot write the checkpoint of step 6 to {tmp_path}, and the last one is that of step 5: "
    assert record.message.startswith(start) and record.message.endswith(
        "; training continues, and the next one will be tried"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["00000005"]
    assert writer.failure
    writer.begin(make_state(7), manifest(7))
    writer.wait()
    assert not writer.failure and [path.name for path in checkpoints(tmp_path)] == ["00000005", "00000007"]


def test_who_waits_for_a_disk_that_hangs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_said = threading.Event()

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if f"still writing a checkpoint to {tmp_path} after more than 0.01 s" in record.getMessage():
                is_said.set()

    monkeypatch.setattr("p2p.checkpoint.writer.SAID_S", 0.01)
    monkeypatch.setattr("os.fsync", lambda fd: is_said.wait(20.0))
    handler = Said()
    logging.getLogger("p2p").addHandler(handler)
    try:
        assert written(tmp_path, [5]).failure == "" and is_said.is_set()
    finally:
        logging.getLogger("p2p").removeHandler(handler)


@pytest.mark.parametrize(("every", "keep"), [(0, None), (1, 0)])
def test_numbers_that_are_none_are_refused(every: int, keep: int | None) -> None:
    with pytest.raises(ValueError, match="must be at least 1, is 0"):
        Checkpoint("folder", every=every, keep=keep)
