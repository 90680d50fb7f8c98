"""A reporter that has no thread has not begun."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

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
