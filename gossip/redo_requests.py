"""Redo requests: reasons of one member to have the open step redone, in another view of the same members.

STALLED: frames were lost. WITHDRAWN, ABORTED: it gives the step up (given_up.py). READABLE: members can now share
memory. It reports the reason while that holds (view_change.py); reports.py decides what follows.
"""

from .commit import StepMachine
from .given_up import Cause
from .messages import Report, ReportKind
from .view_change import ViewChange


class RedoRequests:
    """Reasons of one member to restart the open step."""

    def __init__(self, steps: StepMachine, succession: ViewChange, *, stall_s: float) -> None:
        self._steps = steps
        self._succession = succession
        self._stall_s = stall_s
        self._stuck: tuple[tuple[int, int] | None, float] = (None, 0.0)

    def give_up(self, step: int, cause: Cause, reason: str, *, is_told: bool) -> bool:
        """Give `step` up. Returns whether it is open here, so that it can be. Arguments as in `Core.give_up`."""
        steps = self._steps
        if steps.view is None or steps.finish is not None or step != steps.done + 1:
            return False
        if not is_told:
            self.submitted(0, 0)
        if steps.seated:  # else no member has begun a step with this one, and the others may have committed this one
            steps.give_up(step, cause, reason, is_told=is_told)
        self._request(ReportKind.ABORTED if is_told else ReportKind.WITHDRAWN, step)
        return True

    def request_if_readable(self) -> bool:
        """Ask for a restart over shared memory if the last member has become readable. Returns whether it did."""
        step = self._steps.done + 1
        if not self._steps.could_share() or self._steps.finish is not None or self._succession.wants_redo(step):
            return False
        self._request(ReportKind.READABLE, step)
        return True

    def _request(self, kind: ReportKind, step: int) -> None:
        self._succession.request_redo(Report(kind, self._succession.me, step, given_up=self._steps.given_up))

    def submitted(self, num_operations: int, num_complete: int) -> None:
        """An operation of the open step makes progress."""
        self._steps.submitted, self._steps.complete = num_operations, num_complete
        self._stuck = None, 0.0

    def watch(self, now: float) -> None:
        """Ask for a restart if an operation that all have submitted makes no progress: frames were lost."""
        stuck, since = self._steps.stuck_at(), self._stuck[1]
        if stuck is None or stuck != self._stuck[0]:
            self._stuck = stuck, now
            self._succession.cancel_redo(ReportKind.STALLED)
        elif now - since >= self._stall_s and not self._succession.wants_redo(stuck[0]):
            self._succession.request_redo(Report(ReportKind.STALLED, self._succession.me, stuck[0]))
