"""Messages for scripts that misuse a loader."""

from collections.abc import Iterator, Mapping
from typing import Final

OURS: Final = {
    "batch_size": "global_batch says how many samples a step has over all peers; max_local_batch, how many at a time",
    "sampler": "each peer's samples follow from the receipts; to have some more often, or not at all, give a "
    "torch.utils.data.Subset of indices that all peers draw with one seed",
    "batch_sampler": "each peer's samples follow from the receipts",
    "generator": "the order of the samples follows from seed=, on every peer alike",
    "in_order": "batches come in the order of the steps",
}
"""Arguments of torch's DataLoader that define a batch, and why they are refused."""

OVER: Final = (
    "all {0} epochs of this loader are over, so {1}: say epochs= for more; for another phase of training, make another "
    "loader; for running statistics (update_bn), give a DataLoader of the whole dataset, the same on every peer"
)
NOT_COUNTED: Final = (
    "no step was committed between two batches: call backward once per batch; "
    "to accumulate gradients, pass `max_local_batch` to the loader"
)
OTHER_BATCH: Final = (
    "a step was committed, and did not count this loader's batch: a step counts the samples of one loader, the last "
    "one that was asked for a batch; give a second stream of samples a DataLoader of its own"
)
ANOTHER_EPOCH: Final = (
    "this peer was given the members' state, which is in epoch {0}, in the middle of what `loader.epochs()` has called "
    "epoch {1}, and goes on with the rest of epoch {0} under that number. Where it is part of the loss, or says what "
    "is called (an evaluation every k epochs), this peer would now do something else than the others: take "
    "`loader.epoch`, read as a batch begins, in its place"
)
LEFT: Final = (
    "the loop over epoch {0} was left early, so the next one goes on with the rest of it; "
    "to leave the rest out, call loader.end_epoch() on every peer"
)
AGAIN: Final = (
    "a batch of this loader is handed out for the third time at least, since none of the steps between counted it: a "
    "step counts the samples of one loader, the last one that was asked for a batch. If it is trained on (as by "
    "`next(iter(loader))` of two loaders in one step), it is always the same one: give that second stream of samples a "
    "DataLoader of its own; this is said once"
)


def explain_ends(schedules: Mapping[str, int], num_steps: int) -> Iterator[str]:
    """Messages for schedules whose length is that of all epochs of a loader without deaths."""
    for name, number in schedules.items():
        if number == num_steps:
            yield (
                f"{name} ends after {number} steps, as many as all epochs have in which nobody dies; each death adds "
                "one to its epoch, and behind its end the schedule raises: let it make a step only `if "
                "schedule.last_epoch < schedule.total_steps - 1`"
            )
