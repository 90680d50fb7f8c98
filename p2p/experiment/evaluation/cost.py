"""The cost of one event. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..run_log import EventOutcome


@dataclass(slots=True, kw_only=True)
class Cost:
    """The cost of one event.

    Attributes:
        event: its times are by the same clock as all records.
        times_ms: times after the event, by name.
        phases_ms: consecutive phases, in order.
        by: the source of the first word that the victim is gone.
        at: activity of the victim; empty: unknown, or there were several victims.
        gap_ms: the longest time without a commit, from the event until all continue.
        redone: steps that were redone.
        lost: number of lost steps.
        recounted: samples that were handed out again, since no receipt counted them.
        step_ms: median time of the steps right before the event, with the same members.
        followed: steps that a joiner received before it had its seat.
        state_bytes: size of the first state that a joiner received completely; 0: none.
        donors: number of donors of that state.
        off_ms: the largest difference between a survivor's parts, by its own records, and the time until it continued.
        off_by: the peer_id of that survivor.
        why: reasons why values are unknown or absent, by name.
    """

    event: EventOutcome
    times_ms: dict[str, float] = field(default_factory=dict)
    phases_ms: dict[str, float] = field(default_factory=dict)
    by: str = ""
    at: str = ""
    gap_ms: float | None = None
    redone: list[int] = field(default_factory=list)
    lost: int = 0
    recounted: int | None = None
    followed: int = 0
    step_ms: float | None = None
    state_bytes: int = 0
    donors: int = 0
    off_ms: float | None = None
    off_by: str = ""
    why: dict[str, str] = field(default_factory=dict)

    @property
    def state_bytes_per_s(self) -> float | None:
        """Rate at which a joiner received the state, from its beginning until it was complete; None: unknown."""
        took_ms = self.times_ms.get("whole", 0.0) - self.times_ms.get("state", 0.0)
        return self.state_bytes / took_ms * 1e3 if self.state_bytes and took_ms > 0 else None


def phases(times_ms: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """The phases between consecutive known times; none is negative."""
    before, phases = 0.0, {}
    for name, phase in names.items():
        if name in times_ms:
            end = max(before, times_ms[name])
            phases[phase], before = round(end - before, 3), end
    return phases
