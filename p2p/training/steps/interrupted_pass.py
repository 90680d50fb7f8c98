"""A backward pass that has raised, behind which the script continues: what becomes of its samples."""

import logging
from typing import Final

from torch.nn import Parameter

from ...session.session import Session
from .reducer import GradientReducer

logger = logging.getLogger("p2p")

INTERRUPTED: Final = "a backward pass of this peer in step %d did not end, since it raised: %s"
RETURNED: Final = (
    "this peer adds nothing to the step, and its samples are handed out again (to leave out a batch that raises each "
    "time, call `model.skip_step()` in place of its backward pass)"
)
DROPPED: Final = "its gradients are dropped, with those of passes under `no_sync` before it in the step"


def withdraw_pass(session: Session, gradients: GradientReducer, first: Parameter | None = None) -> None:
    """Withdraw the pass from the open step, with those under `no_sync` before it. The next pass may end the step.

    That pass counts: it may have the same batch again, in smaller parts, say. But if the script has continued with the
    loader's next batch (`Session.begin_batch`), or earlier micro-batches of this one are lost, nothing counts in this
    step, and the samples are returned. Likewise if the next pass has begun already, and added to gradients of this one.

    Args:
        session: of the peer.
        gradients: of the model.
        first: the only parameter that the next pass has reached, if it began without a forward pass.
    """
    step, share = session.done + 1, session.share
    of_next = None if first is None else first.grad
    is_mixed = first is not None and not gradients.is_of_one_pass(first)
    session.withdraw()
    is_returned = share.is_void or is_mixed or (share.is_of_loader and not share.parts.is_single)
    if is_returned or session.history.lacks_state:
        share.void()
    else:
        share.drop(is_whole=True)
        gradients.drop()
        share.parts.is_interrupted = share.is_of_loader
    if first is not None:
        first.grad = of_next
    logger.warning(INTERRUPTED, step, RETURNED if is_returned else DROPPED)
