"""When the state after the last committed step is complete: from then on it may be given, and written.

What a script does behind an update (a schedule, an evaluation, an average) belongs to the step of that. It is through
with it when it asks for its next batch; without a loader, when its next pass begins.
"""

from collections.abc import Callable

from ..data.share import Share
from .history import NEVER


class StateEdge:
    """Of one peer. Each of its marks is the step behind which it was set."""

    def __init__(
        self,
        share: Share,
        done: Callable[[], int],
        *,
        keep: Callable[[], None],
        give: Callable[[], None],
        write: Callable[[], None],
    ) -> None:
        """Behind no step yet.

        Args:
            share: of the samples.
            done: the last committed step.
            keep: copies what forward passes may change.
            give: lets those have the state who wait for it.
            write: is told that it is complete, and stays so until the next commit.
        """
        self._share, self._done = share, done
        self._keep, self._give, self._write = keep, give, write
        self._kept = self._settled = self._complete = NEVER
        self._is_given = False

    @property
    def is_past_request(self) -> bool:
        """The script has called an operation of its own since it asked for the batch of a loader.

        The script of a joiner begins with such a request, and would come to that operation, which is over.
        """
        return self._share.is_of_loader and self._settled != self._done()

    @property
    def is_certain(self) -> bool:
        """The script has done all that belongs to the last step."""
        return self._done() in (self._complete, self._settled)

    @property
    def is_given(self) -> bool:
        """The state behind the last step is given to who asks."""
        return self._is_given and self._complete == self._done()

    def keep(self) -> None:
        """A forward pass begins, which may be an evaluation or of the next step."""
        if self._done() not in (self._complete, self._settled, self._kept):
            self._kept = self._done()
            self._keep()

    def settle(self) -> None:
        """The script asks for a batch, and may set this and that before its forward pass."""
        self._settled = self._done()
        if self._complete != self._done():
            self._keep()

    def pass_request(self) -> None:
        """The script has called an operation of its own, also if that was no step here."""
        self._settled = NEVER

    def pass_begins(self, *, is_over: bool) -> None:
        """As `reach`, but in the middle of a batch, where nobody can begin, or before another one is asked for."""
        if self._share.is_behind_batch:
            self.keep()
        elif not self._share.is_amid_batch:
            self.reach(is_over=is_over)

    def reach(self, *, is_over: bool = True) -> None:
        """The state is complete until the next commit, and may be copied.

        Args:
            is_over: forward passes change nothing more before the commit. Joiners that have made their own need what
                these change, so nobody is given the state before.
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
        """Another incarnation of this peer has given it to nobody."""
        self._complete = NEVER

    def withhold(self) -> None:
        """The model is about to be another one: this state is not to be copied any more."""
        self._kept = self._settled = self._complete = NEVER
