"""A reporter that has no thread, and a launcher that has died."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from p2p.host.exiting import lives
from p2p.host.processes import process_start
from p2p.session.reporter import has_died

NO_THREAD = """
import resource, sys
import p2p
from p2p.session.reporter import Reporter

peer = p2p.join(swarm="pond", home=sys.argv[1])
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (6 << 20), -1))  # less than the stack of a thread
try:
    Reporter(peer._session, "pond", None, print).start()
except RuntimeError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
peer.leave()
"""


def test_a_peer_whose_reports_cannot_begin_leaves() -> None:
    with TemporaryDirectory(prefix="shoal-") as home:  # tmp_path can be too long for a socket
        done = subprocess.run(
            [sys.executable, "-c", NO_THREAD, home],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[3],
        )
    assert (done.returncode, done.stdout) == (0, "can't start new thread\n"), done.stderr


LARGE = "import sys; held = b'x' * (300 << 20); print('here', flush=True); sys.stdin.read()"


def test_a_launcher_that_was_killed_has_died_before_its_memory_is_given_back() -> None:
    """Its sockets are closed, which is reported once, before it is a zombie."""
    with subprocess.Popen(
        [sys.executable, "-c", LARGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        start = process_start(process.pid)
        assert start is not None and not has_died(process.pid) and not has_died(os.getpid())
        process.kill()
        while lives(process.pid, start):
            pass
        assert has_died(process.pid)
