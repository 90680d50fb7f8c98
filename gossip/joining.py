"""What a peer does for its first seat: ask for it, or found the swarm.

Leaves out: how it catches up meanwhile (observing.py), and what happens once a view seats it (commit.py).
"""

from collections.abc import Sequence

from .commit import StepMachine
from .config import CoreConfig
from .effects import Effect, Refused, Removed, Send
from .founding import Founding
from .known_views import KnownViews
from .messages import Head, Join, LineageAnswer, LineageQuery, Refuse
from .observing import Observing
from .progress import NOTHING_DONE
from .swim import Swim
from .view import Member, Policy


class Joining:
    """One peer on its way into a view. It has asked for a seat once it has a `layout`."""

    def __init__(self, swim: Swim, steps: StepMachine, observing: Observing, *, config: CoreConfig) -> None:
        self.layout: tuple[str, bytes] | None = None
        self.reason = "not in a view yet"
        self._swim = swim
        self._steps = steps
        self._observing = observing
        self._config = config
        self._views = KnownViews()
        self._from = NOTHING_DONE, b""
        self._founding: Founding | None = None
        self._found_with: tuple[bytes, int, Policy] = b"", 1, Policy.MAJORITY

    def begin(self, layout: tuple[str, bytes], *, follows: bool) -> None:
        self.layout, self._observing.follows = layout, follows

    def found_from_seeds(self, now: float, seeds: Sequence[str], lineage: bytes, size: int, policy: Policy) -> None:
        """Found with these if it falls to this peer.

        Raises:
            ValueError: no seeds, or one twice.
        """
        self._founding = Founding(seeds, self._swim.me.contact.seed, now + self._config.founding_s)
        self._found_with = lineage, size, policy

    def ask(self, targets: Sequence[Member] | None = None) -> list[Effect]:
        """Ask everybody, or `targets`, for a seat, and the seeds whether there is a swarm."""
        if self.layout is None:
            return []
        asked = self._swim.alive() if targets is None else targets
        self._from = self._observing.asks_from()
        effects: list[Effect] = [Send(member, self._join(self.layout[0], member)) for member in asked]
        if self._founding is not None:
            effects += [
                Send(member, LineageQuery()) for member in asked if self._address(member) in self._founding.seeds
            ]
        return effects

    def _join(self, state_hash: str, member: Member) -> Join:
        return Join(state_hash, self._observing.follows, *self._from, self._views.number_for(member))

    def receive(self, now: float, source: Member, lineage: bytes, body: Head | Refuse | LineageAnswer) -> list[Effect]:
        """What is answered to who asks for a seat, or founds. `source` is a member of `lineage`."""
        match body:
            case Head():
                return [] if self._steps.seated else self.hear_head(now, source, lineage, body)
            case Refuse(layout):
                return [Refused(layout)] if self._steps.view is None and self.layout is not None else []
        self.hear_lineage(source, body.lineage)
        return []

    def hear_head(self, now: float, source: Member, lineage: bytes, head: Head) -> list[Effect]:
        """`source`, a member of `lineage`, says how far it is; the last step is said by the feeder only."""
        effects = self._hear_view(now, source, lineage, head) if self._steps.view is None else []
        return [*effects, *self._observing.hear_head(now, source, head)] if head.digest else effects

    def _hear_view(self, now: float, source: Member, lineage: bytes, head: Head) -> list[Effect]:
        """Ask again at once, if a later view can be named. Who may have lost a seat unheard ends (R8)."""
        if self.layout is None or not self._swim.is_alive(source):
            return []
        named = self._views.number_for(source)
        self._views.keep(self._swim.alive())
        if self._views.hear(now, source, lineage, head):
            return self.ask()
        if self._views.in_doubt_s(now, source) >= self._config.stale_s:
            self.reason = f"it may have had a seat after view {named}, and has none in view {head.view_number}"
            return [Removed(self.reason)]
        return self.ask([source]) if self._views.number_for(source) > named else []

    def hear_of_itself(self) -> list[Effect]:
        """A peer without a seat is in no view that others could go on without, so only their claims tell it."""
        if self._steps.view is not None or not self._swim.is_denied:
            return []
        self.reason = "others take this peer for dead"
        return [Removed(self.reason)]

    def hear_lineage(self, source: Member, lineage: bytes) -> None:
        if self._founding is not None:
            self._founding.answered(self._address(source), lineage)

    def foundation(self, now: float) -> tuple[bytes, int, Policy] | None:
        """Lineage, founding size and policy, if this peer is to found the swarm now."""
        if self._founding is None or self.layout is None:
            return None
        founds, self.reason = self._founding.decide(now)
        return self._found_with if founds else None

    def _address(self, member: Member) -> str:
        claim = self._swim.claim_of(member)
        return "" if claim is None else claim.contact.seed
