"""The slots of a run: each is taken by one peer, and, if that fails and `--restarts` allows it, by a replacement."""

import math
import signal
from dataclasses import dataclass, field
from typing import Final

from ..telemetry.snapshot import Counted, Snapshot
from .children import Child
from .signals import signal_name

BACK_OFF_S: Final = 1.0
MOST_BACK_OFF_S: Final = 30.0
CRASH_LOOP_LIMIT: Final = 3
AT_START_S: Final = 10.0
"""A peer that dies earlier than this without a step counts as dead at its start."""

FAILED: Final = 1
REMOVED: Final = 3
"""Exit code of a peer that the others removed, as of `p2p.RemovedFromView`."""

SLOW: Final = 4
"""Exit code of a peer that has left because it was slow, as of `p2p.TooSlow`."""


@dataclass(frozen=True, slots=True)
class ExitOutcome:
    """The end of a peer.

    Attributes:
        code: its return code, -N for signal N.
        exit_code: of a run in which this is the worst ending; 0: it has completed, or left as intended.
        words: the ending, in words.
    """

    code: int
    exit_code: int
    words: str

    @property
    def has_completed(self) -> bool:
        return self.code == 0 and self.exit_code == 0

    @classmethod
    def of(
        cls,
        code: int,
        *,
        has_begun: bool,
        is_through: bool = False,
        is_removed: bool = False,
        is_slow: bool = False,
        is_late: bool = False,
        has_left: bool = True,
    ) -> "ExitOutcome":
        """Classify a return code.

        Args:
            code: -N for signal N.
            has_begun: the peer had a seat, or observed.
            is_through: it had left its run at the end, by its last report.
            is_removed: it was removed, by its last report.
            is_slow: it was the slowest member, and could not go on, by its last report.
            is_late: it replaced a failed peer, could not take part any more, and its place has never counted a step.
            has_left: it did not end in the middle of its run, as by `os._exit`.
        """
        if code == 0 and not has_left:
            return cls(code, FAILED, "ended with exit code 0 without leaving its run (os._exit?)")
        if code == 0 and is_late:
            return cls(code, FAILED, "came after the run was over and took no part")
        if code == 0:
            return cls(code, 0, "completed")
        if code == 128 + signal.SIGTERM or (code == -signal.SIGTERM and (is_through or not has_begun)):
            return cls(code, 0, "left on SIGTERM")
        if code == REMOVED and is_removed:
            return cls(code, REMOVED, "was removed: the others continued without it")
        if code == SLOW and is_slow:
            return cls(code, 0, "left, since it was much slower than the others (slow_peers)")
        words = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return cls(code, FAILED, words)


@dataclass(eq=False, slots=True)
class PeerSlot:
    """One slot of a run, and the peer in it.

    Attributes:
        index: in this launch.
        name: in all messages: its number on this host.
        child: the current process; None: not yet, or no longer.
        started_s: when the current or last process was started.
        snapshot: the last report of that process.
        exit_outcome: of the last process; None: it has not ended.
        num_restarts: number of replacements.
        restart_at: when the next one is due; infinite: never.
        steps, samples: contributions of all peers that have ended here.
    """

    index: int
    name: str
    child: Child | None = None
    started_s: float = 0.0
    snapshot: Snapshot | None = None
    exit_outcome: ExitOutcome | None = None
    num_restarts: int = 0
    restart_at: float = math.inf
    steps: int = 0
    samples: int = 0
    _deaths: list[int] = field(default_factory=list)
    _former: dict[str, Counted] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The last step that is known to be committed; -1: none."""
        return self.snapshot.step if self.snapshot is not None and self.snapshot.has_begun else -1

    @property
    def pid(self) -> int | None:
        """Of the process that has joined here, by its last report; None: none has."""
        return None if self.snapshot is None else self.snapshot.identity.pid

    @property
    def is_through(self) -> bool:
        """Whether the last process had left its run at the end."""
        return self.snapshot is not None and self.snapshot.left_cleanly

    def begin(self, child: Child, now: float) -> None:
        """Put a new process into this place."""
        self.num_restarts += self.exit_outcome is not None
        self.child, self.started_s, self.snapshot, self.exit_outcome, self.restart_at = child, now, None, None, math.inf

    def take(self, standing: Snapshot) -> None:
        """Take a report. The process may have become another peer: it has joined again, or replaced its program."""
        before = self.snapshot
        if (
            before is not None
            and before.identity.peer_id != standing.identity.peer_id
            and before.identity.swarm == standing.identity.swarm
        ):
            self._former[before.identity.peer_id] = before.counted
        self.snapshot = standing

    def end(self, code: int, now: float, num_allowed: int, *, has_left: bool = True) -> str:
        """Set the ending of the process; replacements are allowed `num_allowed` times. `has_left`: as of `ExitOutcome`.

        Returns:
            In words, whether and when a replacement starts; empty: none is needed, or allowed.
        """
        has_begun = self.snapshot is not None and self.snapshot.has_begun
        if self.snapshot is not None:
            self._former[self.snapshot.identity.peer_id] = self.snapshot.counted
            self.steps += sum(counted.steps for counted in self._former.values())
            self.samples += sum(counted.samples for counted in self._former.values())
            self._former.clear()
        is_removed = self.snapshot is not None and self.snapshot.is_removed
        cannot_go_on = self.snapshot is not None and bool(self.snapshot.error)
        is_slowest = self.snapshot is not None and self.snapshot.slowest.startswith(
            f"peer {self.snapshot.identity.peer_id} "
        )
        self.child = None
        self.exit_outcome = ExitOutcome.of(
            code,
            has_begun=has_begun,
            is_through=self.is_through,
            is_removed=is_removed,
            is_slow=cannot_go_on and is_slowest,
            is_late=cannot_go_on and self.num_restarts > 0 and not self.steps,
            has_left=has_left,
        )
        if not code or not self.exit_outcome.exit_code or not num_allowed:
            return ""
        if has_begun or now - self.started_s < AT_START_S:
            self._deaths.append(self.step)
        else:
            self._deaths.clear()
        if self._deaths[-CRASH_LOOP_LIMIT:] == [self.step] * CRASH_LOOP_LIMIT:
            where = f"at step {self.step}" if has_begun else f"within {AT_START_S:g} s of its start"
            return f"not started again: this was its death number {CRASH_LOOP_LIMIT} {where}"
        if self.num_restarts >= num_allowed:
            done = f"{self.num_restarts} times" if self.num_restarts > 1 else "once"
            return f"not started again: it was restarted {done} (--restarts)"
        wait_s = min(BACK_OFF_S * 2**self.num_restarts, MOST_BACK_OFF_S)
        self.restart_at = now + wait_s
        return f"started again in {wait_s:g} s ({self.num_restarts + 1} of {num_allowed})"
