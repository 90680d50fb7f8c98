"""Scripts that use several streams of a device at a time."""

import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from p2p import Peer
from p2p.training.tensors.staged_buckets import StagedBucket
from tests.p2p.staging.standin import StandIn
from tests.p2p.staging.streams import Watching


def watched(device: Any) -> AbstractContextManager[object]:
    """Check the order of torch's operations between streams in this block."""
    return Watching(device) if isinstance(device, StandIn) else nullcontext()


def fill_on_streams(bucket: StagedBucket, device: Any, drawn: random.Random) -> None:
    """Three steps of one bucket of five parameters, each of four elements."""
    names = [device.current_stream(), "left", "right"]
    for step in range(3):
        here = drawn.choice(names)
        expected = [torch.zeros(4) for _ in bucket.parameters]
        for fraction in drawn.choice([[1.0], [0.5], [1.0, 1.0], [0.5, 0.5, 0.5]]):
            bucket.begin_pass()
            for index in drawn.sample(range(len(expected)), len(expected)):
                value = float(2 * drawn.randrange(20))
                with device.on(drawn.choice([here, *names])):
                    bucket.add(index, torch.full((4,), value, device=device.where), fraction)
                expected[index] += fraction * value
        with device.on(drawn.choice(names)):
            bucket.fetch()
        bucket.wait()
        values = torch.from_numpy(bucket.operation.input[:20])
        assert torch.equal(values, torch.cat(expected)), (step, values, expected)
        bucket.operation.result[...] = bucket.operation.input
        bucket.operation.result[20:] = 1
        assert bucket.operation.on_complete is not None
        with device.on(here):
            bucket.operation.on_complete(b"a view")
            given = [each for each in bucket.result_views() if each is not None]
            assert torch.equal(torch.cat(given).cpu(), values), (step, given, expected)
        bucket.begin_step()


def wait_on_streams(peer: Peer, device: Any, drawn: random.Random) -> None:
    """Three operations of one step, each waited for on a stream, and used there."""
    tensors = [torch.arange(12.0, device=device.where) + index for index in range(3)]
    given = [drawn.choice([each, each.view(3, 4).t()]) for each in tensors]
    names = [device.current_stream(), "left", "right"]
    waits = [peer.all_reduce(each, async_op=True).wait for each in given]
    waits[drawn.randrange(3)] = peer.wait
    for index in drawn.sample(range(3), 3):
        with device.on(drawn.choice(names)):
            waits[index]()
            found = tensors[index] + 0
            assert found.tolist() == [float(index + each) for each in range(12)]  # other streams may have it later
