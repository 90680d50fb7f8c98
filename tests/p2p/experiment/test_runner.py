"""Signals that end a run: they take effect once all of it is cleaned up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from p2p.experiment.run.runner import _signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_once_all_of_it_is_cleaned_up(number: signal.Signals) -> None:
    before, heard = signal.getsignal(number), list[bool]()

    def run() -> None:
        with _signals() as is_interrupted:
            heard.append(is_interrupted())
            signal.raise_signal(number)
            heard.append(is_interrupted())

    with _handler(signal.SIGHUP, signal.SIG_DFL), pytest.raises(KeyboardInterrupt):
        run()
    assert heard == [False, True]
    assert signal.getsignal(number) is before


def test_what_nohup_has_ignored_stays_so() -> None:
    with _handler(signal.SIGHUP, signal.SIG_IGN), _signals() as is_interrupted:
        signal.raise_signal(signal.SIGHUP)
        assert not is_interrupted()


@contextmanager
def _handler(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
