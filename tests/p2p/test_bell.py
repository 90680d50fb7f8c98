import os
import select
import subprocess
import sys

import pytest

from p2p.bell import Bell, Rope, link_of


def rings(bell: Bell) -> bool:
    return bool(select.select([bell.fd], [], [], 0)[0])


def rope_of(bell: Bell) -> Rope:
    return Rope(os.open(f"/proc/self/fd/{bell.fd}", os.O_RDWR | os.O_NONBLOCK))


def test_a_bell_rings_until_it_is_heard_however_often_it_was_rung() -> None:
    bell = Bell()
    rope = rope_of(bell)
    assert not rings(bell) and not bell.silence()
    for _ in range(3):
        rope.pull()
    assert rings(bell) and bell.silence()
    assert not rings(bell)
    bell.close()


def test_ringing_never_waits_even_if_nobody_hears() -> None:
    bell = Bell()
    rope = rope_of(bell)
    for _ in range(100_000):  # more than a pipe holds
        rope.pull()
    assert rings(bell)
    bell.close()
    rope.pull()


def test_a_bell_is_found_by_its_number() -> None:
    bell = Bell()
    assert os.readlink(f"/proc/self/fd/{bell.fd}") == link_of(bell.number)
    bell.close()


def test_a_rope_is_gone_with_whoever_had_it() -> None:
    bell = Bell()
    fd = os.open(f"/proc/self/fd/{bell.fd}", os.O_RDWR | os.O_NONBLOCK)
    rope = Rope(fd)
    rope.pull()
    del rope
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    bell.close()


LATE = """
import atexit, os
from p2p.bell import Bell, Rope

def leave():
    rope.pull()
    assert bell.silence()
    print("rung")

bell = Bell()
atexit.register(leave)
rope = Rope(os.open(f"/proc/self/fd/{bell.fd}", os.O_RDWR | os.O_NONBLOCK))
"""
DEAD = """
import os, signal
from p2p.bell import Bell, Rope

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
bell = Bell()
rope = Rope(os.open(f"/proc/self/fd/{bell.fd}", os.O_RDWR | os.O_NONBLOCK))
bell.close()
rope.pull()
print("rung")
"""


@pytest.mark.parametrize("script", [LATE, DEAD])
def test_a_rope_can_be_pulled_until_the_end_whoever_is_dead(script: str) -> None:
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "rung\n"), ended.stderr
