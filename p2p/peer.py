"""A peer as a script sees it: `join`, then operations and steps that commit.

    with p2p.join() as peer:
        peer.all_reduce(tensor)

The training thread calls this; the loop thread (loop.py) does the work. What a script sees of the view changes only
when a step commits. Leaves out: asynchronous operations, rejoining after a removal.
"""

import atexit
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from queue import Empty
from types import TracebackType
from typing import Any, Self

import numpy as np

from collectives import ALGORITHMS, carried, check_reduction
from gossip import Policy, View

from .arrivals import Admitted, Arrival, Commit, StateOffer
from .config import PeerConfig
from .discovery import Registry
from .errors import JoinRefused, OperationMismatch, RemovedFromView, ShoalError, StepTimeout
from .handover import Replica, compare_with_nothing
from .loop import Loop
from .operations import Operation
from .receipts import Ledger, Receipt
from .sampler import ElasticSampler, length
from .share import Share
from .tensors import Buffers, as_array

logger = logging.getLogger("p2p")

REMIND_S = 10.0
"""Who waits for a seat is told this often what for."""

INTERRUPTED = "the step before was interrupted, so this peer leaves the others to it: join again"


class Peer:
    """One member of a swarm. Made by `join`; for one thread."""

    def __init__(self, config: PeerConfig) -> None:
        self._config = config
        loop_config = replace(
            config.loop, policy=Policy[config.policy.upper()], keep_moments=config.receipts is not None
        )
        self._loop = Loop(Registry(config.home, config.swarm), loop_config)
        self._ledger = self._open_ledger()
        self._view: View | None = None
        self._done = -1
        self.share = Share(self.peer_id)
        self._replica = Replica(("", b""), self.share.pack, self.share.load, compare_with_nothing)
        self._announced: View | None = None
        self._has_asked = False
        self._complete = -2
        self._receipt: Receipt | None = None
        self._listeners: list[Callable[[View], None]] = []
        self._buffers = Buffers()
        self._attempt = 0
        self._is_open = False
        self._unusable: ShoalError | None = None
        self._left = False
        self._loop.start()

    def _open_ledger(self) -> Ledger | None:
        if self._config.receipts is None:
            return None
        try:
            return Ledger(self._config.receipts, self.peer_id)
        except OSError as error:
            self._loop.start()
            self._loop.stop()
            raise ShoalError(f"receipts cannot be written to {self._config.receipts}: {error}") from error

    # What a script may look at.

    @property
    def peer_id(self) -> str:
        """16 hex digits, drawn at `join`."""
        return self._loop.peer_id

    @property
    def view(self) -> View | None:
        """The view of the last committed step; None until this peer has a seat."""
        return self._view

    @property
    def rank(self) -> int:
        """Index of this peer in `view`."""
        return self._seated_view().members.index(self._loop.core.me)

    @property
    def world_size(self) -> int:
        """Number of members of `view`."""
        return len(self._seated_view().members)

    @property
    def done(self) -> int:
        """The last committed step; -1 before step 0."""
        return self._done

    @property
    def receipt(self) -> Receipt | None:
        """Of the last step that was committed while this peer took part."""
        return self._receipt

    def status(self) -> dict[str, Any]:
        """Where this peer stands and why, for people."""
        core = self._loop.core
        view = core.view
        return {
            "peer_id": self.peer_id,
            "swarm": self._config.swarm,
            "phase": core.phase.name,
            "view": None if view is None else view.number,
            "members": [] if view is None else [member.peer_id for member in view.members],
            "done": core.done,
            "reason": core.reason,
            "dropped_frames": self._loop.dropped_frames,
        }

    def on_view_change(self, listener: Callable[[View], None]) -> None:
        """Call `listener` in the training thread, at the commit that shows another view than the one before."""
        self._listeners.append(listener)

    # Taking part.

    def wait_view(self, timeout_s: float | None = None) -> View:
        """Ask for a seat and wait until this peer has it and step 0 is committed.

        Raises:
            JoinRefused: the swarm trains something else.
            StepTimeout: there were too few peers, or no swarm, within `timeout_s` (default: join_timeout_s).
        """
        return self.take_seat(self._replica, timeout_s)

    def take_seat(self, replica: Replica, timeout_s: float | None = None) -> View:
        """`wait_view` for a peer that trains `replica`; its state is replaced if the swarm has begun."""
        if self._has_asked and replica is not self._replica:
            raise ShoalError(
                "this peer asked for its seat without this model: construct one p2p.DataParallel, before anything else"
            )
        if self._view is not None:
            return self._view
        self._check_usable()
        self._replica, self._has_asked = replica, True
        limit_s = self._config.join_timeout_s if timeout_s is None else timeout_s
        deadline = self._loop.now() + limit_s
        self._loop.post(partial(self._loop.ask_for_seat, self._config.min_peers, replica.layout))
        self.state_is_complete()
        while self._view is None:
            left_s = max(0.0, deadline - self._loop.now())
            try:
                arrival = self._loop.inbox.get(timeout=min(left_s, REMIND_S))
                self._take_in(arrival)
            except Empty:
                if left_s <= REMIND_S:
                    raise StepTimeout(self._why_no_seat(limit_s)) from None
                logger.info("%s", self._why_no_seat(limit_s - left_s + REMIND_S))
                continue
            except ShoalError as error:
                is_refusal = isinstance(error, JoinRefused)
                self._unusable = JoinRefused(replica.compare(error.args[0])) if is_refusal else error
                raise self._unusable from None
            match arrival:
                case StateOffer(step, chain, state):
                    replica.load(state)
                    self._done = step
                    self.state_is_complete()
                    contributors = self.share.state.contributors
                    self._loop.post(partial(self._loop.loaded, step, chain, contributors))
                case Admitted(view, done) if done >= 0:
                    self._done, self._view = done, view
        self._announced = self._view
        return self._view

    def barrier(self) -> None:
        """Return when every member has called it. A step of its own."""
        one = np.ones(1, np.int64)
        self._run_alone(Operation("barrier", one, np.empty_like(one), (), "one-shot"))
        self._announce()

    def all_reduce(self, tensor: Any, *, op: str = "sum", algorithm: str | None = None) -> None:
        """Replace `tensor` by what `op` makes of all members' tensors, when all have it. A step of its own.

        All members get the same bits. A NaN makes the element NaN; integers wrap around; the sum of bools is `or`.
        `one-shot` and `direct` add in rank order, float16 and bfloat16 in float32, rounded once; others at each hop.

        Args:
            tensor: a CPU tensor or array of any strides; float64, 32, 16, bfloat16, int64, 32, 16, 8, uint8 or bool.
                Written only after the step is committed.
            op: sum, mean, min or max, the same on every peer. A mean is over the members, of floating-point types.
            algorithm: of `collectives.ALGORITHMS`, the same on every peer; None: by size.

        Raises:
            TypeError, ValueError: no such tensor, `op` or algorithm; nobody else hears of it.
            OperationMismatch: another member called something else; raised on every member.
            QuorumLost, RemovedFromView, ReplicasDiverged: this peer cannot go on; `tensor` is untouched.
        """
        array = as_array(tensor)
        check_reduction(op, array.dtype)
        if algorithm is not None and algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, is {algorithm!r}")
        self.wait_view()
        flat = np.ascontiguousarray(array).reshape(-1)  # a copy, where the strides ask for one
        result = self._buffers.like(flat)
        self._run_alone(Operation("all_reduce", flat, result, array.shape, algorithm, op=op))
        carried(array)[...] = carried(result).reshape(array.shape)
        self._announce()

    def batches(self, dataset: Any, *, global_batch: int, epochs: int = 1, seed: int = 0) -> Iterator[Any]:
        """This peer's part of each global batch, until `epochs` passes over `dataset` are used up.

        The part is fixed when the step before commits, by the members on that step's receipt. A peer that is not on
        it yet is given two samples that do not count, so that it runs the same loop. Samples that were handed to a
        peer which is then not on the receipt are handed out again.

        Args:
            dataset: anything with a length that can be indexed by an array of indices, or a tuple of such.
            global_batch: samples per step, over all members.
            epochs: each sample is used exactly once in each.
            seed: of the order of samples; the same on every peer.
        """
        self.wait_view()
        sampler = ElasticSampler(num_samples=length(dataset), global_batch=global_batch, epochs=epochs, seed=seed)
        return self.share.batches(dataset, sampler, self._begin_batch)

    def _begin_batch(self) -> int:
        self.state_is_complete()
        return self._done

    def defer(self, interruption: BaseException) -> bool:
        """For a signal's handler: whether to let this peer raise `interruption`, as soon as it can be interrupted."""
        return self._left or self._loop.baton.defer(interruption)

    def leave(self) -> None:
        """Tell the others, wait until they can do without this peer, and close. Idempotent."""
        if self._left:
            return
        self._left = True
        self._loop.post(self._loop.leave)
        try:
            self._loop.ended.wait(self._config.leave_timeout_s)
        finally:
            self._loop.stop()
            self._write_moments()
            if self._ledger is not None:
                self._ledger.close()
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

    # For p2p.training.

    def state_is_complete(self) -> None:
        """The state after step `done` may be copied from now on, until the next commit."""
        if self._complete != self._done:
            self._complete = self._done
            self._loop.post(self._completion())

    def submit(self, operation: Operation) -> None:
        """Add an operation to the step that is open, or open one with it; the loop's thread runs it."""
        self._check_usable()
        self._is_open = True
        self._loop.post(self._submission(operation))

    def commit(self, state_digest: bytes = b"") -> list[Operation]:
        """Nothing more belongs to the open step: wait until all have finished it.

        Returns:
            Its operations, whose results are now the caller's.
        """
        self._loop.post(self._closing(state_digest))
        operations = self._await_commit(self._loop.inbox.get)
        self._announce()
        return operations

    # Inside.

    def _run_alone(self, operation: Operation) -> None:
        """A step of one operation, run by the calling thread."""
        self.wait_view()
        self._check_usable()
        if self._is_open:
            raise ShoalError("a step is open: call no operation between the first gradient and the end of backward")
        commands = [self._standing_of_state(), self._submission(operation), self._closing(b"")]

        def take(timeout: float) -> Arrival:
            arrival = self._loop.call(*commands, timeout_s=timeout)
            commands.clear()
            return arrival

        self._await_commit(take)

    def _completion(self) -> Callable[[], None]:
        return partial(self._loop.state_complete, self._done, self._replica.pack)

    def _standing_of_state(self) -> Callable[[], None]:
        """Who trains a model may call an operation between backward and `optimizer.step`."""
        is_certain = not self._replica.layout[0] or self._complete == self._done
        return self._completion() if is_certain else partial(self._loop.state_withheld, self._done)

    def _submission(self, operation: Operation) -> Callable[[], None]:
        return partial(self._loop.submit, self._done + 1, self._attempt, operation)

    def _closing(self, state_digest: bytes) -> Callable[[], None]:
        return partial(self._loop.close, self._done + 1, self._attempt, state_digest)

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise self._unusable

    def _await_commit(self, take: Callable[..., Arrival]) -> list[Operation]:
        """Take what the loop says until step done + 1 is committed, or is given up."""
        step = self._done + 1
        self._attempt += 1
        self._is_open = False
        deadline = self._loop.now() + self._config.step_timeout_s
        try:
            while self._done < step:
                arrival = take(timeout=max(0.0, deadline - self._loop.now()))
                self._take_in(arrival)
        except OperationMismatch as error:
            self._unusable = error if error.is_alone else None
            raise
        except ShoalError as error:
            self._unusable = error
            raise
        except BaseException as error:  # nobody may write what was submitted while it may still be sent
            why = self._why_no_commit(step)
            self._unusable = ShoalError(INTERRUPTED)
            self._loop.post(self._loop.leave)
            if isinstance(error, Empty):
                raise StepTimeout(why) from None
            raise
        assert isinstance(arrival, Commit)
        return arrival.operations

    def _take_in(self, arrival: Arrival) -> None:
        """What the loop says of steps and views becomes what the script sees; an error is raised."""
        self._write_moments()
        if isinstance(arrival, ShoalError):
            raise arrival
        if isinstance(arrival, Commit):
            self._take(arrival)

    def _take(self, commit: Commit) -> None:
        receipt = commit.receipt
        self._done, self._view, self._receipt = receipt.step, commit.view, receipt
        self.share.count(receipt)
        if self._ledger is not None:
            self._ledger.record(receipt)

    def _announce(self) -> None:
        """Tell the listeners of a view that they have not heard of."""
        view, before = self._view, self._announced
        self._announced = view
        if view is not None and before is not None and view != before:
            for listener in self._listeners:
                listener(view)

    def _write_moments(self) -> None:
        moments = self._loop.moments
        while not moments.empty():
            moment = moments.get_nowait()
            if self._ledger is not None:
                self._ledger.note(moment)

    def _seated_view(self) -> View:
        if self._view is None:
            raise ShoalError("this peer has no seat yet: call wait_view, or construct p2p.DataParallel, first")
        return self._view

    def _why_no_seat(self, waited_s: float) -> str:
        view, core = self._loop.core.view, self._loop.core
        if view is None:
            return (
                f"no seat after {waited_s:g} s: {core.reason}; is another peer of swarm {self._config.swarm!r} stuck?"
            )
        here = f"{len(view.members)} of {view.founding_size} peers are here"
        return f"no start after {waited_s:g} s: {here} ({', '.join(map(str, view.members))}); start the others"

    def _why_no_commit(self, step: int) -> str:
        return f"step {step} did not commit in {self._config.step_timeout_s:g} s: {self._loop.explain()}"
