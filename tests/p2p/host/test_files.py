"""The limit of open files: whether a peer can run, and which limits are not changed."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from p2p.host.files import is_near_fd_limit, why_too_few_files


@pytest.fixture
def soft() -> Iterator[int]:
    """Sets the soft limit a little above the number of open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_last_files_are_left_for_those_who_connect(soft: int) -> None:
    with ExitStack() as stack:
        num_opened = 0
        while not is_near_fd_limit():
            stack.enter_context(open(os.devnull, "rb"))
            num_opened += 1
        assert num_opened >= 100
        for _ in range(min(64, soft // 8)):
            stack.enter_context(open(os.devnull, "rb"))
        with pytest.raises(OSError, match="Too many open files"):
            for _ in range(2):
                stack.enter_context(open(os.devnull, "rb"))
        assert is_near_fd_limit()
    assert not is_near_fd_limit()


def test_a_number_that_is_free_among_many_that_are_not_is_one_file_and_no_more(soft: int) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(open(os.devnull, "rb"))
        while not is_near_fd_limit():
            stack.enter_context(open(os.devnull, "rb"))
        stack.enter_context(open(os.devnull, "rb"))
        first.close()
        assert is_near_fd_limit()


def test_more_peers_need_more_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = (hard - 28 - 5) // 13 + 1
    assert why_too_few_files(enough, has_tcp=False, num_open=5) == ""
    assert f"each of {enough + 2} peers needs" in why_too_few_files(enough + 2, has_tcp=True, num_open=5)
