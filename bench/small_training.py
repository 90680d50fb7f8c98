"""The peer of bench/elastic.py: trains a model of a million parameters as fast as possible, until SIGTERM.

    python small_training.py [DEVICE PINNED_BYTES BYTES_ON_DEVICE]

DEVICE is a place (bench/places.py). BYTES_ON_DEVICE are allocated there beside the model, and PINNED_BYTES of the
peer's memory are registered with it.
"""

import logging
import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import p2p
from bench.places import CPU, place_of
from p2p.session.device_memory import pinned

WIDTH, NUM_LAYERS, NUM_SAMPLES, GLOBAL_BATCH = 512, 4, 4096, 16
FOREVER = 1 << 30
BUCKET_BYTES = 1 << 20
"""Gives one bucket per layer."""


def main(kind: str = CPU, pinned_bytes: str = "0", bytes_on_device: str = "0") -> None:
    """Train."""
    place = place_of(kind, 0)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    inputs, targets = torch.randn(NUM_SAMPLES, WIDTH), torch.randn(NUM_SAMPLES, WIDTH)
    layers = [layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers).to(place.name)
    beside = torch.zeros(int(bytes_on_device), dtype=torch.uint8, device=place.name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    place.watch(model, optimizer)
    with place.join() as peer:
        held = pinned(peer._session, place.device, peer._session.empty)(int(pinned_bytes), np.dtype(np.uint8))
        parallel = p2p.DataParallel(peer, model, optimizer, bucket_bytes=BUCKET_BYTES, state_digest="all")
        loader = peer.loader(TensorDataset(inputs, targets), global_batch=GLOBAL_BATCH, epochs=FOREVER)
        for x, y in (batch for _ in loader.epochs() for batch in loader):
            loss: Any = functional.mse_loss(parallel(x.to(place.name)), y.to(place.name))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        del beside, held


if __name__ == "__main__":
    main(*sys.argv[1:])
