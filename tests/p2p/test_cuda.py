"""The code for CUDA, as far as it can be tested without a GPU."""

import numpy as np
import torch

from p2p import cuda


def test_memory_that_may_only_be_read_is_a_tensor_without_a_warning() -> None:
    array = np.arange(40, dtype=np.float32)
    array.flags.writeable = False
    tensor = cuda._of_bytes(array)
    assert tensor.data_ptr() == array.ctypes.data and torch.equal(tensor.view(torch.float32), torch.arange(40.0))
    expected = array.copy()
    del array  # the tensor keeps it alive
    assert tensor.numpy().tobytes() == expected.tobytes()
