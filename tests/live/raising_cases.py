"""Scripts that go on after a backward pass has raised."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

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


Passes = Callable[[int, Tensor, Any, list[bool]], bool]
"""Makes the passes of one batch: its number, samples, the wrapper, and what `make_failing` returns. False: gives up."""


def train_on_what_comes_again(peer: Peer, passes: Passes) -> None:
    """Train on three batches of 8, in the second of which the last peer gives up: each sample counts once."""
    data = torch.randn(24, 4)
    model, optimizer = linear()
    fails = make_failing(model)
    parallel = wrap(peer, model, optimizer)
    counted: list[list[int]] = []
    for turn, x in enumerate(peer.loader(data, global_batch=8, epochs=1, shuffle=False)):
        optimizer.zero_grad()
        if not passes(turn, x, parallel, fails):
            continue
        if turn == 0:
            assert_gradients(model, gradients(model, model(data[:8]).square().mean()))
        optimizer.step()
        assert peer.receipt is not None
        counted.append([entry.num_samples for entry in peer.receipt.contributions])
    assert counted[:2] == [[4, 4], [4, 0]] and sum(map(sum, counted)) == 24, counted
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def a_batch_of_a_loader_that_raises_is_trained_on_in_parts_or_comes_again(peer: Peer) -> None:
    def passes(turn: int, x: Tensor, parallel: Any, fails: list[bool]) -> bool:
        fails.append(peer.rank == 1 and turn < 2)
        if not fails[-1]:
            parallel(x).square().mean().backward()
            return True
        raises(RuntimeError, "no memory", parallel(x).square().mean().backward)
        fails.append(False)
        with parallel.no_sync():
            (parallel(x[:2]).square().mean() / 2).backward()
        if turn == 0:
            (parallel(x[2:]).square().mean() / 2).backward()
        return turn == 0

    train_on_what_comes_again(peer, passes)


@case
def a_pass_that_raises_may_be_repeated_without_a_forward_pass(peer: Peer) -> None:
    """If it was under `no_sync`, it has added to gradients of passes before: the next one counts behind `zero_grad`."""
    model, optimizer = linear()
    fails = make_failing(model)
    parallel = wrap(peer, model, optimizer)
    for turn, x in enumerate(torch.randn(3, 2, 2, 4)):
        is_one, is_mixed = peer.rank == 1, turn == 1
        counted = x[:1] if is_mixed else x
        expected = gradients(model, model(counted.flatten(0, 1)).square().mean())
        loss = parallel(x[peer.rank]).square().mean()
        if is_one:
            fails.append(True)
            with parallel.no_sync() if turn else contextlib.nullcontext():
                raises(RuntimeError, "no memory", partial(loss.backward, retain_graph=True))
            fails.append(False)
            if turn == 2:
                optimizer.zero_grad()
        with Said() as lines:
            loss.backward()
        assert [" adds nothing to the step" in line for line in lines] == [is_mixed] * is_one, lines
        assert_gradients(model, expected)
        optimizer.step()
        optimizer.zero_grad()
        assert peer.receipt is not None
        weights = {entry.peer_id: entry.weight for entry in peer.receipt.contributions}
        assert sorted(weights.values()) == ([0, 1] if is_mixed else [1, 1])
    assert_same_everywhere(peer, torch.cat([p.flatten() for p in model.parameters()]))


@case
def a_batch_is_handed_out_again_that_raises_under_no_sync(peer: Peer) -> None:
    def passes(turn: int, x: Tensor, parallel: Any, fails: list[bool]) -> bool:
        fails.append(peer.rank == 1 and turn == 1)
        with parallel.no_sync():
            backward = (parallel(x[:2]).square().mean() / 2).backward
            if fails[-1]:
                raises(RuntimeError, "no memory", backward)
                return False
            backward()
        (parallel(x[2:]).square().mean() / 2 if len(x) > 2 else 0 * parallel(x).sum()).backward()
        return True

    train_on_what_comes_again(peer, passes)
