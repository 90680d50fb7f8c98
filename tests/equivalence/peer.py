"""What each process of a case runs: `main`, with MODE, RANK, WORLD_SIZE, FOLDER and the names of cases.

For each case it leaves JSON in FOLDER, the losses and the state at the end, or the error that ended it; then it prints
`result` and the name.
"""

import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed
from torch import nn
from torch.utils.data import Subset

import p2p

from .data import GLOBAL_BATCH, dataset
from .registry import CASES, Case, load
from .run import Alone, Ddp, Run

DIES_IN: Final = 7
"""In this step of an elastic run, the first one of a batch with 2 or 3 updates, too, a peer kills itself,"""
WAITS_AFTER: Final = 12
"""after this one another waits for a joiner,"""
SIZE_AT_THE_END: Final = 3
"""and with so many peers it ends."""

MOST_EPOCHS: Final = 40
"""Then it ends also without a joiner."""

TIMEOUT_S: Final = 15.0

groups: list[object] = []
"""Of Gloo, until the end of the process: it may hang where one is taken apart."""


class OfPeer(Run):
    """A peer of a swarm. In an elastic run, what it does there: nothing, `dies`, `waits` or `joins`."""

    def __init__(self, peer: p2p.Peer, elastic: str = "") -> None:
        super().__init__()
        self.peer = peer
        self._elastic = elastic

    @property
    def rank(self) -> int:  # type: ignore[override]
        return self.peer.rank

    @property
    def world_size(self) -> int:  # type: ignore[override]
        return self.peer.world_size

    def _wrap(self, model: Any, optimizer: Any, extra: Any, ddp: Mapping[str, Any], options: Any) -> Any:
        every = nn.ModuleDict(model) if isinstance(model, dict) else model
        if self._elastic == "joins":
            with torch.no_grad():
                for tensor in every.state_dict().values():
                    tensor.zero_()
        settings = {"bucket_bytes": 200, "state_digest": "all", **options}
        parallel = p2p.DataParallel(self.peer, model, optimizer, extra=extra, **settings)
        if self._elastic == "dies":
            needed = [parameter for parameter in every.parameters() if parameter.requires_grad]
            inside: Any = needed[len(needed) // 2]
            inside.register_post_accumulate_grad_hook(lambda _: self._die_in(DIES_IN))
        return parallel

    def _batches(self, data: str, number: int, options: Any) -> Iterator[Any]:
        settings = {
            "global_batch": GLOBAL_BATCH,
            "shuffle": False,
            "epochs": MOST_EPOCHS if self._elastic else 1,
            **options,
        }
        loader = self.peer.loader(Subset(dataset(data), range(number)), **settings)
        for epoch in loader.epochs():
            began = self.peer.world_size
            for batch in loader:
                yield batch
                self._die_in(DIES_IN + 1)
                if self._elastic == "waits" and self.peer.done == WAITS_AFTER:
                    self._elastic = "waited"
                    print("waits")
                    sys.stdin.readline()
            if self._elastic and epoch > 0 and began == SIZE_AT_THE_END:  # an epoch with the joiner
                return

    def _die_in(self, step: int) -> None:
        if self._elastic == "dies" and self.peer.done + 1 >= step:
            os.kill(os.getpid(), signal.SIGKILL)

    def log(self, loss: Any) -> None:
        receipt = self.peer.receipt
        mine = [each for each in receipt.contributions if each.peer_id == self.peer.peer_id] if receipt else []
        step = self.peer.done if self._elastic else self._num_batches
        self.rows.append((step, float(loss), mine[0].weight if mine else 0))

    def mean(self, value: Any) -> float:
        return float(self.peer.combine(float(value), samples=1)[0])

    def make_largest(self, values: torch.Tensor) -> None:
        self.peer.all_reduce(values, op="max")


class Said(logging.Handler):
    """What the log says meanwhile."""

    lines: list[str]

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    """Run the cases that are named, one after the other."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    mode, rank, size, folder, *names = sys.argv[1:]
    cases = load()
    logging.getLogger("p2p").addHandler(said := Said(logging.WARNING))
    for name in names:
        torch.manual_seed(1)
        said.lines = []
        result = attempt(cases[name], mode, int(rank), int(size), Path(folder)) | {"warnings": said.lines}
        (Path(folder) / f"{name}.{mode}{size}.{rank}.json").write_text(json.dumps(result))
        print("result", name, flush=True)
    if mode == "ddp":
        os._exit(0)  # Gloo may hang while the interpreter ends


def attempt(case: Case, mode: str, rank: int, size: int, folder: Path) -> dict[str, Any]:
    """What came of it."""
    try:
        if mode == "alone":
            batches = folder / f"{case.name}.batches.json"
            return train(case, Alone(json.loads(batches.read_text()) if batches.exists() else ()))
        if mode == "ddp":
            return train_with_ddp(case, rank, size, folder / f"{case.name}.store")
        with p2p.join(
            swarm=f"{list(CASES).index(case.name)}-{size}", step_timeout_s=TIMEOUT_S, join_timeout_s=TIMEOUT_S
        ) as peer:
            print("here", peer.peer_id)
            return train(case, OfPeer(peer, mode if mode != "peer" else ""))
    except (Exception, SystemExit) as raised:
        error = raised.__cause__ if isinstance(raised, SystemExit) and raised.__cause__ else raised
        return {"error": f"{type(error).__name__}: {error}"}


def train(case: Case, run: Run) -> dict[str, Any]:
    case.script(run)
    return {"rows": run.rows, "state": run.state()}


def train_with_ddp(case: Case, rank: int, size: int, store: Path) -> dict[str, Any]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S)
    )
    groups.append(torch.distributed.group.WORLD)
    try:
        return train(case, Ddp(rank, size))
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
