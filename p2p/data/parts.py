"""Micro-batches of a slice: how much of it each has, and what becomes of one whose loop is left between them."""

from collections.abc import Callable


class Parts:
    """The micro-batches of the slice that was handed out last, of which most have a single one.

    Attributes:
        fraction: of this peer's weight in the micro-batches so far, or of all of them, which the current one has.
        keep: factor on the micro-batches before it.
        is_last: no further micro-batch of the step follows; is_used: the current one had a backward pass.
        num_samples: handed out; num_last: of these, in the current one.
        is_interrupted: a pass of the slice has raised, and no step was committed since.
        refusal: why no step may use the slice; empty: it may.
        drop: drops the gradients of micro-batches whose step is not going to end.
        is_amid_pass: whether a pass has begun and not ended.
    """

    def __init__(self) -> None:
        self.fraction = self.keep = 1.0
        self.is_last, self.is_used, self.is_interrupted = True, False, False
        self.num_samples, self.num_last, self.refusal = 0, 0, ""
        self.drop: Callable[[], None] = lambda: None
        self.is_amid_pass: Callable[[], bool] = lambda: False
        self._handed_out, self._has_passes = 0.0, False

    def begin(self) -> None:
        """Begin another slice."""
        self.end()
        self.is_used = self.is_interrupted = False
        self.num_samples, self._handed_out = 0, 0.0

    def hand_out(self, fraction: float, num_samples: int, *, is_last: bool) -> None:
        """Note that the script receives a micro-batch with `fraction` of the slice."""
        self.fraction, self.keep, self.is_last, self.is_used = fraction, 1.0, is_last, False
        self.num_samples, self.num_last = self.num_samples + num_samples, num_samples
        self._handed_out += fraction

    @property
    def is_single(self) -> bool:
        """Whether the current micro-batch is the whole slice."""
        return self.is_last and self.num_samples == self.num_last

    @property
    def is_given_up(self) -> bool:
        """Whether the script goes on to another batch after a pass that has raised."""
        return self.is_interrupted or self.is_amid_pass()

    def add(self) -> None:
        """Note that a backward pass that does not end the step was added to the micro-batches."""
        self._has_passes = True

    def leave(self) -> bool:
        """End the slice with the micro-batches that were handed out, of which the last one may still be trained on.

        Returns whether a step may still use it. Else nothing was handed out, or a pass has been made that does not end
        the step, and no further one follows.
        """
        is_whole, self.is_last = self.is_last, True
        if not is_whole and not self.is_used:
            self.fraction, self.keep = self.fraction / self._handed_out, 1 / self._handed_out
        return self._handed_out > 0 and (is_whole or not self.is_used) and not self.refusal

    def end(self) -> None:
        """End the slice: passes that have not ended a step are dropped, and later ones are of no micro-batch."""
        self.fraction, self.keep, self.is_last, self.refusal = 1.0, 1.0, True, ""
        if self._has_passes:
            self._has_passes = False
            self.drop()

    def spend(self) -> None:
        """Note that the step with these passes is committed."""
        self._has_passes = self.is_interrupted = False
