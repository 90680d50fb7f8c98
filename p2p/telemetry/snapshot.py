"""The state of a peer, as it reports it once a second: in its page, to its launcher, and to remote requesters."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, is_dataclass
from typing import Any, Final

from ..errors import RemoteProtocolError
from ..host.processes import Offsets

SHORT: Final = 8
"""Digits of a peer_id that name a peer without a number on this host."""

_PEER_ID: Final = re.compile(r"\b[0-9a-f]{16}\b")

MOST_ARGUMENTS: Final = 200
"""Characters of a script's arguments that are kept: each takes up to 12 bytes of an identity's 4,000 in the page."""

MOST_BYTES: Final = 30_000
"""The largest snapshot. Members, others, links, events and long texts of a longer one are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The owner of a page.

    Attributes:
        name: in messages: the number of the peer on its host, or the first digits of its peer_id.
        process_start, host: with `pid`, these identify the process, as in its registry entry.
        script: file name of the script; empty: unknown.
        joined_ns: when it called `p2p.join`, by the monotonic clock.
        wall_ns: the same time by the wall clock.
        arguments: of the script, in the form that others may see; cut after `MOST_ARGUMENTS` characters.
        commit: of the script's checkout, without uncommitted changes; empty: unknown.
        monotonic_offset_ns, boottime_offset_ns: of its clocks, as in its registry entry.
    """

    peer_id: str
    swarm: str
    name: str
    pid: int
    process_start: int
    host: str
    script: str
    joined_ns: int
    wall_ns: int
    monotonic_offset_ns: int = 0
    boottime_offset_ns: int = 0
    arguments: str = ""
    commit: str = ""

    @property
    def offsets(self) -> Offsets:
        """The offsets of its clocks."""
        return Offsets(self.monotonic_offset_ns, self.boottime_offset_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Recent speed of a peer, per committed step: the parts of a step add up to its time.

    Attributes:
        compute_s: from the results of the step before until this one is fully submitted: the script's own time.
        exchange_s: from then until all its operations are complete here.
        wait_s: from then until all others have finished it.
    """

    steps_per_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The last completed change of the view, and its cost.

    Attributes:
        view: number of the view that became active; 0: none yet.
        step: the last step before it.
        waited_s: from the first sign of the change (a death, the beginning of a silence or of the wait for a silent
            peer, or the new view) until all members could continue.
        redone: the step that was redone; -1: none.
        num_lost: committed steps that were lost; 0, as long as the protocol holds.
    """

    view: int = 0
    step: int = -1
    waited_s: float = 0.0
    redone: int = -1
    num_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The contributions of a peer.

    Attributes:
        steps: steps whose receipts count it.
        samples: its samples in these.
        since_ns: when the first of them was committed, by the monotonic clock; 0: there is none.
    """

    steps: int = 0
    samples: int = 0
    since_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Another peer, as known from gossip, which may be seconds old.

    Attributes:
        view: in which it has a seat; 0: it observes, or waits.
        step: the last one that it has committed; -1: none.
        loss: the last one that it has logged; 0.0: none.
        address: for control frames from other hosts, such as notices of a death; empty: there is none.
    """

    peer_id: str
    view: int
    step: int
    steps_per_s: float
    loss: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link to a peer on another host, by the kernel's counters since the connection was opened.

    Attributes:
        rtt_us: the shortest round trip of the last minutes; 0: unknown.
        bytes_per_s: the highest recent rate at which that peer has received from here; 0: unknown.
        sent_bytes: bytes that it has received.
    """

    peer_id: str
    rtt_us: int
    bytes_per_s: int
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The peers that a peer waits for.

    Attributes:
        text: in words; empty: the peer does not wait.
        peers: their peer_ids, as far as known.
    """

    text: str = ""
    peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a peer at one moment.

    Attributes:
        time_ns: by the monotonic clock of its host.
        phase: JOINING, INSTALLING or ACTIVE, as of `Peer.status`.
        lineage: of its last step, 32 hex digits, as on receipts; empty: it had no seat.
        view: number of the installed one; 0: none.
        members: of that view, as (peer_id, incarnation), in rank order.
        needed: number of peers that the first step waits for.
        others: all other peers that it knows, members or not.
        step: the last one that is committed here; -1: none.
        has_begun: it has, or had, a seat, or observes.
        reason: why the view is as it is, or why there is none.
        events: the last events of members: (ns, words).
        resident_bytes, num_files: memory and descriptors of its process; 0: unknown.
        slowest: which member is slow, and how much; empty: none.
        dropped: dropped frames, by reason.
        error: why it cannot continue; empty: it can.
        is_removed: the reason is that the others continued without it.
        left_cleanly: it has left, and its script was not cut off.
        logged: the last values of `peer.log`, by name.
        links: to peers on other hosts.
        home: folder of its registry; empty: unknown.
    """

    identity: Identity
    time_ns: int
    phase: str
    view: int
    members: tuple[tuple[str, int], ...]
    needed: int
    others: tuple[Other, ...]
    step: int
    has_begun: bool
    reason: str
    events: tuple[tuple[int, str], ...]
    resident_bytes: int
    dropped: dict[str, int]
    num_files: int = 0
    slowest: str = ""
    error: str = ""
    is_removed: bool = False
    left_cleanly: bool = False
    waiting: Waiting = field(default_factory=Waiting)
    pace: Pace = field(default_factory=Pace)
    change: Change = field(default_factory=Change)
    counted: Counted = field(default_factory=Counted)
    logged: dict[str, float] = field(default_factory=dict)
    lineage: str = ""
    links: tuple[Link, ...] = ()
    home: str = ""

    def pack(self) -> bytes:
        """Two lines of JSON, at most `MOST_BYTES`; some readers skip the second, with members, others and links."""
        values = {each.name: _plain(getattr(self, each.name)) for each in fields(self)}
        crowd: dict[str, Sequence[Any]] = {
            "members": self.members,
            "others": [astuple(each) for each in self.others],
            "links": [astuple(each) for each in self.links],
        }
        for name in crowd:
            del values[name]
        text = _lines(values, crowd)
        while len(text) > MOST_BYTES:
            crowd = {name: each[: len(each) // 2] for name, each in crowd.items()}
            values["events"] = values["events"][(len(values["events"]) + 1) // 2 :]
            values["reason"], values["waiting"]["text"] = values["reason"][:1000], values["waiting"]["text"][:1000]
            values["dropped"], values["error"] = {}, values["error"][:1000]
            text = _lines(values, crowd)
        return text

    @classmethod
    def parse(cls, text: bytes, *, with_crowd: bool = True) -> "Snapshot":
        """Parse the output of `pack`. Without `with_crowd` there are no members, others and links, at 1/3 of the cost.

        Raises:
            RemoteProtocolError: not a snapshot of this version.
        """
        try:
            first, second = text.split(b"\n")
            values: dict[str, Any] = json.loads(first)
            for name, kind in _PARTS.items():
                values[name] = kind(**values[name])
            crowd = json.loads(second) if with_crowd else {"members": (), "others": (), "links": ()}
            values["others"] = tuple(
                Other(
                    peer_id=str(peer_id),
                    view=int(view),
                    step=int(step),
                    steps_per_s=float(rate),
                    loss=float(loss),
                    address=str(address),
                )
                for peer_id, view, step, rate, loss, address in crowd["others"]
            )
            values["links"] = tuple(
                Link(peer_id=str(peer_id), rtt_us=int(rtt), bytes_per_s=int(rate), sent_bytes=int(sent))
                for peer_id, rtt, rate, sent in crowd["links"]
            )
            values["members"] = tuple((str(peer_id), int(incarnation)) for peer_id, incarnation in crowd["members"])
            values["events"] = tuple((int(time_ns), str(words)) for time_ns, words in values["events"])
            waiting = values["waiting"]
            values["waiting"] = Waiting(text=waiting.text, peers=tuple(waiting.peers))
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            what = type(error).__name__
            raise RemoteProtocolError(f"no snapshot that this version of shoal can read ({what})") from None


def renamed(text: str, name: Callable[[str], str]) -> str:
    """With what they are called in place of peer_ids."""
    return _PEER_ID.sub(lambda found: name(found[0]), text)


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _lines(*parts: Any) -> bytes:
    return b"\n".join(map(to_json, parts))


_PARTS: Final = {"identity": Identity, "waiting": Waiting, "pace": Pace, "change": Change, "counted": Counted}
IDENTITY_FIELDS: Final = {each.name for each in fields(Identity)}


def to_json(values: Any) -> bytes:
    """JSON in one line. Numbers that are not finite become NaN or Infinity, Python's extension."""
    return json.dumps(values, separators=(",", ":")).encode()
