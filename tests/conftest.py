import gc
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from bench.here import environment
from collectives import ALGORITHMS, algorithms
from p2p.forking.zygote import WITH_TORCH, Zygote
from tests.live.swarm import WITHOUT_TORCH, Swarm

PROGRAMS = "p2p.cli", "p2p.launch.launcher", "p2p.benchmark.director", "p2p.status"
"""Modules that the commands of `shoal` import."""

settings.register_profile("shoal", max_examples=int(os.environ.get("SHOAL_EXAMPLES", "20")), deadline=None)
settings.load_profile("shoal")
"""Default of properties: this number of examples, new ones in each run; `make thorough` uses more."""


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_left_alone() -> None:
    """Exclude existing objects, of thousands of tests and their imports, from garbage collection and from searches for
    copies of a model among all objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def own_algorithms() -> Iterator[None]:
    """Remove the algorithms that a test has registered."""
    before = set(ALGORITHMS)
    yield
    for name in set(ALGORITHMS) - before:
        del algorithms._BUILDS[name], algorithms._ADDED[name]
    algorithms.all_reduce_schedule.cache_clear()
    algorithms._prove.cache_clear()


@pytest.fixture
def swarm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Swarm]:
    """An empty private swarm. At the end none of its processes may run, and no file but the lock may be left."""
    has_torch = request.node.get_closest_marker("torch") is not None
    zygote: Zygote = request.getfixturevalue("torch_zygote" if has_torch else "zygote")
    with TemporaryDirectory(prefix="shoal-", dir="/tmp") as home:  # tmp_path can be too long for a socket
        private = Swarm(Path(home), tmp_path, zygote)
        yield private
        private.close()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Forks processes without torch, and launchers."""
    with Zygote(environment(), (*WITHOUT_TORCH, *PROGRAMS)) as running:
        yield running


@pytest.fixture(scope="session")
def torch_zygote() -> Iterator[Zygote]:
    """Forks processes that have torch."""
    with Zygote(environment(), WITH_TORCH) as running:
        yield running
