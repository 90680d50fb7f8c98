"""A peer of tests/live/churn.py: trains a tiny model as fast as possible, until SIGTERM. Prints its peer_id."""

import logging
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import p2p

NUM_SAMPLES, GLOBAL_BATCH, SEED = 500, 12, 3
FOREVER = 1 << 40


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, 8)
    targets = inputs.square().sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with p2p.join() as peer:
        print(peer.peer_id, flush=True)
        parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=1024, state_digest="all")
        loader = peer.loader(TensorDataset(inputs, targets), global_batch=GLOBAL_BATCH, epochs=FOREVER, seed=SEED)
        for x, y in (batch for _ in loader.epochs() for batch in loader):
            loss: Any = functional.mse_loss(parallel(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
