import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.zygote import Zygote
from tests.live.swarm import Swarm


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    """An empty swarm of its own. At the end nothing of it may run, and no file of it be left but the lock."""
    with TemporaryDirectory(prefix="shoal-", dir="/tmp") as home:  # tmp_path can be too long for a socket
        private = Swarm(Path(home), tmp_path)
        yield private
        private.close()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """Forks processes that have torch."""
    with Zygote(os.environ) as running:
        yield running
