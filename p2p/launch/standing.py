"""Where a peer stands, as it reports once a second (session/reporter.py)."""

import json
from dataclasses import dataclass, fields
from typing import Any, Final

REPORT_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a peer says of itself.

    Attributes:
        pid: of the process that has joined; not always the one that was started.
        done: the last step that is committed.
        has_begun: it has, or had, a seat, or observes.
        steps, samples: that it was counted in, and how many it added.
        view: number of the installed view; 0: none.
        needed: how many peers the first step waits for.
        members: of the view, as (peer_id, incarnation).
        reasons: the last things that happened to members, in words.
        waits: for whom, in words; empty: for nobody.
    """

    pid: int
    peer_id: str
    swarm: str
    done: int
    has_begun: bool
    steps: int
    samples: int
    view: int
    needed: int
    members: tuple[tuple[str, int], ...]
    reasons: tuple[str, ...]
    waits: str

    @classmethod
    def parse(cls, text: bytes) -> "Standing | None":
        """None: it is of another version."""
        values: dict[str, Any] = json.loads(text)
        if values.keys() != {field.name for field in fields(cls)}:
            return None
        members = tuple((str(peer_id), int(incarnation)) for peer_id, incarnation in values["members"])
        return cls(**{**values, "members": members, "reasons": tuple(values["reasons"])})
