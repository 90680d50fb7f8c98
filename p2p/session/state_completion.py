"""Completion of the state after the last committed step: from then on it may be sent and written.

What a script does after an update (a schedule, an evaluation, an average) belongs to the step of the update. It is done
when the script asks for its next batch; without a loader, when its next pass begins.
"""

from collections.abc import Callable

from ..data.sample_tracker import SampleTracker
from .history import NEVER


class StateCompletion:
    """The completion of one peer's state. Each mark is the step after which it was set."""

    def __init__(
        self,
        share: SampleTracker,
        done: Callable[[], int],
        *,
        keep: Callable[[], None],
        give: Callable[[], None],
        write: Callable[[], None],
    ) -> None:
        """Without marks.

        Args:
            share: of the samples.
            done: the last committed step.
            keep: copies what forward passes may change.
            give: offers the state to the peers that wait for it.
            write: called when the state is complete; it stays so until the next commit.
        """
        self._share, self._done = share, done
        self._keep, self._give, self._write = keep, give, write
        self._kept = self._settled = self._complete = NEVER
        self._is_given = False

    @property
    def is_past_request(self) -> bool:
        """Whether the script has called an operation of its own since it asked for the batch of a loader.

        The script of a joiner begins with such a request, and would reach that operation, which is over.
        """
        return self._share.is_of_loader and self._settled != self._done()

    @property
    def is_certain(self) -> bool:
        """Whether the script has done all that belongs to the last step."""
        return self._done() in (self._complete, self._settled)

    @property
    def is_given(self) -> bool:
        """Whether the state after the last step is offered to peers that ask."""
        return self._is_given and self._complete == self._done()

    def keep(self) -> None:
        """Called when a forward pass begins, which may be an evaluation or belong to the next step."""
        if self._done() not in (self._complete, self._settled, self._kept):
            self._kept = self._done()
            self._keep()

    def settle(self) -> None:
        """Called when the script asks for a batch; it may change settings before its forward pass."""
        self._settled = self._done()
        if self._complete != self._done():
            self._keep()

    def pass_request(self) -> None:
        """Called after an operation of the script's own, even if that was no step here."""
        self._settled = NEVER

    def pass_begins(self, *, is_over: bool) -> None:
        """As `mark_complete`, except within a batch, where no joiner can begin, or before the next one is asked for."""
        if self._share.is_after_batch:
            self.keep()
        elif not self._share.is_amid_batch:
            self.mark_complete(is_over=is_over)

    def mark_complete(self, *, is_over: bool = True) -> None:
        """Mark the state complete until the next commit: it may be copied.

        Args:
            is_over: forward passes change no more before the commit. Joiners that have made their own passes need these
                changes, so the state is not offered before.
        """
        is_new = self._complete != self._done()
        if is_new:
            self._complete, self._is_given = self._done(), False
            if self._done() not in (self._settled, self._kept):
                self._keep()
        if is_over and not self._is_given:
            self._is_given = True
            self._give()
        if is_new:
            self._write()

    def give_again(self) -> None:
        """Called for another incarnation of this peer, which has not offered the state yet."""
        self._complete = NEVER

    def withhold(self) -> None:
        """Called before the model is replaced: this state must not be copied any more."""
        self._kept = self._settled = self._complete = NEVER
