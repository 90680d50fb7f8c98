"""A peer as a script sees it: `join`, then operations and steps that commit.

    with p2p.join() as peer:
        peer.all_reduce(tensor)

What a script sees of the view changes only when a step commits. A peer that trains a model and joins a run under way
*observes* at first: it runs the same loop, is given the results of the members, and adds nothing to them. It gets its
seat when it has caught up, and comes back in this way if it was removed.
"""

import atexit
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from gossip import View

from .config import PeerConfig
from .errors import RemovedFromView
from .session.calls import Calls, Handle, Step
from .session.session import Session
from .session.status import describe
from .session.tensors import empty_tensor
from .step.receipts import Receipt

if TYPE_CHECKING:
    from .data.loader import Loader


class Peer:
    """One member of a swarm. Made by `join`; for the thread that made it, which is the training thread.

    `with p2p.join() as peer:` calls `leave` at the end. If `RemovedFromView` ends the block, it is printed as one line,
    and raised on as `SystemExit(3)`, so that whoever has started this process can tell it from a failure.
    """

    def __init__(self, config: PeerConfig) -> None:
        """Enter the swarm, as `join` does, but read no environment, and set no handlers.

        Args:
            config: how to find the swarm, and how long to wait.

        Raises:
            RegistryError, NetworkError, SecurityError, ShoalError, OSError: as `join`.
        """
        self._session = Session(config)
        self._config = config
        self._calls = Calls(self._session)

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
        members, me = self._session.history.known_view().members, self._session.membership.me
        return members.index(me) if me in members else len(members)

    @property
    def world_size(self) -> int:
        """Number of members of `view`: of those whose contributions count.

        Raises:
            ShoalError: there is no view yet.
        """
        return len(self._session.history.known_view().members)

    @property
    def done(self) -> int:
        """The last committed step; -1 before step 0."""
        return self._session.done

    @property
    def receipt(self) -> Receipt | None:
        """Of the last committed step, as its members have it; None where this peer has not seen it committed."""
        return self._session.receipt

    def status(self) -> dict[str, Any]:
        """Where this peer stands and why, for people: a snapshot of what it knows now, which costs no message.

        Unlike `view` and `done` it does not wait for the next commit.

        Returns:
            A new dict: `peer_id`; `swarm`, its name; `phase`, JOINING (no view), INSTALLING (a new view, whose members
            do not all know it yet) or ACTIVE; `view`, the number of the installed view, or None; `members`, their
            peer_ids in rank order; `done`, the last committed step; `reason`, why the view is as it is, or why there is
            none; `dropped_frames`, how many by reason ("invalid", "no link", "queue full", "refused").
        """
        return describe(self._session.loop, self._config.swarm)

    def on_view_change(self, listener: Callable[[View], None]) -> None:
        """Call `listener` in the training thread, at the commit that shows another view than the one before.

        The results of the step are there by then. What `listener` raises comes out of the call that has committed.

        Args:
            listener: takes the new view; called after those that were given before, for as long as this peer lives.
        """
        self._session.history.listeners.append(listener)

    # Taking part.

    def wait_view(self, timeout_s: float | None = None) -> View:
        """Ask for a seat and wait until this peer has it and step 0 is committed. An observer does not wait.

        With a seat it returns at once. All operations, loaders and `DataParallel` begin with it. While it waits, the
        log says every 10 s what for. Who joins a swarm under way costs the members one change of view.

        A script that was told `RemovedFromView` and can do without the steps that it has missed calls this again: the
        same process comes back as a new member, and goes on from `done`.

        Args:
            timeout_s: how long to wait, in seconds; None: `join_timeout_s`.

        Returns:
            The view of the last committed step.

        Raises:
            JoinRefused: the swarm trains something else.
            JoinTimeout: there were too few peers, or no swarm, in time. Call it again to go on waiting.
            RegistryError: nobody of the swarm is left, and this peer cannot begin another run.
            RemovedFromView: this peer may not come back (`rejoin=False`, or too often), or nobody is left.
            QuorumLost: too many members were gone before step 0.
            ShoalError: this peer has left before it had a seat.
        """
        return self._session.membership.wait_view(timeout_s)

    def barrier(self) -> None:
        """Return when every member has called it: a step of its own, or the end of one begun with `commit=False`.

        Costs what an `all_reduce` of 8 bytes does; waits for the slowest member, `step_timeout_s` at most.

        Raises:
            JoinRefused, JoinTimeout, RegistryError: there is no seat for this peer, as `wait_view`.
            OperationMismatch: another member called something else; raised on every member.
            OperationInterrupted: what was called with `commit=False` before it does not count; call it again.
            QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: this peer cannot go on.
            ShoalError: another step is open, or this peer has left.
        """
        self._calls.barrier()

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        """A torch tensor of undefined elements which other peers of this host read in place.

        An `all_reduce` of such a tensor, into another one, copies nothing. Where no memory can be shared, or the
        arena is full (`arena_bytes`), it is a tensor like any other. Imports torch.

        Its memory is taken from the arena until neither the tensor nor a view of it is left, and is then given out
        again by later calls; the system has it back when the peer has left and its last such tensor is gone. A forked
        child does not have it, and ends if it touches it (a `DataLoader` with workers, say).

        Args:
            shape: its sizes, each an argument of its own: `peer.empty(2, 3)`; none: a scalar.
            dtype: of torch; None: float32.

        Returns:
            A contiguous tensor on the CPU.

        Raises:
            TypeError: no size, or no type that can be reduced.
            ValueError: a size is negative.
        """
        return empty_tensor(shape, dtype, self._session.empty)

    @overload
    def all_reduce(
        self,
        tensor: Any,
        *,
        op: str = "sum",
        algorithm: str | None = None,
        out: Any = None,
        async_op: Literal[False] = False,
        commit: bool = True,
    ) -> None: ...

    @overload
    def all_reduce(
        self, tensor: Any, *, op: str = "sum", algorithm: str | None = None, out: Any = None, async_op: Literal[True]
    ) -> Handle: ...

    def all_reduce(
        self,
        tensor: Any,
        *,
        op: str = "sum",
        algorithm: str | None = None,
        out: Any = None,
        async_op: bool = False,
        commit: bool = True,
    ) -> Handle | None:
        """Replace `tensor` by what `op` makes of all members' tensors, when all have it. A step of its own.

        All members get the same bits. A NaN makes the element NaN; integers wrap around; the sum of bools is `or`.
        `one-shot` and `direct` add in rank order, float16 and bfloat16 in float32, rounded once; others at each hop.

        Each of n members sends, for S bytes: `one-shot` S (n - 1) bytes in one hop, `direct` 2 S (n - 1) / n in two,
        `ring` as many in 2 (n - 1), `tree` at most 2 S in about 2 log2(n); then one hop more for the commit. Members
        of one host read each other's memory and send nothing. It waits for the slowest member, `step_timeout_s` at
        most. A result takes S bytes, which are kept for the next one of the same size (8 sizes); so does a copy of a
        tensor that is not contiguous.

        `commit=False`, on every peer: the result is handed out as soon as it is complete here, one hop earlier. All
        operations up to the next that commits (`barrier`, a step, an operation that does not say so) are one step with
        it.

        - Until then copies of their inputs and results are kept, and `view` and `done` are those of the last commit.
          End with one before you leave.
        - If members come or go before that commit, or a `peer.step` block of one ends with an exception,
          `OperationInterrupted` is raised once on every peer, by its next call at the latest. None of these operations
          counts: call all of them again.
        - Every 256 operations, or 64 MiB, are committed as they come, and so are `ring` and `tree` beyond 4 MiB, and
          each operation of a peer that trains a model.

        Args:
            tensor: a CPU tensor or array of any strides; float64, 32, 16, bfloat16, int64, 32, 16, 8, uint8 or bool.
                Written only after the step is committed.
            op: sum, mean, min or max, the same on every peer. A mean is over the members, of floating-point types.
            algorithm: of `collectives.ALGORITHMS`, the same on every peer; None: `one-shot` up to 256 KiB (less with
                more than 4 members), `direct` beyond.
            out: takes the result instead, and `tensor` is not written. Contiguous, of the same shape and type, memory
                of its own; undefined until this returns.
            async_op: return at once. All operations up to the first `wait` of one of their handles are one step, in
                the order of the calls, the same on every peer; nothing else can be called before that, and the
                tensors must not be written. Each holds its input, and memory for its result, until then.
            commit: wait until all members have the result; False: see above.

        Returns:
            None, or with `async_op` a handle to wait for.

        Raises:
            TypeError, ValueError: no such tensor, `op` or algorithm; nobody else hears of it.
            JoinRefused, JoinTimeout, RegistryError: there is no seat for this peer, as `wait_view`.
            OperationMismatch: another member called something else; raised on every member, and what was called
                with `commit=False` since the last commit does not count either.
            OperationInterrupted: a step of which results were handed out (`commit=False`) could not be committed.
            QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: this peer cannot go on; `tensor` is untouched.
            ShoalError: another step is open, or this peer has left.
        """
        return self._calls.all_reduce(tensor, op, algorithm, out=out, async_op=async_op, commit=commit)

    def step(self, samples: int | None = None) -> AbstractContextManager[Step]:
        """`with peer.step(samples=n):` makes one step of all operations in the block, committed at its end.

        In the block the tensors hold the inputs, and must not be written; after it, the results. The number of
        operations, and each of them, must be the same on every peer.

        An exception in the block takes back what was submitted, and the others wait. If the script catches it and goes
        on, with whatever it calls next, the step is void: all others raise `OperationInterrupted` for it, once, so that
        no step is summed with another one. If it leaves, the others do the step over without this peer. Operations
        before the block that said `commit=False` are void at once, on every peer.

        Costs one commit for all of them, and 16 bytes to each member for the samples. Each operation holds its input,
        and memory for its result, until the end.

        Args:
            samples: how many this peer adds, for the receipt; None: the slice of a loader, or, for scripts that do
                not use it, one.

        Returns:
            A context manager; `as` gives the `Step`.

        Raises:
            ValueError: `samples` is negative.
            JoinRefused, JoinTimeout, RegistryError: there is no seat for this peer, as `wait_view`.
            OperationMismatch, OperationInterrupted: at the end of the block, as `all_reduce`.
            QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: the same; the tensors are untouched.
            ShoalError: another step is open, the batch of a loader is on a receipt already, or this peer has left.
        """
        return self._calls.step(samples)

    def loader(
        self,
        dataset: Any,
        *,
        global_batch: int,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        max_local_batch: int | None = None,
        drop_last: bool = False,
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

        Workers load ahead what this peer would be given if nobody came or went; when somebody does, what they have in
        hand is thrown away. They stay from epoch to epoch. Sends nothing. Keeps the order of two epochs, 8 bytes per
        sample of the dataset each. Imports torch.

        Args:
            dataset: of map style, with `__len__` and `__getitem__`; the same on every peer, as are `global_batch`,
                `epochs`, `seed`, `shuffle` and `drop_last`: who differs is told so by the first step.
            global_batch: samples per step, over all members; a single one that is left of an epoch joins its last.
            epochs: each sample is used exactly once in each.
            seed: of the order of samples.
            shuffle: False: in the order of the dataset.
            max_local_batch: hand a larger part out in equal micro-batches of at most so many samples. The script calls
                backward on the mean loss of each. `DataParallel` weights them by their samples, and the last one ends
                the step, as if the part had been one batch. See `DataParallel.has_committed`.
            drop_last: leave out what does not fill a global batch at the end of an epoch.
            options: of `torch.utils.data.DataLoader`: num_workers, collate_fn, pin_memory, worker_init_fn and so on.

        Returns:
            A `Loader`: iterating it is one epoch.

        Raises:
            TypeError: `dataset` is not of map style, or an option says what a batch is (`batch_size`, `sampler`).
            ValueError: `global_batch`, `epochs`, `max_local_batch` or the length of `dataset` is less than 1.
            JoinRefused: the swarm has another loader in its place.
            ShoalError: there is a loader of the same arguments already.
        """
        from .data.loader import Loader, Script

        session = self._session
        script = Script(self.peer_id, session.share, self.wait_view, session.begin_batch)
        settings = {"global_batch": global_batch, "epochs": epochs, "seed": seed, "shuffle": shuffle}
        settings["drop_last"] = drop_last
        return Loader(script, dataset, max_local_batch=max_local_batch, options=options, **settings)

    def leave(self) -> None:
        """Tell the others, wait until they can do without this peer, and close. Idempotent.

        Waits `leave_timeout_s` at most, in seconds, and not at all if this peer is alone. Afterwards it has no seat,
        thread, socket or registry entry, and every operation raises `ShoalError`; `view`, `done` and `receipt` stay.
        """
        self._session.leave()
        atexit.unregister(self.leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        if isinstance(error, RemovedFromView):
            sys.stderr.write(f"shoal: {error}\n")
            raise SystemExit(error.exit_code) from error

    def _defer(self, interruption: BaseException) -> bool:
        """For a signal's handler: whether to let this peer raise `interruption`, as soon as it can be interrupted."""
        return self._session.membership.defer(interruption)
