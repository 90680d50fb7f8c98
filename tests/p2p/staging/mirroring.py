"""Parts of a replica that a step mirrors are fetched, and results are stored, repeatedly from the same memory."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from p2p.training.state.mirrors import SMALL_BYTES, Mirror
from p2p.training.tensors.layouts import in_memory_order

SIZES = [(0,), (1,), (7,), (4, 6), (SMALL_BYTES // 4, 2)]
DTYPES = [torch.float32, torch.int64, torch.bfloat16]


def bytes_of(tensor: Tensor) -> bytes:
    with torch._C.DisableTorchFunction():
        return in_memory_order(tensor.detach()).view(torch.uint8).cpu().numpy().tobytes()


def mirror_in_turns(mirror: Mirror, device: Any, drawn: random.Random) -> None:
    """Mirror tensors, or give that up, and change them; create similar tensors from bytes, and use them."""
    tensors = [torch.zeros(drawn.choice(SIZES), dtype=drawn.choice(DTYPES), device=device.where) for _ in range(4)]
    tensors[0] = tensors[0].t() if tensors[0].ndim == 2 else tensors[0]
    for turn in range(4):
        for tensor in tensors:
            tensor.fill_(drawn.randrange(100))  # an update
        expected = [bytes_of(each) for each in tensors]
        mirror.begin(tensors)
        if drawn.random() < 0.5:
            assert [each.tobytes() for each in mirror.read()] == expected, turn
        else:
            mirror.forget()
        for _ in range(drawn.randrange(1, 3)):
            raws = [np.frombuffer(drawn.randbytes(len(each)), np.uint8).copy() for each in expected]
            made = mirror.write(raws, tensors)
            assert [bytes_of(each) for each in made] == [each.tobytes() for each in raws], turn
