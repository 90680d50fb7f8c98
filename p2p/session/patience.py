"""How long a step is waited for."""

from gossip import Member

from .membership import Membership


class Patience:
    """As long as its limit, and anew as long as members that are missing make local steps of a round."""

    def __init__(self, membership: Membership, limit_s: float) -> None:
        self._membership = membership
        self.begin(limit_s)

    def begin(self, limit_s: float) -> None:
        """From now on."""
        self._limit_s = limit_s
        self._end_s = self._membership.loop.now() + limit_s
        self._others = self._inner_steps_of_others()

    def _inner_steps_of_others(self) -> dict[Member, int]:
        """Nobody makes any where steps are no rounds."""
        rounds, core = self._membership.share.rounds, self._membership.loop.core
        return {} if rounds is None else core.inner_steps_of_others()

    @property
    def left_s(self) -> float:
        return max(0.0, self._end_s - self._membership.loop.now())

    def explain(self) -> str:
        """How long was waited, and for what."""
        return f"in {self._limit_s:g} s: {self._membership.loop.explain()}"

    def goes_on(self) -> bool:
        """It is over: whether it begins anew."""
        before = self._others
        self.begin(self._limit_s)
        return any(number > before.get(who, 0) for who, number in self._others.items())
