"""Time limit of waiting for a step."""

from typing import Final

from gossip import Member

from .membership import Membership

ADVICE: Final = "`shoal status` shows what each peer is doing; if a step takes this long, raise --step-timeout"


class StepDeadline:
    """The limit starts again as long as missing members make local steps of a round."""

    def __init__(self, membership: Membership, limit_s: float) -> None:
        self._membership = membership
        self.begin(limit_s)

    def begin(self, limit_s: float) -> None:
        """Start the limit now."""
        self._limit_s = limit_s
        self._end_s = self._membership.loop.now() + limit_s
        self._others = self._inner_steps_of_others()

    def _inner_steps_of_others(self) -> dict[Member, int]:
        """Empty unless steps are rounds."""
        rounds, core = self._membership.share.rounds, self._membership.loop.core
        return {} if rounds is None else core.inner_steps_of_others()

    @property
    def left_s(self) -> float:
        return max(0.0, self._end_s - self._membership.loop.now())

    def explain(self) -> str:
        """The limit, what the step waits for, and what to do, in words."""
        return f"in {self._limit_s:g} s: {self._membership.loop.explain()}; {ADVICE}"

    def extend_if_progress(self) -> bool:
        """Called when the limit is over: whether it starts again."""
        before = self._others
        self.begin(self._limit_s)
        return any(number > before.get(who, 0) for who, number in self._others.items())
