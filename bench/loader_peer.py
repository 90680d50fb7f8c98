"""The peer of bench/loader.py: trains a small model on images from workers, with shoal's loader or torch's.

    python loader_peer.py WAY SAMPLES EPOCHS GLOBAL_BATCH WORKERS IMAGE_SIZE

Prints its peer_id (`torch`: a dash), and at the end the seconds of each epoch but the first.
"""

import faulthandler
import signal
import sys
import time
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import p2p

NUM_CLASSES = 4
SHOAL, TORCH = "shoal", "torch"


class Images(Dataset[tuple[Tensor, int]]):
    """Random images; a sample takes a worker about as long as a small JPEG."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randn(3, self.size, self.size, generator=torch.Generator().manual_seed(index))
        return functional.avg_pool2d(image, 8).flatten(), index % NUM_CLASSES


def main(way: str, samples: int, epochs: int, global_batch: int, workers: int, size: int) -> None:
    """Train."""
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = Images(samples, size)
    model: nn.Module = nn.Linear(3 * (size // 8) ** 2, NUM_CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ends = [time.monotonic()]

    def train(batches: "p2p.Loader | DataLoader[tuple[Tensor, int]]") -> None:
        for inputs, targets in batches:
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        ends.append(time.monotonic())

    if way == TORCH:
        print("-", flush=True)
        torchs = DataLoader(images, global_batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        for _ in range(epochs):
            train(torchs)
    else:
        with p2p.join() as peer:
            print(peer.peer_id, flush=True)
            model = p2p.DataParallel(peer, model, optimizer)
            loader = peer.loader(images, global_batch=global_batch, epochs=epochs, num_workers=workers)
            for _ in loader.epochs():
                train(loader)
    print(*(later - earlier for earlier, later in pairwise(ends[1:])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
