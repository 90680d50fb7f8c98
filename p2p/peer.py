"""A peer as a script sees it: `join`, then operations and steps that commit.

    with p2p.join() as peer:
        peer.all_reduce(tensor)

What a script sees of the view changes only when a step commits. A peer that trains a model and joins a run under way
*observes* at first: it runs the same loop, is given the results of the members, and adds nothing to them. It gets its
seat when it has caught up, and comes back in this way if it was removed.
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
    """One member of a swarm. Made by `join`, for one thread after the other.

    A call while another thread is in one, or has a step open, raises `ShoalError`, which names both; but `leave` ends
    what the other has called, and `status` may be asked at any time. In a forked child every call raises.

    `with p2p.join() as peer:` calls `leave` at the end. If `RemovedFromView` ends the block, it is printed as one line,
    and raised on as `SystemExit(3)`, so that whoever has started this process can tell it from a failure; so is
    `RunEnded`, as `SystemExit(0)`, and `TooSlow`, as `SystemExit(4)`.
    """

    def __init__(self, config: PeerConfig) -> None:
        """Enter the swarm, as `join` does, but read no environment, and set no handlers.

        Args:
            config: how to find the swarm, and how long to wait.

        Raises:
            RegistryError, NetworkError, SecurityError, ShoalError, OSError: as `join`.
        """
        super().__init__(Session(config))
        self._config = config

    # What a script may look at.

    @property
    def peer_id(self) -> str:
        """16 hex digits, drawn at `join`; the same after a return."""
        return self._session.membership.me.peer_id

    @property
    def view(self) -> View | None:
        """The view of the last committed step; None before `wait_view`, or before the state of an observer has come.

        An observer has no seat in it.
        """
        return self._session.history.view

    @property
    def rank(self) -> int:
        """Index of this peer in `view`. An observer's is that of the next joiner: behind all members.

        Raises:
            ShoalError: there is no view yet.
        """
        history, me = self._session.history, self._session.membership.me
        members = history.known_view().members
        if me in members:
            return members.index(me)
        if not self._session.share.epochs:  # of no loader
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
        """The steps of training that are committed, over all members' lives; -1 before step 0.

        Steps of `DataParallel` and of `with peer.step()`, the same number on every peer, joiners too. It does not count
        operations that a script calls beside them: an `all_reduce`, a `barrier`, an evaluation.
        """
        history = self._session.history
        return -1 if history.done < 0 else self._session.share.num_trained

    @property
    def samples(self) -> int:
        """How many samples are committed, of all members: what schedules follow where rounds end by time.

        It changes with `done`, goes on in a run from a checkpoint, and is the same on every peer.
        """
        return self._session.share.num_samples

    @property
    def last_step(self) -> int:
        """The number of the last committed step, of training or of an operation, as on its receipt; -1: none."""
        return self._session.done

    @property
    def receipt(self) -> Receipt | None:
        """Of the last committed step, as its members have it; None where this peer has not seen it committed."""
        return self._session.history.receipt

    def status(self) -> dict[str, Any]:
        """Where this peer stands and why, for people: a snapshot of what it knows now, which costs no message.

        Unlike `view` and `done` it does not wait for the next commit.

        Returns:
            A new dict: `peer_id`; `swarm`, its name; `phase`, JOINING (no view), INSTALLING (a new view, whose members
            do not all know it yet) or ACTIVE; `view`, the number of the installed view, or None; `members`, their
            peer_ids in rank order; `done`, the number of the last committed step; `reason`, why the view
            is as it is, or why there is none; `slowest`, which member is slow, and how much, or None; `dropped_frames`,
            how many by reason ("invalid", "no link", "queue full", "refused").
        """
        self._session.callers.check_process("peer.status")
        return describe(self._session.loop, self._config.swarm, self._session.history.speeds.slowest)

    def log(self, **numbers: Any) -> None:
        """Say how it goes: `peer.log(loss=loss, lr=lr)`. `shoal status` shows it, and `shoal run` every 30 s.

        The last number of each name, of this peer, stands on a page of this host, and the first four of each call are
        in the flight recorder. Other peers are told `loss`, some seconds late, and may have logged others. It is for
        people who look. Any thread may call it; an operation on the GPU is waited for, if a tensor there holds the
        number.

        Args:
            numbers: by name: ints, floats, and tensors or arrays without dimensions; 32 names at most, of 32 characters
                at most. A number that is not finite is shown as it is.

        Raises:
            TypeError: what is given is no number, or more than one.
            ValueError: a name is too long, or there are too many names.
            ShoalError: this process is a forked child of the peer.
        """
        self._session.callers.check_process("peer.log")
        half = self._session.loop.resources.seen.training  # of the loop that there is: a peer may come back
        self._session.logged.log(numbers, self.done, half, self._session.done)

    def on_log(self, listener: Callable[[int, dict[str, float]], None]) -> None:
        """Call `listener` at each `peer.log`, in the same thread. What `listener` raises comes out of `peer.log`.

        `peer.on_log(lambda step, numbers: wandb.log(numbers, step=step))` tells W&B, say.

        Args:
            listener: takes `peer.done`, and what this call has logged, as floats; called after those that were given
                before, for as long as this peer lives.
        """
        self._session.callers.check_process("peer.on_log")
        self._session.logged.listeners.append(listener)

    def on_view_change(self, listener: Callable[[View], None]) -> None:
        """Call `listener` in the training thread, at the commit that shows another view than the one before.

        The results of the step are there by then. What `listener` raises comes out of the call that has committed.

        Args:
            listener: takes the new view; called after those that were given before, for as long as this peer lives.
        """
        self._session.callers.check_process("peer.on_view_change")
        self._session.history.listeners.append(listener)

    # Taking part.

    def wait_view(self, timeout_s: float | None = None) -> View:
        """Ask for a seat and wait until this peer has it and step 0 is committed. An observer does not wait.

        With a seat it returns at once. All operations, loaders and `DataParallel` begin with it. While it waits, the
        log says every 5 s what for. Who joins a swarm under way costs the members one change of view.

        A script that was told `RemovedFromView` and can do without the steps that it has missed calls this again: the
        same process comes back as a new member, and goes on from `done`.

        Args:
            timeout_s: how long to wait, in seconds; None: `join_timeout_s`.

        Returns:
            The view of the last committed step.

        Raises:
            JoinRefused: the swarm runs or trains something else.
            RunEnded: this peer only joins (`shoal run --join`), and the run has ended.
            JoinTimeout: there were too few peers, or no swarm, in time. Call it again to go on waiting.
            RegistryError: nobody of the swarm is left, and this peer cannot begin another run.
            RemovedFromView: this peer may not come back (`rejoin=False`), or nobody is left.
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

        The part is fixed when the step before commits, by the members on that step's receipt: contiguous, of at least
        two samples, or none where there are too few for all. A peer that is not on it yet, or is given none, has two
        samples that do not count, so that it runs the same loop. Samples of a peer that is then not on the receipt are
        the first of the next global batch. So each sample counts exactly once an epoch, as the receipts prove.

        A batch may have several updates (`for _ in range(4)` around backward and `optimizer.step`), the same number on
        every peer: each is a step, and the first one counts the samples.

        Workers load ahead what this peer would be given if nobody came or went; when somebody does, what they have in
        hand is thrown away. They stay from epoch to epoch. Sends nothing. Keeps the order of two epochs, 8 bytes per
        sample of the dataset each. Imports torch.

        Args:
            dataset: of map style, with `__len__` and `__getitem__`; the same on every peer, as are `global_batch`,
                `batch_per_peer`, `epochs`, `seed`, `shuffle` and `drop_last`: who differs is told so by the first step.
            global_batch: samples per step, over all members; a single one that is left of an epoch joins its last.
            batch_per_peer: in place of that: of each member of the last step of training, so that steps get larger
                as peers come. `lr_scaling` of `p2p.DataParallel` has the learning rate follow. It has no length then.
            epochs: each sample is used exactly once in each.
            seed: of the order of samples.
            shuffle: False: in the order of the dataset.
            max_local_batch: hand a larger part out in equal micro-batches of at most so many samples. The script calls
                backward on the mean loss of each. `DataParallel` weights them by their samples, and the last one ends
                the step, as if the part had been one batch. See `DataParallel.has_committed`.
            inner_steps: with `p2p.DiLoCo`: a round has so many batches, and is what is planned, committed and counted
                as one step. Fewer at the end of an epoch.
            round_s: instead of that: a round ends at a peer's first update, or request for a batch, later than so many
                seconds after its last commit, or with what it was given: about a quarter more than it has used in the
                round before. Then nobody waits for a slow peer. `global_batch` is that of one step of all.
            drop_last: leave out what does not fill a global batch at the end of an epoch.
            max_attempts: a sample that cannot be loaded by so many peers, or by all that there are, is set aside. Who
                cannot load one says which and why, and adds nothing to the step; its samples are handed to others. 0:
                what the dataset raises comes out of the loop of that peer.
            on_poison: what becomes of a sample that is set aside. `skip`: all say so, and go on without it; it is on
                no receipt as counted. `raise`: `ShoalError` on every peer.
            options: of `torch.utils.data.DataLoader`: num_workers, collate_fn, pin_memory, worker_init_fn and so on.

        Returns:
            A `Loader`: iterating it is one epoch.

        Raises:
            DatasetRefused: `dataset` is not of map style.
            TypeError: an option says what a batch is (`batch_size`, `sampler`); or it needs one of `global_batch` and
                `batch_per_peer`.
            ValueError: `global_batch`, `epochs`, `max_local_batch` or the length of `dataset` is less than 1,
                `batch_per_peer` less than 2; or `drop_last` with that.
            JoinRefused: the swarm has another loader in its place.
            ShoalError: there is a loader of the same arguments already.
        """
        from .data.loader import Loader, Script

        session = self._session
        script = Script(self.peer_id, session.share, self.wait_view, session.begin_batch, self._calls.gather)
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
        """How far the run is, for checkpoints of a script's own: plain values, which `torch.save` takes.

        Ask for it when the optimizer has used the last step. With `checkpoint=` of `DataParallel` none of this is
        needed.

        Returns:
            A new dict: `done`, the steps of training; `samples`, of them; `loaders`, what of each one's is used up.
        """
        return self._session.share.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there: as the parameters, load it on every founder, before `DataParallel` or any operation.

        A peer that joins a run under way is given that run's, in place of this.

        Args:
            state_dict: as `state_dict` returned it; `{"done": 5000}` only sets `peer.done`.

        Raises:
            ShoalError: this peer has a seat already.
            JoinRefused: a loader that this script has made is another one there.
            RemoteProtocolError: nothing that `state_dict` has made.
        """
        if self._session.history.view is not None:
            raise ShoalError(
                "peer.load_state_dict was called when this peer had a seat: call it before p2p.DataParallel, and "
                "before any operation, where the script loads its model"
            )
        self._session.share.load_state_dict(state_dict)

    def leave(self) -> None:
        """Tell the others, wait until they can do without this peer, and close. Idempotent.

        Waits `leave_timeout_s` at most, in seconds, and not at all if this peer is alone. Afterwards it has no seat,
        thread, socket or registry entry, and operations raise `ShoalError`; what it says of committed steps stays.
        """
        try:
            self._session.leave()
        finally:
            if self._session.membership.leaving is Leaving.OVER:
                atexit.unregister(self._end_at_exit)

    def _end(self) -> None:
        """Of the `with` block, or of the interpreter; a forked child comes to these, too, and is no peer."""
        if not self._session.callers.is_fork:
            self.leave()

    def _end_at_exit(self) -> None:
        """A signal that came meanwhile can end nothing any more."""
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
        """For a signal's handler: whether to let this peer raise `interruption`, as soon as it can be interrupted."""
        return self._session.membership.defer(interruption)
