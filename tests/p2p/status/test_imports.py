"""What `shoal status` imports: it should answer at once."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "zmq", "msgpack", "gossip", "collectives")


@pytest.mark.parametrize("module", ["p2p", "p2p.cli", "p2p.status.screen", "p2p.status.report"])
def test_nothing_that_takes_long_is_imported(module: str) -> None:
    source = f"import sys, {module}; print([each for each in {HEAVY} if each in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", source], text=True) == "[]\n"
