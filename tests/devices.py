"""Devices of a test's tensors: the host, and once more the first GPU, if there is one."""

from typing import Final

import pytest

from p2p.staging import cuda_devices

PLACES: Final = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
"""For `pytest.mark.parametrize("where", PLACES)`."""


def need(where: str) -> None:
    """Skip the test if there is no such device."""
    found, why = cuda_devices()
    if where != "cpu" and not found:
        pytest.skip(f"no GPU: {why}")
