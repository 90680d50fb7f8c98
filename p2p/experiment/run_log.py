"""The events and processes of a run: written by the director, read by the evaluation."""

from dataclasses import dataclass, field

from .usage import Usage


@dataclass(slots=True, kw_only=True)
class EventOutcome:
    """One planned event and its outcome. Times are monotonic nanoseconds; 0: not yet.

    Attributes:
        number: from 1.
        do: as in the file.
        planned, who: when, and the action with its target, in words.
        for_s: duration of a pause, cut or link; 0: the event has none.
        trigger_ns: when the event was due, without its delay.
        time_ns: right before the action; of a change of links right after it.
        at_step: the newest step that any peer had committed then.
        victims: peer_ids of the targets.
        peers: indices of the targets, or of the peers that were started.
        until_ns: when a pause, cut or link ended, or a restart started the new peers.
        said: the reasons that peers gave for standing still meanwhile.
        why_not: why the event has not happened.
    """

    number: int
    do: str
    planned: str
    who: str
    for_s: float = 0.0
    trigger_ns: int = 0
    time_ns: int = 0
    at_step: int = -1
    victims: list[str] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)
    until_ns: int = 0
    said: list[str] = field(default_factory=list)
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process that was started.

    Attributes:
        peer_id: empty: the process has not joined.
        missed: number of records that were overwritten before they were read.
        ended_by_experiment: by the experiment.
        last_line: of its output.
    """

    index: int
    peer_id: str
    pid: int
    began_ns: int
    joined_ns: int
    ended_ns: int
    code: int | None
    missed: int
    ended_by_experiment: bool
    last_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """The director's record of a run: run.json.

    Attributes:
        seed: of the plan.
        began_ns: before the peers were started.
        first_step_ns: when step 1 was committed; 0: never.
        ended_by: `script`, `until`, `limit` or `interrupt`.
        losses: (time, index of the peer, loss).
        usage: of memory and files.
        environment: machine, versions, commit.
    """

    name: str
    seed: int
    began_ns: int
    first_step_ns: int
    ended_ns: int
    ended_by: str
    processes: tuple[Process, ...]
    events: tuple[EventOutcome, ...]
    losses: tuple[tuple[int, int, float], ...]
    environment: dict[str, object]
    usage: tuple[Usage, ...] = ()
    version: int = 1

    def adjacent_ns(self, time_ns: int) -> tuple[int, int]:
        """The last time before and the first after `time_ns` at which an event began or ended."""
        times = [each_ns for each in self.events for each_ns in (each.time_ns, each.until_ns) if each_ns]
        before = max((each_ns for each_ns in times if each_ns < time_ns), default=0)
        return before, min((each_ns for each_ns in times if each_ns > time_ns), default=1 << 63)
