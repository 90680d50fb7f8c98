"""A worker's death is reported where a batch is awaited, whatever the main thread does at that moment."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from torch.utils.data import DataLoader

from p2p.data.worker_deaths import WorkerDeaths


@pytest.fixture
def handler_is_kept() -> Iterator[None]:
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("handler_is_kept")
class TestOfAWorkerThatDies:
    @pytest.fixture
    def deaths(self) -> WorkerDeaths:
        """Worker deaths with a stand-in of torch's handler, which reports any child as a worker."""

        def handler(number: int, frame: FrameType | None) -> None:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

        handler.__module__ = DataLoader.__module__.replace("dataloader", "_utils.signal_handling")
        signal.signal(signal.SIGCHLD, handler)
        deaths = WorkerDeaths()
        deaths.take_over()
        assert signal.getsignal(signal.SIGCHLD) is not handler
        return deaths

    def test_it_is_raised_when_a_batch_is_waited_for_and_once(self, deaths: WorkerDeaths) -> None:
        signal.raise_signal(signal.SIGCHLD)  # during other work
        with pytest.raises(RuntimeError, match="pid 7"), deaths.raised_here():
            raise AssertionError("it is raised before anything is waited for")
        with deaths.raised_here():
            pass

    def test_it_is_raised_while_a_batch_is_waited_for(self, deaths: WorkerDeaths) -> None:
        with pytest.raises(RuntimeError, match="pid 7"), deaths.raised_here():
            signal.raise_signal(signal.SIGCHLD)
        signal.raise_signal(signal.SIGCHLD)  # not afterwards

    def test_it_is_not_raised_for_a_loader_that_is_closed(self, deaths: WorkerDeaths) -> None:
        signal.raise_signal(signal.SIGCHLD)
        deaths.forget()
        with deaths.raised_here():
            pass


@pytest.mark.usefixtures("handler_is_kept")
def test_a_handler_of_the_scripts_own_stays() -> None:
    heard: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    signal.signal(signal.SIGCHLD, handler)
    WorkerDeaths().take_over()
    assert signal.getsignal(signal.SIGCHLD) is handler
