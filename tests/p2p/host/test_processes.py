"""The kernel's information about processes: whether one runs any code."""

import signal
import struct
import subprocess
import sys
from pathlib import Path

from p2p.host.processes import is_stopped, stands_still

COUNT = """
import mmap, sys, threading
file = open(sys.argv[1], "r+b")
memory = memoryview(mmap.mmap(file.fileno(), 64)).cast("Q")

def count(index):
    while True:
        memory[index] += 1

for index in range(8):
    threading.Thread(target=count, args=(index,), daemon=True).start()
print("here", flush=True)
sys.stdin.read()
"""


def test_a_process_whose_threads_are_all_stopped_writes_nothing_until_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_bytes(bytes(64))

    def counts() -> list[int]:
        return list(struct.unpack("8Q", path.read_bytes()))

    with subprocess.Popen(
        [sys.executable, "-c", COUNT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"here\n"
            assert not stands_still(process.pid)
            for _ in range(20):
                process.send_signal(signal.SIGSTOP)
                while not stands_still(process.pid):
                    pass
                before = counts()
                assert is_stopped(process.pid)
                assert [counts() for _ in range(20)] == [before] * 20
                process.send_signal(signal.SIGCONT)
                while counts() == before:
                    pass
                assert not stands_still(process.pid)
        finally:
            process.kill()
    assert not stands_still(process.pid)
