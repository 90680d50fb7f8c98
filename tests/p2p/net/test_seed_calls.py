"""Calls to addresses of unknown peers."""

import errno

import pytest
import zmq

from p2p.net.links import SeedCalls
from tests.p2p.host.few_files import few_files

NOBODY = "tcp://127.0.0.1:1"


def test_a_call_for_which_there_is_no_file_is_made_when_there_is_one() -> None:
    with zmq.Context() as context:
        calls = SeedCalls(context, lambda socket, target, address: None)
        for number in range(4):
            with few_files(number):
                assert calls.call(NOBODY, []) is None and not calls._calls
        calls.call(NOBODY, [])
        assert list(calls._calls) == [NOBODY]
        calls.close()


def test_of_a_call_that_cannot_be_made_nothing_stays_open() -> None:
    """Otherwise ending the context would wait for it for ever."""
    with zmq.Context() as context:

        def fail(socket: "zmq.Socket[bytes]", target: str, address: str) -> None:
            raise zmq.ZMQError(errno.EMFILE)

        for introduce, address in ((fail, NOBODY), (lambda socket, target, address: None, "tcp://nowhere")):
            with pytest.raises(zmq.ZMQError):
                SeedCalls(context, introduce).call(address, [])
