"""The peer as a script uses it: `join`, then operations and steps that commit.

    with p2p.join() as peer:
        peer.all_reduce(tensor)

The view that a script sees changes only when a step commits. A peer that trains a model and joins a run in progress is
an *observer* at first: it runs the same loop, receives the results of the members, and adds nothing to them. It gets
its seat when it has caught up, and returns in the same way after a removal.
"""

import atexit
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from gossip import View

from .config import PeerConfig
from .errors import RemovedFromView, RunEnded, ShoalError, TooSlow
from .operations import Operations
from .session.leaving import Leaving
from .session.session import Session
from .session.status import describe
from .step.receipts import Receipt

if TYPE_CHECKING:
    from .data.loader import Loader


class Peer(Operations):
    """One member of a swarm. Created by `join`, for one thread at a time.

    A call while another thread is in one, or has a step open, raises `ShoalError`, which names both; but `leave` ends
    the call of the other thread, and `status` may be called at any time. In a forked child every call raises.

    `with p2p.join() as peer:` calls `leave` at the end. If `RemovedFromView` ends the block, it is printed as one line,
    and raised as `SystemExit(3)`, so that the parent process can distinguish it from a failure; likewise `RunEnded`, as
    `SystemExit(0)`, and `TooSlow`, as `SystemExit(4)`.
    """

    def __init__(self, config: PeerConfig) -> None:
        """Enter the swarm, as `join` does, but without the environment, and without signal handlers.

        Args:
            config: how to find the swarm, and how long to wait.

        Raises:
            RegistryError, NetworkError, SecurityError, ShoalError, OSError: as `join`.
        """
        super().__init__(Session(config))
        self._config = config

    # State visible to the script.

    @property
    def peer_id(self) -> str:
        """16 hex digits, drawn at `join`; the same after a return."""
        return self._session.membership.me.peer_id

    @property
    def view(self) -> View | None:
        """The view of the last committed step; None before `wait_view`, or before an observer has received its state.

        An observer has no seat in it.
        """
        return self._session.history.view

    @property
    def rank(self) -> int:
        """Index of this peer in `view`. An observer's is that of the next joiner: after all members.

        Raises:
            ShoalError: there is no view yet.
        """
        history, me = self._session.history, self._session.membership.me
        members = history.known_view().members
        if me in members:
            return members.index(me)
        if not self._session.share.tracks.epochs:  # without a loader
            history.own_data.ask_rank(len(members))
        return len(members)

    @property
    def world_size(self) -> int:
        """Number of members of `view`: of those whose contributions count.

        Raises:
            ShoalError: there is no view yet.
        """
        return len(self._session.history.known_view().members)

    @property
    def done(self) -> int:
        """Number of training steps committed since the run began; -1 before step 0.

        Steps of `DataParallel` and of `with peer.step()`, the same number on every peer, joiners too. Other operations
        of the script (an `all_reduce`, a `barrier`, an evaluation) do not count.
        """
        history = self._session.history
        return -1 if history.done < 0 else self._session.share.num_trained

    @property
    def samples(self) -> int:
        """Number of samples committed, of all members: the base of schedules if rounds are timed.

        It changes with `done`, continues after a checkpoint, and is the same on every peer.
        """
        return self._session.share.num_samples

    @property
    def last_step(self) -> int:
        """The number of the last committed step, of training or of an operation, as on its receipt; -1: none."""
        return self._session.done

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the last committed step, as its members have it; None if this peer did not see the commit."""
        return self._session.history.receipt

    def status(self) -> dict[str, Any]:
        """The status of this peer, with reasons: a snapshot of its present knowledge, without messages.

        Unlike `view` and `done` it does not wait for the next commit.

        Returns:
            A new dict: `peer_id`; `swarm`, its name; `phase`, JOINING (no view), INSTALLING (a new view, whose members
            do not all know it yet) or ACTIVE; `view`, the number of the installed view, or None; `members`, their
            peer_ids in rank order; `done`, the number of the last committed step; `reason`, why the view is as it is,
            or why there is none; `slowest`, which member is slow, and how much, or None; `dropped_frames`, numbers by
            reason ("invalid", "no link", "queue full", "refused").
        """
        self._session.callers.check_process("peer.status")
        return describe(self._session.loop, self._config.swarm, self._session.history.speeds.slowest)

    def log(self, **numbers: Any) -> None:
        """Log numbers: `peer.log(loss=loss, lr=lr)`. Shown by `shoal status`, and by `shoal run` every 30 s.

        The last number of each name is kept on this peer's page on this host, and the first four of each call go to the
        flight recorder. Other peers receive `loss`, some seconds late, and may have logged other values. For display
        only. Any thread may call it; a number in a tensor on a GPU is waited for.

        Args:
            numbers: by name: ints, floats, and tensors or arrays without dimensions; 32 names at most, of 32 characters
                at most. A number that is not finite is shown as it is.

        Raises:
            TypeError: a value is not a single number.
            ValueError: a name is too long, or there are too many names.
            ShoalError: this process is a forked child of the peer.
        """
        self._session.callers.check_process("peer.log")
        half = self._session.loop.resources.telemetry_page.training  # of the current loop: a peer may return
        self._session.logged.log(numbers, self.done, half, self._session.done)

    def on_log(self, listener: Callable[[int, dict[str, float]], None]) -> None:
        """Call `listener` at each `peer.log`, in the same thread. Exceptions of `listener` propagate out of `peer.log`.

        For W&B, say: `peer.on_log(lambda step, numbers: wandb.log(numbers, step=step))`.

        Args:
            listener: receives `peer.done`, and the numbers of this call, as floats; called after earlier listeners, for
                as long as this peer lives.
        """
        self._session.callers.check_process("peer.on_log")
        self._session.logged.listeners.append(listener)

    def on_view_change(self, listener: Callable[[View], None]) -> None:
        """Call `listener` in the training thread, at each commit with a new view.

        The results of the step are available by then. Exceptions of `listener` propagate out of the call that has
        committed.

        Args:
            listener: receives the new view; called after earlier listeners, for as long as this peer lives.
        """
        self._session.callers.check_process("peer.on_view_change")
        self._session.history.listeners.append(listener)

    # Participation.

    def wait_view(self, timeout_s: float | None = None) -> View:
        """Ask for a seat and wait until this peer has it and step 0 is committed. An observer does not wait.

        Returns at once with a seat. All operations, loaders and `DataParallel` call it first. While it waits, it logs
        every 5 s what for. Each join of a swarm in progress costs the members one change of view.

        After `RemovedFromView`, a script that does not need the steps that it has missed calls this again: the same
        process returns as a new member, and continues from `done`.

        Args:
            timeout_s: how long to wait, in seconds; None: `join_timeout_s`.

        Returns:
            The view of the last committed step.

        Raises:
            JoinRefused: the swarm runs or trains something else.
            RunEnded: this peer only joins (`shoal run --join`), and the run has ended.
            JoinTimeout: there were too few peers, or no swarm, in time. Call it again to continue waiting.
            RegistryError: no member of the swarm is left, and this peer cannot begin another run.
            RemovedFromView: this peer may not return (`rejoin=False`), or no member is left.
            QuorumLost: too many members were gone before step 0.
            ShoalError: this peer has left before it had a seat.
        """
        return self._session.wait_view(timeout_s)

    def loader(
        self,
        dataset: Any,
        *,
        global_batch: int | None = None,
        batch_per_peer: int | None = None,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        max_local_batch: int | None = None,
        inner_steps: int | None = None,
        round_s: float | None = None,
        drop_last: bool = False,
        max_attempts: int = 2,
        on_poison: Literal["skip", "raise"] = "skip",
        **options: Any,
    ) -> "Loader":
        """Batches of `dataset`, epoch by epoch: this peer's part of each global batch, loaded by torch's DataLoader.

            loader = peer.loader(dataset, global_batch=96, epochs=3, num_workers=2)
            for epoch in loader.epochs():
                for batch in loader:

        The part is fixed when the previous step commits, by the members on that step's receipt: contiguous, of at least
        two samples, or empty if there are too few for all. A peer that is not on that receipt, or has an empty part,
        receives two samples that do not count, so that it runs the same loop. Samples of a peer that is missing on the
        step's own receipt come first in the next global batch. So each sample counts exactly once per epoch, as the
        receipts prove.

        A batch may have several updates (`for _ in range(4)` around backward and `optimizer.step`), the same number on
        every peer: each is a step, and the first counts the samples.

        Workers load the samples that this peer receives if the members stay the same; when they change, prefetched
        batches are discarded. Workers persist from epoch to epoch. Sends no messages. Keeps the order of two epochs, 8
        bytes per sample of the dataset each. Imports torch.

        Args:
            dataset: of map style, with `__len__` and `__getitem__`; the same on every peer, as are `global_batch`,
                `batch_per_peer`, `epochs`, `seed`, `shuffle` and `drop_last`: differences are detected at the first
                step.
            global_batch: samples per step, over all members; a single sample left at the end of an epoch joins the last
                batch.
            batch_per_peer: instead: samples for each member of the last training step, so that steps grow with the
                number of peers. `lr_scaling` of `p2p.DataParallel` adapts the learning rate. The loader then has no
                length.
            epochs: each sample is used exactly once in each.
            seed: of the order of samples.
            shuffle: False: in the order of the dataset.
            max_local_batch: split larger parts into equal micro-batches of at most this many samples. The script calls
                backward on the mean loss of each. `DataParallel` weights them by their samples, and the last one ends
                the step, as if the part had been one batch. See `DataParallel.has_committed`.
            inner_steps: with `p2p.DiLoCo`: number of batches of a round, which is planned, committed and counted as one
                step. Fewer at the end of an epoch.
            round_s: instead: a round ends at a peer's first update, or request for a batch, that is later than this
                many seconds after its last commit, or with the last of its samples: about a quarter more than it has
                used in the previous round. Then no peer waits for a slow one. `global_batch` is that of one inner step
                of all.
            drop_last: skip samples that do not fill a global batch at the end of an epoch.
            max_attempts: a sample that cannot be loaded by this many peers, or by all members, is set aside. A peer
                that cannot load one logs which and why, and adds nothing to the step; its samples go to others. 0:
                exceptions of the dataset propagate out of the loop of that peer.
            on_poison: treatment of samples that are set aside. `skip`: all peers log it, and continue without the
                sample; no receipt counts it. `raise`: `ShoalError` on every peer.
            options: of `torch.utils.data.DataLoader`: num_workers, collate_fn, pin_memory, worker_init_fn and so on.

        Returns:
            A `Loader`: iterating it is one epoch.

        Raises:
            DatasetRefused: `dataset` is not of map style.
            TypeError: an option defines the batch (`batch_size`, `sampler`); or not exactly one of `global_batch` and
                `batch_per_peer` is given.
            ValueError: `global_batch`, `epochs`, `max_local_batch` or the length of `dataset` is less than 1,
                `batch_per_peer` less than 2; or `drop_last` with that.
            JoinRefused: the swarm has another loader in its place.
            ShoalError: there is a loader of the same arguments already.
        """
        from .data.loader import Loader, PeerInterface

        session = self._session
        script = PeerInterface(self.peer_id, session.share, self.wait_view, session.begin_batch, self._calls.gather)
        batches = {"global_batch": global_batch, "batch_per_peer": batch_per_peer}
        settings = {name: size for name, size in batches.items() if size is not None}
        settings |= {"epochs": epochs, "seed": seed, "shuffle": shuffle}
        settings |= {"drop_last": drop_last, "max_attempts": max_attempts}
        return Loader(
            script,
            dataset,
            max_local_batch=max_local_batch,
            inner_steps=inner_steps,
            round_s=round_s,
            on_poison=on_poison,
            options=options,
            **settings,
        )

    def state_dict(self) -> dict[str, Any]:
        """Progress of the run, for a script's own checkpoints: plain values, for `torch.save`.

        Call it when the optimizer has used the last step. Not needed with `checkpoint=` of `DataParallel`.

        Returns:
            A new dict: `done`, the training steps; `samples`, their samples; `loaders`, the samples used up of each.
        """
        return self._session.share.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`: load it on every founder, before `DataParallel` or any operation.

        A peer that joins a run in progress receives that run's progress instead.

        Args:
            state_dict: as `state_dict` returned it; `{"done": 5000}` only sets `peer.done`.

        Raises:
            ShoalError: this peer has a seat already.
            JoinRefused: a loader of this script differs from that in `state_dict`.
            RemoteProtocolError: not a result of `state_dict`.
        """
        if self._session.history.view is not None:
            raise ShoalError(
                "peer.load_state_dict was called when this peer had a seat: call it before p2p.DataParallel, and "
                "before any operation, where the script loads its model"
            )
        self._session.share.load_state_dict(state_dict)

    def leave(self) -> None:
        """Tell the others, wait until they can continue without this peer, and close. Idempotent.

        Waits at most `leave_timeout_s`, in seconds, and not at all if this peer is alone. Afterwards it has no seat,
        thread, socket or registry entry, and operations raise `ShoalError`; properties of committed steps remain
        available.
        """
        try:
            self._session.leave()
        finally:
            if self._session.membership.leaving is Leaving.OVER:
                atexit.unregister(self._end_at_exit)

    def _end(self) -> None:
        """Called at the end of the `with` block, or of the interpreter. A forked child is no peer: no effect there."""
        if not self._session.callers.is_fork:
            self.leave()

    def _end_at_exit(self) -> None:
        """Called at exit; interruptions by signals have no effect any more."""
        with suppress(KeyboardInterrupt, SystemExit):
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if isinstance(error, RemovedFromView | RunEnded | TooSlow):
            sys.stderr.write(f"shoal: {error}\n")
            raise SystemExit(error.exit_code) from error

    def _defer(self, interruption: BaseException) -> bool:
        """For a signal handler: whether this peer will raise `interruption` itself, once it can be interrupted."""
        return self._session.membership.defer(interruption)
