"""An ordinary script: workers, bfloat16, accumulation, a schedule, validation, checkpoints, early stop."""

import argparse
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import data

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
        for images, kinds in loader:
            outputs = model(images)
            loss += functional.cross_entropy(outputs, kinds, reduction="sum").item()
            right += int((outputs.argmax(1) == kinds).sum())
            number += len(kinds)
    model.train()
    return loss / number, right / number


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
    train = data.DataLoader(Stripes(NUM_TRAIN, 1), part, shuffle=True, num_workers=1)
    valid = data.DataLoader(Stripes(NUM_VALID, 2), batch_size=50)
    model: nn.Module = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(train) // options.accumulate)
    best, bad = float("inf"), 0
    first = 0
    if os.path.exists(path):
        saved = torch.load(path)  # noqa: TID251
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        first = saved["epoch"] + 1
    for epoch in range(first, epochs):
        for number, (images, kinds) in enumerate(train, start=1):
            with torch.autocast("cpu", torch.bfloat16):
                loss: Any = functional.cross_entropy(model(images), kinds) / options.accumulate
            loss.backward()
            print("loss", epoch, number, loss.item())
            if number % options.accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        mean, accuracy = evaluate(model, valid)
        print("epoch", epoch, mean, accuracy, schedule.get_last_lr()[0])
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        torch.save({**states, "epoch": epoch}, path)  # noqa: TID251
        best, bad = (mean, 0) if mean < best else (best, bad + 1)
        if bad >= options.patience:
            print("early stop after epoch", epoch)
            break


if __name__ == "__main__":
    main()
