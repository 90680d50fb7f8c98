"""What a peer does for its first seat: ask for it, follow as an observer meanwhile, or found the swarm.

Leaves out: what happens once a view seats it (commit.py).
"""

import math
from collections.abc import Sequence

from .commit import StepMachine
from .config import CoreConfig
from .effects import AskForState, Effect, Removed, Send
from .following import Follower
from .founding import Founding
from .known_views import KnownViews
from .messages import NOTHING_DONE, Head, Join, LineageQuery
from .swim import Swim
from .view import Member, Policy


class Joining:
    """One peer on its way into a view. It has asked for a seat once it has a `layout`."""

    def __init__(self, swim: Swim, steps: StepMachine, *, config: CoreConfig) -> None:
        self.layout: tuple[str, bytes] | None = None
        self.reason = "not in a view yet"
        self._swim = swim
        self._steps = steps
        self._config = config
        self._views = KnownViews()
        self._follower = Follower()
        self._gap = NOTHING_DONE, -math.inf
        self._founding: Founding | None = None
        self._found_with: tuple[bytes, int, Policy] = b"", 1, Policy.MAJORITY

    def begin(self, layout: tuple[str, bytes], *, follows: bool) -> None:
        self.layout, self._steps.follows = layout, follows

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
        effects: list[Effect] = [Send(member, self._join(self.layout[0], member)) for member in asked]
        if self._founding is not None:
            effects += [
                Send(member, LineageQuery()) for member in asked if self._address(member) in self._founding.seeds
            ]
        return effects

    def _join(self, state_hash: str, member: Member) -> Join:
        steps = self._steps
        return Join(state_hash, steps.follows, steps.done, steps.digest, self._views.number_for(member))

    def hear_head(self, now: float, source: Member, lineage: bytes, head: Head) -> list[Effect]:
        """`source`, a member of `lineage`, says how far it is; the last step is said by the feeder only."""
        effects = self._hear_view(now, source, lineage, head) if self._steps.view is None else []
        return [*effects, *self._hear_step(now, source, head)] if head.digest else effects

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

    def hear_lineage(self, source: Member, lineage: bytes) -> None:
        if self._founding is not None:
            self._founding.answered(self._address(source), lineage)

    def foundation(self, now: float) -> tuple[bytes, int, Policy] | None:
        """Lineage, founding size and policy, if this peer is to found the swarm now."""
        if self._founding is None or self.layout is None:
            return None
        founds, self.reason = self._founding.decide(now)
        return self._found_with if founds else None

    # Following.

    def fed(self, step: int, previous: bytes, digest: bytes) -> list[Effect]:
        """A committed step has come, as bytes."""
        self._follower.fed(step, previous, digest, self._steps.done)
        return self.go_on()

    def loaded(self) -> list[Effect]:
        """A state was loaded, or a fed step was run."""
        self._follower.applied()
        return self.go_on()

    def go_on(self) -> list[Effect]:
        if self._steps.seated:
            return []
        following = self._follower.next_step(self._steps.done, self._steps.digest)
        return [] if following is None else [following]

    def _hear_step(self, now: float, source: Member, head: Head) -> list[Effect]:
        """`source`, which feeds this observer, has committed up to `head.step`: ask for the state if there is a gap.

        What it fed may still be on its way, so a gap must last from one head to the next.
        """
        steps = self._steps
        steps.feeder = source
        self._follower.heard(head.step, head.digest)
        missing = self._follower.missing(steps.done, steps.digest)
        known, since = self._gap
        if missing is None or not self._steps.follows:
            self._gap = NOTHING_DONE, -math.inf
            return []
        is_new = since == -math.inf or known != steps.done
        self._gap = steps.done, now if is_new else since
        if steps.done != NOTHING_DONE and is_new:
            return []
        if not is_new and now - since < self._config.state_s:
            return []
        self._gap = steps.done, now
        return [AskForState(source, missing)]

    def _address(self, member: Member) -> str:
        claim = self._swim.claim_of(member)
        return "" if claim is None else claim.contact.seed
