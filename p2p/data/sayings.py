"""Messages for scripts that misuse a loader."""

from collections.abc import Iterator, Mapping
from typing import Final

OURS: Final = {
    "batch_size": "global_batch sets the samples of a step over all peers; max_local_batch, how many at a time",
    "sampler": (
        "the receipts decide which samples each peer gets; to repeat or leave out some, pass a "
        "torch.utils.data.Subset of indices that all peers draw with one seed"
    ),
    "batch_sampler": "the receipts decide which samples each peer gets",
    "generator": "seed= sets the order of the samples, the same on every peer",
    "in_order": "batches come in the order of the steps",
}
"""Arguments of torch's DataLoader that define a batch, and why they are refused."""

OVER: Final = (
    "all {0} epochs of this loader are over, so {1}. Pass a larger epochs= to train longer; make another loader for "
    "another phase of training; use a DataLoader of the whole dataset, the same on every peer, for running statistics "
    "(update_bn)"
)
NO_LENGTH: Final = (
    "a loader with batch_per_peer has no length: an epoch has fewer steps the more peers there are, so a schedule "
    "made from a length would differ between peers. Compute rates from peer.samples, which is the same on all peers"
)
ROUNDS: Final = (
    "this model is trained in rounds, so `peer.loader` needs their length: pass inner_steps= (batches per round) or "
    "round_s= (seconds per round). The length passed to p2p.DiLoCo applies only without a loader"
)
PASSED_OVER: Final = (
    "`end_epoch` was called before the step of this batch, which it has left out with the rest of the epoch: call it "
    "after `optimizer.step`, or leave the loop without training on the batch"
)
NOT_COUNTED: Final = (
    "no step was committed between two batches: call backward once per batch; to accumulate gradients, pass "
    "`max_local_batch` to the loader; to leave out a batch, also one whose forward pass or loss has raised, call "
    "`model.skip_step()` instead of `continue`"
)
OTHER_BATCH: Final = (
    "a step was committed but did not count this loader's batch: a step counts the samples of one loader, the last "
    "one that was asked for a batch. Read a second stream of samples with a DataLoader of its own"
)
ANOTHER_EPOCH: Final = (
    "this peer received the members' state in the middle of what `loader.epochs()` called epoch {1}. That state is in "
    "epoch {0}, so the loop continues with the rest of epoch {0} under the number {1}. If the loss or a call (an "
    "evaluation every k epochs) depends on that number, this peer now differs from the others: use `loader.epoch` "
    "instead, read when a batch begins"
)
LEFT: Final = (
    "the loop over epoch {0} was left early, so the next one continues with the rest of it; to leave out the rest, "
    "call loader.end_epoch() on every peer"
)
UNUSED: Final = (
    "no step used a sample in the loop over epoch {0}, so the {1} samples that it had left are left out, also where a "
    "later checkpoint is resumed: to end a run early, leave the loop over epochs, too (reported once)"
)
AGAIN: Final = (
    "this loader has handed out the same batch at least three times, because no step in between counted it: a step "
    "counts the samples of one loader, the last one that was asked for a batch. If the script trains on it "
    "(`next(iter(loader))` of two loaders in one step), the batch never changes: read that second stream of samples "
    "with a DataLoader of its own (reported once)"
)


def explain_ends(schedules: Mapping[str, int], num_steps: int) -> Iterator[str]:
    """Messages for schedules whose length is that of all epochs of a loader without deaths."""
    for name, number in schedules.items():
        if number == num_steps:
            yield (
                f"{name} ends after {number} steps, the length of all epochs if no peer dies. Each death adds a step "
                "to its epoch, and the schedule raises an error after its end: step it only `if schedule.last_epoch "
                "< schedule.total_steps - 1`"
            )
