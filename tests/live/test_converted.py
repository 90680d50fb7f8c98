"""A script for one process, converted by twelve lines, trains as before while peers join and leave."""

import difflib
import itertools
import json
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn import functional

from p2p.data.sampler import Order, Sampler
from p2p.step.receipts import Receipt, parse_receipt
from tests.live.resumes import newest_step
from tests.live.scripts.single_device import NUM_TRAIN, NUM_VALID, Net, Stripes
from tests.live.swarm import Process, Swarm

pytestmark = pytest.mark.torch

SCRIPTS: Final = Path(__file__).parent / "scripts"
BATCH, PART, EPOCHS = 32, 16, 12
TOLERANCE: Final = 1e-3
POLL_S: Final = 0.005

never = threading.Event()


def test_twelve_lines_make_it_elastic() -> None:
    before, after = ((SCRIPTS / name).read_text().splitlines() for name in ("single_device.py", "elastic.py"))
    lines = [line for line in difflib.unified_diff(before, after, n=0) if not line.startswith(("---", "+++", "@@"))]
    added = [line for line in lines if line.startswith("+") and line != "+"]
    assert len(added) == 12, "\n".join(added)


def receipts_of(swarm: Swarm, known: Sequence[Receipt] = ()) -> list[Receipt]:
    """Receipts of the training steps that are not `known`, in order; checks that all peers have the same."""
    lines = {line for content in swarm.receipt_files().values() for line in content.splitlines()}
    parsed = sorted((parse_receipt(json.loads(line)) for line in lines), key=lambda each: each.step)
    new = [each for each in parsed if not known or each.lineage != known[0].lineage]
    assert [each.step for each in new] == list(range(len(new)))
    return [each for each in new if each.num_samples]


def wait_for(swarm: Swarm, num_members: int, num_more: int = 3) -> None:
    """Wait until `num_members` members have trained `num_more` steps."""
    first = -1
    while True:
        receipts = receipts_of(swarm)
        if not receipts or len(receipts[-1].contributions) != num_members:
            first = -1
        elif first < 0:
            first = len(receipts)
        elif len(receipts) >= first + num_more:
            return
        never.wait(POLL_S)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The results of the replay in one process.

    Attributes:
        losses: for each step, the losses of the micro-batches by peer_id.
        valid: by epoch, the loss over the whole validation dataset.
    """

    losses: list[dict[str, list[float]]]
    valid: dict[int, float]


def replay(receipts: Sequence[Receipt]) -> Replayed:
    """Train each step in one process on the samples of its receipt, in the peers' micro-batches."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, valid = Stripes(NUM_TRAIN, 1), Stripes(NUM_VALID, 2)
    model: nn.Module = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * NUM_TRAIN // BATCH)
    order = Order(Sampler(NUM_TRAIN, BATCH, epochs=EPOCHS))
    replayed = Replayed([], {})
    for receipt in receipts:
        optimizer.zero_grad()
        of_peers: dict[str, list[float]] = {}
        for part in receipt.contributions:
            indices = order.indices(part.samples)
            number = -(-len(indices) // PART)
            bounds = [len(indices) * i // number for i in range(number + 1)] if number else []
            for start, stop in itertools.pairwise(bounds):
                images, kinds = collate(train, indices[start:stop])
                with torch.autocast("cpu", torch.bfloat16):
                    loss: Any = functional.cross_entropy(model(images), kinds)
                (loss * (len(kinds) / receipt.num_samples)).backward()
                of_peers.setdefault(part.peer_id, []).append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        replayed.losses.append(of_peers)
        with torch.no_grad():  # the last evaluation of an epoch counts
            images, kinds = collate(valid, range(NUM_VALID))
            replayed.valid[epoch_of(receipt)] = functional.cross_entropy(model(images), kinds).item()
    return replayed


def collate(dataset: Stripes, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    samples = [dataset[index] for index in indices]
    return torch.stack([image for image, _ in samples]), torch.tensor([kind for _, kind in samples])


def epoch_of(receipt: Receipt) -> int:
    return max(first for part in receipt.contributions for first, _ in part.samples) // NUM_TRAIN


def check_each_sample_once(receipts: Sequence[Receipt]) -> None:
    order = Order(Sampler(NUM_TRAIN, BATCH, epochs=EPOCHS))
    used = Counter(
        (first // NUM_TRAIN, index)
        for receipt in receipts
        for part in receipt.contributions
        for first, number in part.samples
        for index in order.indices(((first, number),))
    )
    assert used == {(epoch, index): 1 for epoch in range(EPOCHS) for index in range(NUM_TRAIN)}


def check_validation(peers: Sequence[Process], receipts: Sequence[Receipt], replayed: Replayed) -> int:
    """Check the peers' validation losses against the replay; returns the number of epochs that were checked.

    An epoch at whose end a peer died is left out.
    """
    members = [(epoch_of(each), {part.peer_id for part in each.contributions}) for each in receipts]
    pairs = itertools.pairwise(members)
    whole = {epoch for (epoch, here), (after, there) in pairs if after != epoch and here == there} | {EPOCHS - 1}
    told = [line.split() for peer in peers for line in peer.stdout if line.startswith("epoch ")]
    for _, epoch, loss, *_ in (words for words in told if int(words[1]) in whole):
        assert float(loss) == pytest.approx(replayed.valid[int(epoch)], rel=TOLERANCE, abs=1e-5), epoch
    return len(whole & {int(words[1]) for words in told})


@pytest.mark.long
@pytest.mark.timeout(120)
def test_it_trains_as_one_process_through_a_kill_a_join_a_stop_and_a_start_with_other_peers(
    swarm: Swarm, tmp_path: Path
) -> None:
    script = (SCRIPTS / "elastic.py").read_text()
    folder = tmp_path / "checkpoints"
    words = "--epochs", str(EPOCHS), "--patience", "1000", "--checkpoint", str(folder)
    swarm.leaves_files = True
    founders = [swarm.start(script, *words, min_peers=2) for _ in range(2)]
    wait_for(swarm, 2)
    joined = swarm.start(script, *words)
    wait_for(swarm, 3)
    founders[0].kill()
    founders[0].end()
    wait_for(swarm, 2)
    for peer in (founders[1], joined):
        peer.send_signal(signal.SIGTERM)
    for peer in (founders[1], joined):
        assert peer.end() == 128 + signal.SIGTERM, peer.report()
    first, done = receipts_of(swarm), newest_step(folder)
    assert 0 <= len(first) - done <= 1, "the last step is in the checkpoint"

    others = [swarm.start(script, *words, min_peers=3, name="again") for _ in range(3)]
    assert [peer.end() for peer in others] == [0, 0, 0], others[0].report()
    receipts = [*first[:done], *receipts_of(swarm, first)]
    check_each_sample_once(receipts)
    replayed = replay(receipts)
    assert check_validation([*founders, joined, *others], receipts, replayed) > EPOCHS // 2

    founders_of = {part.peer_id for part in first[0].contributions}
    counted = Counter(part.peer_id for each in first for part in each.contributions if part.peer_id in founders_of)
    ((survivor, _),) = counted.most_common(1)  # the other peer was killed
    own = [loss for each in replayed.losses[:done] for loss in each.get(survivor, [])]
    said = [float(line.split()[-1]) for line in founders[1].stdout if line.startswith("loss ")]
    # In bfloat16 a loss is rounded by up to 2^-8 of it; for small losses the tolerance is that of the mean loss.
    of_all = TOLERANCE * sum(own) / len(own)
    assert len(own) > 10 and said[: len(own)] == pytest.approx(own, rel=TOLERANCE, abs=of_all)
