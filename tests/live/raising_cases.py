"""Scripts that go on after a backward pass has raised."""

import contextlib

import torch
from torch import nn

from p2p import Peer
from tests.live.habit_cases import CASES, Said, main, only
from tests.live.training_cases import assert_gradients, assert_same_everywhere, case, gradients, linear, raises, wrap

__all__ = ["CASES", "Said", "main", "only"]


def make_failing(model: nn.Module) -> list[bool]:
    """Returns a list; backward passes of `model` raise amid their gradients as long as its last element is True."""
    fails = [False]

    def fail(_: object) -> None:
        if fails[-1]:
            raise RuntimeError("no memory, say")

    model.get_parameter("0.bias").register_post_accumulate_grad_hook(fail)  # type: ignore[no-untyped-call]
    return fails


@case
def a_pass_that_raises_adds_nothing_and_the_next_one_counts(peer: Peer) -> None:
    model, optimizer = linear()
    inputs = torch.randn(3, 2, 2, 4)  # step, peer, pass
    fails = make_failing(model)
    parallel = wrap(peer, model, optimizer)
    for turn, x in enumerate(inputs):
        expected = gradients(model, model(x[:, 1]).square().mean())
        if peer.rank == 1 and turn < 2:
            with parallel.no_sync() if turn else contextlib.nullcontext():
                if turn:
                    model(x[1, 0]).square().mean().backward()
                fails.append(True)
                raises(RuntimeError, "no memory", model(x[1, 0]).square().mean().backward)
                fails.append(False)
        with Said() as lines:
            parallel(x[peer.rank, 1]).square().mean().backward()
        is_said = any(line.startswith("a backward pass of this peer in step") for line in lines)
        assert is_said == (peer.rank == 1 and turn < 2)
        assert_gradients(model, expected)
        optimizer.step()
        optimizer.zero_grad()
        assert peer.receipt is not None
        assert [entry.weight for entry in peer.receipt.contributions] == [1, 1]
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def a_batch_of_a_loader_that_raises_is_trained_on_in_parts_or_comes_again(peer: Peer) -> None:
    data = torch.randn(24, 4)
    model, optimizer = linear()
    fails = make_failing(model)
    parallel = wrap(peer, model, optimizer)
    counted: list[list[int]] = []
    for turn, x in enumerate(peer.loader(data, global_batch=8, epochs=1, shuffle=False)):
        optimizer.zero_grad()
        fails.append(peer.rank == 1 and turn < 2)
        if fails[-1]:
            raises(RuntimeError, "no memory", parallel(x).square().mean().backward)
            fails.append(False)
            with parallel.no_sync():
                (parallel(x[:2]).square().mean() / 2).backward()
            if turn == 1:  # and gives up
                continue
            (parallel(x[2:]).square().mean() / 2).backward()
        else:
            parallel(x).square().mean().backward()
        if turn == 0:
            assert_gradients(model, gradients(model, model(data[:8]).square().mean()))
        optimizer.step()
        assert peer.receipt is not None
        counted.append([entry.num_samples for entry in peer.receipt.contributions])
    assert counted[:2] == [[4, 4], [4, 0]] and sum(map(sum, counted)) == 24, counted
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))
