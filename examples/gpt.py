"""A small GPT learns Python from Python's own standard library, on every peer of a swarm.

    shoal run -n 4 examples/gpt.py

You will see the loss fall from about 5.5 to about 2 on each peer, with the same bits everywhere. Kill a peer while it
runs (`kill -9`), or start another with `shoal run -n 1 examples/gpt.py`: training goes on.
"""

import argparse
import logging
import math
import sysconfig
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import p2p

CONTEXT, WIDTH, NUM_HEADS, NUM_LAYERS, VOCABULARY = 64, 128, 4, 2, 256


class Block(nn.Module):
    """Attention, then a perceptron, each with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.to_heads = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Input and output are (batch, time, width)."""
        heads = self.to_heads(self.norms[0](x)).unflatten(-1, (3, NUM_HEADS, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.from_heads(mixed.transpose(1, 2).flatten(2))
        learned: Tensor = self.perceptron(self.norms[1](x))
        return x + learned


class GPT(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(NUM_LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy, in nats, of `targets` given `tokens`, both (batch, time)."""
        logits: Tensor = self.head(self.blocks(self.token(tokens) + self.position))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load_text(num_bytes: int) -> Tensor:
    """The standard library's modules, one after the other, as windows of CONTEXT + 1 bytes."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))[:num_bytes]
    if len(text) <= CONTEXT:
        raise SystemExit(f"no text to learn: this Python has no source files in {folder}")
    windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, CONTEXT + 1, CONTEXT)
    return windows.long()


def main() -> None:
    """Train for as many epochs as the steps take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="about how many steps to train")
    parser.add_argument("--global-batch", type=int, default=96, help="samples per step, over all peers")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(0)

    windows = load_text(num_bytes=options.steps * options.global_batch * CONTEXT + 1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with p2p.join() as peer:
        parallel = p2p.DataParallel(peer, model, optimizer, state_digest="all")
        epochs = math.ceil(options.steps * options.global_batch / len(windows))
        loader = peer.loader(windows, global_batch=options.global_batch, epochs=epochs)
        for batch in chain.from_iterable(loader for _ in loader.epochs()):
            loss = parallel(batch[:, :-1], batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if peer.done % 10 == 0:
                print(f"step {peer.done}: loss {loss.item():.3f}, {peer.world_size} peers", flush=True)


if __name__ == "__main__":
    main()
