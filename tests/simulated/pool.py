"""Processes in which runs are made, all cores of them."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def pool(
    num_processes: int | None = None, initializer: Callable[..., None] | None = None, *args: Any
) -> ProcessPoolExecutor:
    """Forks of a process that has imported the simulation, and nothing else.

    A fork of this one would have what the tests before have left behind, to collect, and no thread of those that it
    runs: a worker of pytest-xdist has one, and so has a bar that shows progress.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.simulation", "tests.simulated.mutants"])
    return ProcessPoolExecutor(num_processes or len(os.sched_getaffinity(0)), context, initializer, args)
