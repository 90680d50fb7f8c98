"""When a checkpoint is written, and by which member: between steps, where the state is complete.

The first member on the last receipt writes. All members know that receipt, so no message is needed. A member that
becomes the first, because the one before has died or left, checks whether the last checkpoint that was due exists, and
otherwise writes one at once: the other member died while writing, or wrote on another host.
"""

import logging
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from ..catchup.replica import Replica
from ..errors import ShoalError
from ..joining import say
from ..loop.seat_request import AllMembersDead
from ..peer import Peer
from ..session.leaving import ends_well
from .folder import check_is_usable, manifests, remove_leftovers
from .manifest import Ancestry, Manifest
from .resume import Resume
from .settings import Checkpoint
from .writer import Writer, child_of

logger = logging.getLogger("p2p")

EDGE_S: Final = 5.0
"""How long a step that is in progress at SIGTERM may take to end."""

NO_COPY: Final = TypeError, ValueError, MemoryError
"""Errors of a state that cannot be copied: a part has a value that is not plain by now, or memory is short."""

LOST: Final = (
    "SIGTERM arrived, and the script asked for no batch within %g s, so no checkpoint has the state after step %d; "
    "the last one is %s: pass a smaller every= to save more often"
)


class Checkpointer:
    """Decides when one peer writes checkpoints. Joiners receive its state: one of them may write the next one."""

    def __init__(self, settings: Checkpoint, peer: Peer, is_complete: Callable[[], bool]) -> None:
        """A keeper that reads and writes nothing before `take_seat`.

        Args:
            settings: of the script.
            peer: has no seat yet.
            is_complete: whether the optimizer has applied all committed steps.
        """
        self._settings = settings
        self._peer, self._session = peer, peer._session
        self._is_complete = is_complete
        self._replica: Replica | None = None
        self._ancestry = Ancestry("", 0)
        self._writer = Writer(settings, peer.peer_id)
        self._is_first = False
        self._covered = 0
        self._interruption: BaseException | None = None
        self._alarm: threading.Timer | None = None

    # State for joiners.

    def state_dict(self) -> dict[str, Any]:
        """The ancestry of the next checkpoint, as plain values."""
        ancestry = self._known()
        return {
            "run": ancestry.run,
            "start": ancestry.start,
            "parent": ancestry.parent,
            "parent_step": ancestry.parent_step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the ancestry of another member."""
        self._ancestry = Ancestry(**state_dict)

    # Edges of steps.

    def take_seat(self, replica: Replica) -> None:
        """Like `Session.take_seat`; founders then resume a checkpoint, if there is one.

        Raises:
            ShoalError: checkpoints cannot be written, or exist and none is usable.
            OperationMismatch, QuorumLost, RemovedFromView, StepTimeout: as any operation.
        """
        num_bytes = sum(memoryview(part).nbytes for part in replica.pack().tensors)
        check_is_usable(self._settings.path, num_bytes)
        self._session.take_seat(replica, loads=True)
        self._replica = replica
        if self._session.done == 0:
            given = self._settings.resume or self._peer._config.resume
            forced = "" if given is None else str(given)
            resume = Resume(self._session, self._peer._calls, replica, self._settings.path, forced)
            self._ancestry, manifest = resume.run()
            remove_leftovers(self._settings.path)
            if manifest is not None:
                ours, theirs = self._peer._config.swarm, manifest.swarm
                other = f", written by swarm {theirs}, while this is {ours}: the script or its arguments differ"
                said = f"resuming from {resume.path}: step {manifest.step} of run {manifest.ancestry.run[:8]}"
                say(said + other * (theirs != ours))
        self._session.membership.keeper = self

    def on_state_complete(self) -> None:
        """Write a checkpoint if one is due. The state after the last committed step is complete until the next commit.

        Raises:
            BaseException: the interruption that `defer` has kept, after the last checkpoint is begun.
        """
        done = self._session.share.num_trained
        self._take_turn(done)
        if self._interruption is not None and threading.current_thread() is threading.main_thread():
            self._end_alarm()
            self._write_last(done)
            interruption, self._interruption = self._interruption, None
            raise interruption
        every = self._settings.every
        if self._is_first and self._writer.is_idle and done // every > self._covered // every:
            self._write(done)

    def _take_turn(self, done: int) -> None:
        """Update which member writes; if this peer has just become it, look up the newest checkpoint."""
        was_first, self._is_first = self._is_first, self._writes
        if not self._is_first or done == 0:
            self._is_first = False
        elif not was_first:
            last = self._newest()
            self._covered = 0 if last is None else last.step
            assert self._replica is not None
            with suppress(*NO_COPY):  # writing says so
                self._writer.prepare(self._replica.pack())

    @property
    def _writes(self) -> bool:
        return self._session.share.contributors[:1] == (self._session.loop.peer_id,)

    def _newest(self) -> Manifest | None:
        """The newest checkpoint of this start in the folder, or the one that this start resumed."""
        ours = self._ancestry
        found = [
            each
            for each in manifests(self._settings.path).values()
            if each.ancestry.run == ours.run and (each.ancestry.start == ours.start or each.id == ours.parent)
        ]
        newest = max(found, key=lambda manifest: manifest.recency, default=None)
        self._writer.written = newest
        return newest

    def _write(self, done: int, *, is_last: bool = False) -> None:
        assert self._replica is not None
        history, share = self._session.history, self._session.share
        manifest = Manifest(
            ancestry=self._known(),
            step=done,
            epochs=share.tracks.epochs,
            swarm=self._peer._config.swarm,
            lineage=history.known_view().lineage.hex(),
            last_step=history.done,
            num_bytes=0,
            tree=None,
            digests={},
        )
        self._covered = done
        try:
            self._writer.begin(self._replica.pack(), manifest, is_last=is_last)
        except NO_COPY as error:
            self._writer.fail(done, error, is_last=is_last)

    def _known(self) -> Ancestry:
        return child_of(self._writer.written, self._ancestry)

    def check_is_newest(self, dead: AllMembersDead) -> None:
        """As of `Membership.Keeper`: continue from this peer's state, as a later start than those of the checkpoints.

        Raises:
            AllMembersDead: there is a checkpoint after more steps.
        """
        newest, done = self._newest(), self._session.share.num_trained
        if newest is not None and newest.step > done:
            raise AllMembersDead(
                f"all members have died; this peer holds the state after {done} steps of training, but there is a "
                f"checkpoint after {newest.step}: start all peers again to resume it"
            ) from dead
        self._ancestry = replace(self._ancestry, start=self._ancestry.start + 1)
        self._is_first = False

    # At the end.

    def _write_last(self, done: int) -> None:
        """Write the complete state before this peer leaves, unless it is written, or another member writes."""
        if self._writes and done:
            self._take_turn(done)
            self._writer.wait()
            if done > self._covered or self._writer.failure:
                self._write(done, is_last=True)

    def defer(self, interruption: BaseException) -> bool:
        """For the handler of SIGTERM: keep the interruption until the end of the step. False: leave at once.

        A second interruption, or one that is not SystemExit, is not deferred.
        """
        if self._interruption is not None or not isinstance(interruption, SystemExit):
            return False
        self._interruption = interruption
        if self._session.membership.has_left:  # only writing remains
            return True
        main = threading.main_thread().ident
        assert main is not None
        self._alarm = threading.Timer(EDGE_S, signal.pthread_kill, (main, signal.SIGTERM))
        self._alarm.daemon = True
        self._alarm.start()
        return True

    def _end_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def begin_leaving(self) -> None:
        """Write the last checkpoint: the script has ended, and this peer is about to leave."""
        self._end_alarm()
        done = self._session.share.num_trained
        if self._is_complete() and not self._session.share.is_batch_cut and ends_well():
            self._write_last(done)
        elif self._interruption is not None and self._writes and done > self._covered:
            logger.warning(LOST, EDGE_S, done, f"that of step {self._covered}" if self._covered else "none")

    def end_leaving(self) -> None:
        """Wait for the writer: this peer has left.

        Raises:
            ShoalError: the last checkpoint could not be written.
        """
        self._writer.wait()
        if self._writer.failure and self._is_first:
            why = f"{self._writer.failure}; it would have been the last checkpoint of this peer"
            if ends_well():
                raise ShoalError(why)
            logger.error("%s", why)
