"""What was done in a run, and to whom: written by the director, read by the evaluation."""

from dataclasses import dataclass, field

from .usage import Usage


@dataclass(slots=True, kw_only=True)
class Happened:
    """One planned event, and what became of it. Times are monotonic nanoseconds; 0: not yet.

    Attributes:
        number: from 1 on.
        do: as in the file.
        planned, who: in words.
        for_s: of what is done for a while: a pause, a cut, a link.
        time_ns: right before it was done.
        at_step: the last step that anybody had committed then.
        victims: peer_ids of those it was done to.
        peers: indices of victims, or of those that have started.
        until_ns: when that was over.
        said: why peers did not go on meanwhile, in their own words.
        why_not: why it has not happened.
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
        peer_id: empty: it has not joined.
        missed: records that were overwritten before they were read.
        was_ended: by the experiment.
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
    was_ended: bool
    last_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Everything that the director knows of a run: run.json.

    Attributes:
        seed: of the plan.
        begun_ns: when step 1 was committed; 0: it was not.
        ended_by: `script`, `until`, `limit` or `interrupt`.
        losses: (time, index of the peer, loss).
        usage: of memory and files.
        environment: machine, versions, commit.
    """

    name: str
    seed: int
    began_ns: int
    begun_ns: int
    ended_ns: int
    ended_by: str
    processes: tuple[Process, ...]
    events: tuple[Happened, ...]
    losses: tuple[tuple[int, int, float], ...]
    environment: dict[str, object]
    usage: tuple[Usage, ...] = ()
    version: int = 1
