"""An ordinary script: a Dataset with workers, bfloat16, accumulation, a schedule, validation; elastic by eleven lines.

    shoal run -n 2 examples/images.py --checkpoints runs/images

The lines that a script for one process does not have are marked. Kill a peer while it runs, or start another one in the
same way, with `-n 1`: the losses stay the same on all peers, and each image counts once an epoch. Kill all of them, and
start again, with `-n 3` say: the run goes on from its last checkpoint.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import p2p  # (1)

SIZE, NUM_CLASSES = 16, 4


class Corners(Dataset[tuple[Tensor, int]]):
    """Noisy images, one quarter of which is a little brighter: which one?"""

    def __init__(self, count: int, *, seed: int) -> None:
        self.seed, self.count = seed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * self.count + index)
        corner = int(torch.randint(NUM_CLASSES, (), generator=generator))
        row, column = (corner // 2) * SIZE // 2, (corner % 2) * SIZE // 2
        image = 3 * torch.randn(1, SIZE, SIZE, generator=generator)
        image[0, row : row + SIZE // 2, column : column + SIZE // 2] += 1.5
        return image, corner


class Classifier(nn.Sequential):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * (SIZE // 4) ** 2, NUM_CLASSES),
        )


def evaluate(peer: p2p.Peer, model: nn.Module, images: p2p.Loader) -> tuple[dict[str, float], int]:
    """Mean loss and accuracy over all images, and the number of images."""
    model.eval()
    loss, right, number = 0.0, 0, 0
    with torch.no_grad():
        for image, corner in images.evaluate():  # (2) this peer's part
            outputs = model(image)
            loss += functional.cross_entropy(outputs, corner, reduction="sum").item()
            right += int((outputs.argmax(1) == corner).sum())
            number += len(corner)
    model.train()
    return peer.combine({"loss": loss / number, "accuracy": right / number}, samples=number)  # (3) over all peers


def main() -> None:
    """Train, and print loss and accuracy after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=2048, help="to train on")
    parser.add_argument("--checkpoints", help="folder; a run that was stopped goes on from there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with p2p.join() as peer:  # (4)
        train = peer.loader(  # (5) in place of a DataLoader
            Corners(options.images, seed=0), global_batch=64, epochs=options.epochs, max_local_batch=32, num_workers=1
        )
        valid = peer.loader(Corners(512, seed=1), global_batch=128)  # (6)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(train))
        keep = p2p.Checkpoint(options.checkpoints, every=20) if options.checkpoints else None  # (7)
        parallel = p2p.DataParallel(peer, model, optimizer, extra=[schedule], checkpoint=keep)  # (8)
        for epoch in train.epochs():  # (9)
            for images, corners in train:
                with torch.autocast("cpu", torch.bfloat16):
                    loss = functional.cross_entropy(parallel(images), corners)
                loss.backward()  # type: ignore[no-untyped-call]
                if parallel.has_committed:  # (10) the last micro-batch of a step
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            means, number = evaluate(peer, model, valid)
            if peer.rank == 0:  # (11) once
                print(f"epoch {epoch}: step {peer.done}, loss {means['loss']:.3f}", end=" ")
                print(f"accuracy {means['accuracy']:.3f} of {number}, {peer.world_size} peers", flush=True)


if __name__ == "__main__":
    main()
