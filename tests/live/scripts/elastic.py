"""An ordinary script: workers, bfloat16, accumulation, a schedule, validation, checkpoints, early stop."""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import data

import p2p

SIZE, NUM_TRAIN, NUM_VALID = 8, 480, 100


class Stripes(data.Dataset[tuple[Tensor, int]]):
    """Noisy stripes: do they stand, lie, or lean?"""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * 10_000 + index)
        kind = index % 3
        row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        wave = torch.sin((column, row, row + column)[kind] * 1.5)
        return (wave + torch.randn(SIZE, SIZE, generator=generator)).unsqueeze(0), kind


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * (SIZE // 2) ** 2, 3),
        )


def evaluate(model: nn.Module, loader: Any) -> Any:
    model.eval()
    loss, right, number = 0.0, 0, 0
    with torch.no_grad():
        for images, kinds in loader.evaluate():
            outputs = model(images)
            loss += functional.cross_entropy(outputs, kinds, reduction="sum").item()
            right += int((outputs.argmax(1) == kinds).sum())
            number += len(kinds)
    model.train()
    return tuple(peer.combine({"loss": loss / number, "accuracy": right / number}, samples=number)[0].values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    path, epochs, batch = options.checkpoint, options.epochs, options.batch_size
    part = batch // options.accumulate
    train = peer.loader(Stripes(NUM_TRAIN, 1), global_batch=batch, epochs=epochs, max_local_batch=part, num_workers=1)
    valid = peer.loader(Stripes(NUM_VALID, 2), global_batch=50)
    model: nn.Module = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(train))
    best, bad = float("inf"), 0
    model = p2p.DataParallel(peer, model, optimizer, extra=[schedule], checkpoint=p2p.Checkpoint(path, every=20))
    for epoch in train.epochs():
        for number, (images, kinds) in enumerate(train, start=1):
            with torch.autocast("cpu", torch.bfloat16):
                loss: Any = functional.cross_entropy(model(images), kinds)
            loss.backward()
            print("loss", epoch, number, loss.item())
            if model.has_committed:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        mean, accuracy = evaluate(model, valid)
        print("epoch", epoch, mean, accuracy, schedule.get_last_lr()[0])
        best, bad = (mean, 0) if mean < best else (best, bad + 1)
        if peer.combine(bad, samples=1)[0] >= options.patience:
            print("early stop after epoch", epoch)
            break


if __name__ == "__main__":
    peer = p2p.join()
    main()
