"""A pool of processes for runs, one per core."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def pool(
    num_processes: int | None = None, initializer: Callable[..., None] | None = None, *args: Any
) -> ProcessPoolExecutor:
    """Processes forked from one that has imported only the simulation.

    Forks of this process would inherit the garbage of earlier tests, but not its threads, such as those of a
    pytest-xdist worker or a progress bar.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.simulation", "tests.simulated.mutants"])
    return ProcessPoolExecutor(num_processes or len(os.sched_getaffinity(0)), context, initializer, args)
