"""One of the peers of bench/gpt_step.py: three ways to train one model take turns in this process.

    python gpt_step_peer.py FOLDER ROUNDS STEPS_PER_BLOCK BATCH DEVICE SIZE AUTOCAST

Writes the times of its steps, and the difference of the first step's gradients, into `FOLDER/INDEX.json`.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

import p2p
from bench.places import Place, place_of
from p2p.benchmark.measuring.gloo import Gloo

SIZES: Final = {"1M": (128, 2, 4), "10M": (320, 5, 8), "100M": (768, 12, 14)}
"""Width, heads and layers by number of parameters."""
VOCABULARY, CONTEXT = 256, 64
ALONE, SHOAL, GLOO = "no exchange", "shoal", "gloo ddp"
WAYS: Final = (ALONE, SHOAL, GLOO)


class GPT(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, width: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, num_heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean cross entropy of each byte given those before; (batch, CONTEXT + 1) bytes."""
        x = self.token(tokens[:, :-1]) + self.position
        logits: Tensor = self.head(self.blocks(x, mask=self.mask, is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Way:
    """One way to train the model; the weights are the same in all ways."""

    def __init__(self, name: str, peer: p2p.Peer, place: Place, size: str, *, is_autocast: bool) -> None:
        torch.manual_seed(0)
        model = GPT(*SIZES[size]).to(place.name)
        self._place, self._is_autocast = place, is_autocast
        self.parameters = list(model.parameters())
        self._optimizer = torch.optim.SGD(self.parameters, lr=0.01, momentum=0.9)
        self._model: Any = model
        if name == SHOAL:
            self._model = p2p.DataParallel(peer, model, self._optimizer)
        elif name == GLOO:
            self._model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)

    def step(self, batch: Tensor) -> tuple[float, float]:
        """Train on `batch`; returns wall-clock seconds, and processor seconds of all threads of this process."""
        batch = batch.to(self._place.name)
        self._place.finish()
        start, start_cpu = time.perf_counter(), time.process_time()
        with self._autocast():
            loss = self._model(batch)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._place.finish()
        return time.perf_counter() - start, time.process_time() - start_cpu

    def _autocast(self) -> AbstractContextManager[object]:
        kind = self._place.name.partition(":")[0]
        return torch.autocast(kind, dtype=torch.bfloat16) if self._is_autocast else nullcontext()


def main(index: int, given: list[str]) -> None:
    """Measure as peer number `index`."""
    folder, device, size, is_autocast = Path(given[0]), given[4], given[5], given[6] == "autocast"
    num_rounds, steps_per_block, batch_size = map(int, given[1:4])
    place = place_of(device, index)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(index)
    shape = num_rounds, steps_per_block, batch_size, CONTEXT + 1
    batches = torch.randint(VOCABULARY, shape, generator=generator)
    with place.join() as peer:

        def way_of(name: str) -> Way:
            return Way(name, peer, place, size, is_autocast=is_autocast)

        shoal = way_of(SHOAL)  # takes the in_view
        with Gloo(folder / "gloo", index, peer.world_size):
            ways = {SHOAL: shoal, ALONE: way_of(ALONE), GLOO: way_of(GLOO)}
            first = torch.randint(VOCABULARY, shape[2:], generator=generator)
            for way in ways.values():
                way.step(first)
            exchanged, apart = difference(shoal, ways[ALONE]), difference(shoal, ways[GLOO])
            times_s: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in WAYS}
            for number, name in turns(num_rounds):
                peer.barrier()
                times_s[name].append([ways[name].step(batch) for batch in batches[number]])
    found = {
        "num_parameters": sum(parameter.numel() for parameter in shoal.parameters),
        "difference": apart,
        "is_exchanged": exchanged > 1e-3,
        "times_s": times_s,
    }
    (folder / f"{index}.json").write_text(json.dumps(found))


def difference(one: Way, other: Way) -> float:
    """The largest difference of the two ways' gradients, relative to the largest gradient."""
    pairs = [(a.grad, b.grad) for a, b in zip(one.parameters, other.parameters, strict=True)]
    apart = max(float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None)
    return apart / max(float(a.abs().max()) for a, _ in pairs if a is not None)


def turns(num_rounds: int) -> Iterator[tuple[int, str]]:
    """Yields the round and the way of each block; each round begins with another way."""
    for number in range(num_rounds):
        for turn in range(len(WAYS)):
            yield number, WAYS[(number + turn) % len(WAYS)]


if __name__ == "__main__":
    main(int(os.environ["SHOAL_LAUNCH_INDEX"]), sys.argv[1:])
