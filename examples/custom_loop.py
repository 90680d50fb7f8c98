"""A loop of one's own, without p2p.DataParallel: local SGD, where peers average their models, not their gradients.

    shoal run -n 2 examples/custom_loop.py

In each round a peer trains by itself, for LOCAL_STEPS steps on its part of a global batch; then all take the mean of
their parameters and momenta, weighted by samples, and go on from there. You will see the loss fall from about 1 to less
than 0.1. Kill a peer while it runs: the others average what they hold without it, and its samples come again. Start
another in the same way, with `-n 1`: in its first round it adds nothing, and takes the mean of the others, which is all
that a joiner needs here.
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import p2p

FEATURES, GLOBAL_BATCH, LOCAL_STEPS = 16, 256, 4


def make_dataset(count: int) -> TensorDataset:
    """Random points, with their distances from the origin."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(count, FEATURES, generator=generator)
    distances = points.norm(dim=1, keepdim=True)
    return TensorDataset(points, (distances - distances.mean()) / distances.std())


def make_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same model at every peer, so that founders begin with equal parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.Tanh(), nn.Linear(128, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def train_alone(model: nn.Module, optimizer: torch.optim.Optimizer, points: Tensor, distances: Tensor) -> list[Tensor]:
    """LOCAL_STEPS steps; returns what is to be averaged: the mean loss, then all that the steps have changed."""
    losses = []
    for x, y in zip(points.chunk(LOCAL_STEPS), distances.chunk(LOCAL_STEPS), strict=True):
        loss = functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    return [torch.stack(losses).mean(), *(parameter.detach() for parameter in model.parameters()), *momenta]


def average(peer: p2p.Peer, tensors: Sequence[Tensor]) -> None:
    """Write into each of `tensors` its mean over all peers, by their samples: one step, on all of them or on none."""
    flat = torch.cat([*(tensor.flatten() for tensor in tensors), torch.ones(1)])
    with peer.step() as step:
        flat *= step.samples  # 0 where a batch does not count, as that of a peer that has just joined
        peer.all_reduce(flat)
    *sums, total = torch.split(flat, [*(tensor.numel() for tensor in tensors), 1])
    if not total:
        raise SystemExit("nobody is left who has the model: start the run again")
    for tensor, part in zip(tensors, sums, strict=True):
        tensor.copy_((part / total).view_as(tensor))


def main() -> None:
    """Train, and print the loss every 10 rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--samples", type=int, default=4096, help="to train on")
    options = parser.parse_args()
    model, optimizer = make_training()
    with p2p.join() as peer:
        loader = peer.loader(make_dataset(options.samples), global_batch=GLOBAL_BATCH, epochs=options.epochs)
        for epoch in loader.epochs():
            for points, distances in loader:  # this peer's part of a round
                loss, *state = train_alone(model, optimizer, points, distances)
                average(peer, [loss, *state])
                peer.log(loss=loss)
                if peer.rank == 0 and peer.done % 10 == 0:
                    print(f"round {peer.done}, epoch {epoch}: loss {loss:.4f}, {peer.world_size} peers", flush=True)


if __name__ == "__main__":
    main()
