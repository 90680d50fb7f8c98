"""Calls of a script, at a peer that is alone."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from p2p import Peer, PeerConfig, ShoalError
from p2p.benchmark.recorded import bucket_sizes
from p2p.config import LoopConfig
from p2p.device import HOST
from p2p.telemetry.records import Kind, unpack_record
from p2p.telemetry.trace import Tail, write_trace
from tests.cases import some_of
from tests.p2p.staging.standin import StandIn


@pytest.fixture(params=["host", "stand-in"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A peer with a seat. Tensors are in memory of the host, or on a device."""
    loop = LoopConfig() if request.param == "host" else LoopConfig(device_of=StandIn(0).device_of)
    with (
        TemporaryDirectory(prefix="shoal") as folder,  # tmp_path can be too long for a socket
        Peer(PeerConfig(swarm="pond", home=Path(folder) / "home", step_timeout_s=20.0, loop=loop)) as peer,
    ):
        peer.wait_view()
        yield peer


def test_operations_whose_handles_were_dropped_can_be_waited_for(peer: Peer) -> None:
    tensors = [torch.arange(5.0), torch.arange(7)]
    for tensor in tensors:
        peer.all_reduce(tensor, async_op=True)
    with pytest.raises(ShoalError, match=r"asynchronous operations are open: call `peer\.wait\(\)`"):
        peer.barrier()
    peer.wait()
    assert peer.last_step == 1
    peer.barrier()
    assert (
        peer.last_step == 2 and tensors[0].tolist() == [0, 1, 2, 3, 4] and tensors[1].tolist() == [0, 1, 2, 3, 4, 5, 6]
    )


@pytest.mark.parametrize("peer", ["host"], indirect=True)
@pytest.mark.parametrize("given", [{}, {"out": True}, {"async_op": True}, {"commit": False}], ids=str)
def test_a_backward_pass_that_needs_what_a_result_has_replaced_raises(peer: Peer, given: dict[str, Any]) -> None:
    factor, weight = torch.ones(2), torch.ones(2, requires_grad=True)
    loss = (factor * weight).sum()
    if "out" in given:
        peer.broadcast(torch.full((2,), 3.0), out=factor)
    else:
        peer.broadcast(factor, **given)
        peer.wait()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]
    with torch.inference_mode():  # whose tensors cannot need gradients
        peer.all_reduce(torch.ones(3))


def test_what_is_only_read_may_be_read_only_or_expanded_and_what_is_written_may_not(peer: Peer) -> None:
    expanded = torch.ones(1).expand(3)
    assert peer.all_gather(expanded).tolist() == [[1, 1, 1]]
    assert peer.reduce_scatter(np.frombuffer(b"abc", np.uint8))[0].tobytes() == b"abc"
    assert peer.all_gather(np.frombuffer(b"abc", np.uint8), commit=False).tobytes() == b"abc"
    with pytest.raises(ValueError, match="several elements of the tensor share one place"):
        peer.broadcast(expanded)
    peer.broadcast(expanded, out=(result := torch.zeros(3)))
    assert result.tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match=r"root must be a rank of `peer\.view`, 0 to 0, or a peer_id, is None"):
        peer.broadcast(result, root=None)  # type: ignore[arg-type]
    peer.barrier()


def test_a_wait_for_nothing_returns_at_once_and_one_after_a_handles_own_is_one(peer: Peer) -> None:
    peer.wait()
    peer.all_reduce(torch.ones(3), async_op=True).wait()
    peer.wait()
    assert peer.last_step == 1


def test_a_wait_in_a_block_leaves_its_operations_to_its_end(peer: Peer) -> None:
    with peer.step(samples=1):
        peer.all_reduce(torch.ones(3))
        peer.wait()
        assert peer.last_step == 0
    assert peer.last_step == 1


def test_arrays_of_the_host_are_none_of_the_device_and_out_is_where_the_tensor_is(peer: Peer) -> None:
    array, out = np.arange(4.0), np.zeros(4)
    peer.all_reduce(array, out=out)
    assert out.tolist() == [0, 1, 2, 3] and peer.last_step == 1
    if peer._session.device_of(torch.ones(1)) is not HOST:
        for tensor, other in ((torch.ones(4), out), (array, torch.ones(4))):
            with pytest.raises(ValueError, match=r"out is on .*cpu.*pass both on one device|out is on the CPU"):
                peer.all_reduce(tensor, out=other)
    assert peer.last_step == 1


@pytest.mark.parametrize(
    ("tensor", "given", "error"),
    [
        (torch.ones(4), {"out": torch.ones(3)}, "out must be contiguous, .*4.*is .*3"),
        (torch.ones(4), {"out": torch.ones(8)[::2]}, "out must be contiguous"),
        (torch.ones(4), {"out": torch.ones(4, dtype=torch.int32)}, "out must be contiguous, .*float32.*is .*int32"),
        (torch.ones(4, dtype=torch.complex64), {}, "complex64"),
        (torch.ones(4).to_sparse(), {}, "need a dense tensor"),
        (torch.ones(4, device="meta"), {}, "meta"),
        (torch.ones(4), {"algorithm": "none"}, "algorithm must be one of .*, is 'none'"),
        (torch.ones(4), {"algorithm": ["ring"]}, r"algorithm must be one of .*, is \['ring'\]"),
        (torch.ones(4), {"op": ["sum"]}, r"op must be one of sum, mean, min, max, is \['sum'\]"),
    ],
)
def test_what_cannot_be_reduced_is_refused_and_nothing_is_sent(
    peer: Peer, tensor: torch.Tensor, given: dict[str, Any], error: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        peer.all_reduce(tensor, **given)
    peer.barrier()
    assert peer.last_step == 1


def test_out_that_shares_memory_with_the_tensor_is_refused(peer: Peer) -> None:
    tensor = torch.ones(8)
    with pytest.raises(ValueError, match="out shares memory"):
        peer.all_reduce(tensor[:6:2], out=tensor[4:7])
    peer.all_reduce(tensor[:6:2], out=tensor[5:])


def test_the_sums_of_a_training_step_are_noted_where_they_are_others_than_before(peer: Peer, tmp_path: Path) -> None:
    tail = Tail(peer._session.loop.resources.telemetry_page.path)
    for sizes in ((5, 5, 9), (5, 5, 9), (7,)):
        with peer.step(samples=1):
            for size in sizes:
                peer.all_reduce(torch.ones(size))
            peer.all_gather(torch.ones(3))
    peer.all_reduce(torch.ones(100))  # of no training step
    raw = tail.read()
    noted = [each for each in map(unpack_record, raw) if each.kind == Kind.BUCKET]
    assert [(each.step, each.size, each.value) for each in noted] == [(1, 3, 20), (1, 3, 20), (1, 3, 36), (3, 1, 28)]
    write_trace(tmp_path / "it.trace", tail.identity, raw)
    assert bucket_sizes(tmp_path) == [28]


LONG = 17 * (1 << 20) + 3
"""Elements of float32: more than 64 MiB."""


@pytest.mark.parametrize("mode", some_of(["alone", "early", "async", "block", "out", "strided", "broadcast"], 0, 2, 6))
def test_a_long_tensor_is_called_in_parts_of_one_step(peer: Peer, mode: str) -> None:
    tensor = torch.arange(LONG, dtype=torch.float32)
    expected, result = tensor.clone(), tensor
    if mode == "async":
        handles = [peer.all_reduce(each, async_op=True) for each in (torch.ones(3), tensor, torch.ones(2))]
        handles[0].wait()
    elif mode == "block":
        with peer.step(samples=1):
            peer.all_reduce(tensor)
    elif mode == "out":
        result = torch.zeros(LONG)
        peer.all_reduce(tensor, out=result)
        assert torch.equal(tensor, expected)
    elif mode == "strided":
        result = torch.zeros(LONG, 2)[:, 1]
        result.copy_(expected)
        peer.all_reduce(result)
    elif mode == "broadcast":
        peer.broadcast(tensor, root=0)
    else:
        peer.all_reduce(tensor, commit=mode == "alone")
    assert torch.equal(result, expected)
    assert peer.last_step == 1 and peer.receipt is not None
    assert len(peer.receipt.algorithms) == (5 if mode == "async" else 3)
    peer.barrier()


def test_after_results_that_were_handed_out_a_long_tensor_ends_their_step(peer: Peer) -> None:
    few = torch.ones(3)
    peer.all_reduce(few, commit=False)
    assert peer.last_step == 0
    peer.all_reduce(torch.zeros(LONG), commit=False)
    assert peer.last_step == 1 and peer.receipt is not None and len(peer.receipt.algorithms) == 4
