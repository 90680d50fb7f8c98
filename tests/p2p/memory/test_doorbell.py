import os
import select
import subprocess
import sys

import pytest

from p2p.memory.doorbell import Doorbell, RemoteDoorbell, link_of


def rings(doorbell: Doorbell) -> bool:
    return bool(select.select([doorbell.fd], [], [], 0)[0])


def rope_of(doorbell: Doorbell) -> RemoteDoorbell:
    return RemoteDoorbell(os.open(f"/proc/self/fd/{doorbell.fd}", os.O_RDWR | os.O_NONBLOCK))


def test_a_bell_rings_until_it_is_heard_however_often_it_was_rung() -> None:
    doorbell = Doorbell()
    remote_doorbell = rope_of(doorbell)
    assert not rings(doorbell) and not doorbell.clear()
    for _ in range(3):
        remote_doorbell.ring()
    assert rings(doorbell) and doorbell.clear()
    assert not rings(doorbell)
    doorbell.close()


def test_ringing_never_waits_even_if_nobody_hears() -> None:
    doorbell = Doorbell()
    remote_doorbell = rope_of(doorbell)
    for _ in range(100_000):  # more than a pipe holds
        remote_doorbell.ring()
    assert rings(doorbell)
    doorbell.close()
    remote_doorbell.ring()


def test_a_bell_is_found_by_its_number() -> None:
    doorbell = Doorbell()
    assert os.readlink(f"/proc/self/fd/{doorbell.fd}") == link_of(doorbell.number)
    doorbell.close()


def test_a_rope_is_gone_with_whoever_had_it() -> None:
    doorbell = Doorbell()
    fd = os.open(f"/proc/self/fd/{doorbell.fd}", os.O_RDWR | os.O_NONBLOCK)
    remote_doorbell = RemoteDoorbell(fd)
    remote_doorbell.ring()
    del remote_doorbell
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    doorbell.close()


LATE = """
import atexit, os
from p2p.memory.doorbell import Doorbell, RemoteDoorbell

def leave():
    remote_doorbell.ring()
    assert doorbell.clear()
    print("rung")

doorbell = Doorbell()
atexit.register(leave)
remote_doorbell = RemoteDoorbell(os.open(f"/proc/self/fd/{doorbell.fd}", os.O_RDWR | os.O_NONBLOCK))
"""
DEAD = """
import os, signal
from p2p.memory.doorbell import Doorbell, RemoteDoorbell

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
doorbell = Doorbell()
remote_doorbell = RemoteDoorbell(os.open(f"/proc/self/fd/{doorbell.fd}", os.O_RDWR | os.O_NONBLOCK))
doorbell.close()
remote_doorbell.ring()
print("rung")
"""


@pytest.mark.parametrize("script", [LATE, DEAD])
def test_a_rope_can_be_pulled_until_the_end_whoever_is_dead(script: str) -> None:
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "rung\n"), ended.stderr
