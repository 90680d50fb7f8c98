"""What bench/elastic.py kills: a model of a million parameters, trained as fast as it goes until SIGTERM.

python small_training.py
"""

import logging
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import p2p

WIDTH, NUM_LAYERS, NUM_SAMPLES, GLOBAL_BATCH = 512, 4, 4096, 16
FOREVER = 1 << 30
BUCKET_BYTES = 1 << 20
"""One per layer."""


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    inputs, targets = torch.randn(NUM_SAMPLES, WIDTH), torch.randn(NUM_SAMPLES, WIDTH)
    layers = [layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    with p2p.join() as peer:
        parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=BUCKET_BYTES, state_digest="all")
        loader = peer.loader(TensorDataset(inputs, targets), global_batch=GLOBAL_BATCH, epochs=FOREVER)
        for x, y in (batch for _ in loader.epochs() for batch in loader):
            loss: Any = functional.mse_loss(parallel(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
