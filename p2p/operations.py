"""Operations that a script runs together with the other peers, and steps of several operations."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, overload

from .session.calls import Calls, Handle, Step
from .session.explaining import explain
from .session.session import Session
from .session.tensors import empty_tensor


class Operations:
    """Operations of a peer: each is a step of its own, unless stated otherwise, committed on all members or on none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls = Calls(session)

    def barrier(self) -> None:
        """Wait until every member has called it: a step of its own, or the end of one begun with `commit=False`.

        Costs as much as an `all_reduce` of 8 bytes; waits for the slowest member, at most `step_timeout_s`.

        Raises:
            JoinRefused, JoinTimeout, RegistryError: this peer gets no seat, as `wait_view`.
            OperationMismatch: another member called something else; raised on every member.
            OperationInterrupted: earlier operations with `commit=False` do not count; repeat them.
            QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: this peer cannot continue.
            ShoalError: another step is open, or this peer has left.
        """
        self._calls.barrier()

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        """A torch tensor of undefined elements that other peers of this host can read in place.

        An `all_reduce` of such a tensor, into another one, makes no copies. If memory cannot be shared, or the arena is
        full (`arena_bytes`), it is an ordinary tensor. Imports torch.

        Its memory belongs to the arena; later calls reuse it once neither the tensor nor a view of it is left, and it
        returns to the system when the peer has left and its last such tensor is gone. The memory is not mapped in a
        forked child, which crashes if it touches it (a `DataLoader` with workers, say).

        Args:
            shape: its sizes, each an argument of its own: `peer.empty(2, 3)`; none: a scalar.
            dtype: of torch; None: float32.

        Returns:
            A contiguous tensor on the CPU.

        Raises:
            TypeError: an invalid size, or a type that cannot be reduced.
            ValueError: a size is negative.
        """
        self._session.callers.check_process("peer.empty")
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
        """Replace `tensor` by the result of `op` over all members' tensors, when all have it. A step of its own.

        All members get the same bits. A NaN makes the element NaN; integers wrap around; the sum of bools is `or`.
        `one-shot` and `direct` add in rank order, float16 and bfloat16 in float32, rounded once; others at each hop.

        Each of n members sends, for S bytes: `one-shot` S (n - 1) bytes in one hop, `direct` 2 S (n - 1) / n in two,
        `ring` as many in 2 (n - 1), `tree` at most 2 S in about 2 log2(n); then one hop more for the commit. Members of
        one host read each other's memory and send nothing. It waits for the slowest member, at most `step_timeout_s`. A
        result takes S bytes, which are kept for the next one of the same size (8 sizes); so does a copy of a tensor
        that is not contiguous.

        `commit=False`, on every peer: the result is returned as soon as it is complete here, one hop earlier. All
        operations up to the next that commits (`barrier`, a step, an operation without `commit=False`) are one step
        with it.

        - Until then copies of their inputs and results are kept; `view`, `done` and `last_step` are those of the last
          commit. Commit before you leave.
        - If members join or leave before that commit, or a `peer.step` block of one ends with an exception,
          `OperationInterrupted` is raised once on every peer, by its next call at the latest. None of these operations
          counts: repeat all of them.
        - Every 256 operations, or 64 MiB, are committed as they come, and so is each operation of a peer that trains a
          model.

        A tensor of more than 64 MiB is split into operations of 32 MiB in one step, on any device; so is that of a
        `broadcast`. The receipt names the algorithm of each.

        Args:
            tensor: a tensor or array of any strides; float64, 32, 16, bfloat16, int64, 32, 16, 8, uint8 or bool. On the
                CPU, or on a CUDA device (never run on one); then the current stream sees the result. Written only
                after the step is committed.
            op: sum, mean, min or max, the same on every peer. A mean is over the members, of floating-point types.
            algorithm: of `collectives.ALGORITHMS` (`collectives.register_algorithm` adds your own), the same on every
                peer; None: chosen by the measured links (`explain`), and until these are known `one-shot` up to 256 KiB
                (less with more than 4 members, 1 MiB with two without shared memory), `direct` beyond, `ring` from 8
                MiB on with `network="wan"`.
            out: receives the result instead, and `tensor` is not written. Contiguous, of the same shape, type and
                device, in separate memory; undefined until this returns.
            async_op: return at once. All operations up to the first `wait`, of the peer or of a handle, are one step,
                in the order of the calls, the same on every peer; no other call is allowed before that, and the tensors
                must not be written, nor passed to another call of the step, which would not see the result (both are
                refused). Each holds its input, and memory for its result, until then.
            commit: wait until all members have the result; False: see above.

        Returns:
            None, or with `async_op` a handle to wait for.

        Raises:
            TypeError, ValueError: an invalid tensor, `op` or algorithm; other members are not affected.
            JoinRefused, JoinTimeout, RegistryError: this peer gets no seat, as `wait_view`.
            OperationMismatch: another member called something else; raised on every member, and operations with
                `commit=False` since the last commit do not count either.
            OperationInterrupted: a step whose results were returned (`commit=False`) could not be committed.
            QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: this peer cannot continue; `tensor` is
                untouched.
            DeviceLost: the device of `tensor`, or of another one, has failed; this peer has left.
            ShoalError: another step is open, or this peer has left.
        """
        return self._calls.all_reduce(tensor, op, algorithm, out=out, async_op=async_op, commit=commit)

    def broadcast(
        self,
        tensor: Any,
        *,
        root: int | str = 0,
        algorithm: str | None = None,
        out: Any = None,
        async_op: bool = False,
        commit: bool = True,
    ) -> Handle | None:
        """Replace `tensor` by that of one member, when all have it. A step of its own.

        The root is a peer, not a position: a rank refers to `peer.view` at the time of this call. If members join or
        leave before the commit, the tensor is still that of the same peer, whatever its rank is then. If the root
        itself is gone before all have its tensor, no other tensor replaces it, since only the root need have filled it:
        the step commits without it, and `RootLost` is raised on every peer.

        For S bytes and n members: `one-shot` sends S (n - 1) bytes from the root in one hop, `binary-tree` at most 2 S
        from each in about log2(n), `ring` S from each in n - 1. Members of one host read the root's memory. Every
        member needs memory for a result of S bytes, kept as that of an `all_reduce`.

        Args:
            tensor: as of `all_reduce`, of the same shape and type on every peer; that of the root is sent.
            root: a rank of `peer.view`, or a peer_id that is in it; the same peer on all.
            algorithm: one of the above; None: the cheapest over the measured links, if a training step has gathered the
                measurements of all members (`explain`); else `one-shot` while the root sends at most 256 KiB (2 MiB
                with `network="wan"`), and beyond that `ring`.
            out: as of `all_reduce`.
            async_op: as of `all_reduce`.
            commit: as of `all_reduce`.

        Returns:
            None, or with `async_op` a handle to wait for.

        Raises:
            RootLost: see above; tensors are as they were. Other operations of the step count.
            TypeError, ValueError: an invalid tensor, root or algorithm; other members are not affected.
            OperationMismatch, OperationInterrupted, JoinRefused, JoinTimeout, RegistryError, QuorumLost,
                RemovedFromView, ReplicasDiverged, StepTimeout, ShoalError: as `all_reduce`.
        """
        return self._calls.broadcast(tensor, root, algorithm, out=out, async_op=async_op, commit=commit)

    def all_gather(
        self, tensor: Any, *, algorithm: str | None = None, async_op: bool = False, commit: bool = True
    ) -> Any:
        """The tensors of all members, as rows in the order of their ranks. A step of its own.

        The rows are those of the members on the receipt: if one is gone before the commit, the step is redone with one
        row less; so there is no `out`, whose size is not known in advance. All members get the same bits.

        Pad tensors of different lengths to the longest (an `all_reduce` with `op="max"`), and put the length of each at
        its beginning: lengths gathered by another call may be those of other members.

        For S bytes and n members each sends S (n - 1) bytes: `one-shot` in one hop, `ring` in n - 1. Members of one
        host read each other's memory. The result takes n S bytes, which belong to the script.

        Args:
            tensor: as of `all_reduce`, of the same shape and type on every peer; not written, so it may be read-only.
            algorithm: one of the above; None: `one-shot`.
            async_op: as of `all_reduce`.
            commit: as of `all_reduce`.

        Returns:
            A new tensor of shape [n, *shape], or an array, as `tensor` is one, on the same device. With `async_op`, and
            in a `peer.step` block, a handle, whose `wait` returns it.

        Raises:
            TypeError, ValueError: an invalid tensor or algorithm; other members are not affected.
            OperationMismatch, OperationInterrupted, JoinRefused, JoinTimeout, RegistryError, QuorumLost,
                RemovedFromView, ReplicasDiverged, StepTimeout, ShoalError: as `all_reduce`.
        """
        return self._calls.all_gather(tensor, algorithm, async_op=async_op, commit=commit)

    def reduce_scatter(
        self,
        tensor: Any,
        *,
        op: str = "sum",
        algorithm: str | None = None,
        async_op: bool = False,
        commit: bool = True,
    ) -> Any:
        """This peer's share of the result of `op` over all members' tensors. A step of its own.

        Shares are contiguous parts of the flattened tensor, by rank, of L / n elements, one more or less. They are
        those of the members on the receipt: if one is gone before the commit, the step is redone, and the shares of the
        others are larger, and elsewhere. If a member dies after all have finished, the step counts, and its share is
        lost: a later `all_gather` of shares lacks it. A peer without a seat (an observer) has a share of no elements.
        Shares are not compared between members, since each exists only once.

        To reassemble shares: L / n need not be whole, so pad them, or the tensor, to one length. With `commit=False`
        this and the `all_gather` after it are one step: `OperationInterrupted` if a member leaves in between. Until
        that step commits, `peer.world_size` is that of the last commit: rely on the returned slice instead.

        For S bytes and n members each sends S (n - 1) / n bytes: `direct` in one hop, added in rank order, `ring` in
        n - 1. Members of one host read each other's memory. Takes S bytes for partial sums, kept as by `all_reduce`.

        Args:
            tensor: as of `all_reduce`; not written, so it may be read-only.
            op: as of `all_reduce`.
            algorithm: one of the above; None: `direct`.
            async_op: as of `all_reduce`.
            commit: as of `all_reduce`.

        Returns:
            The share, a new flat tensor (or array), and its slice of the flattened tensor. With `async_op`, and in a
            `peer.step` block, a handle, whose `wait` returns both.

        Raises:
            TypeError, ValueError: an invalid tensor, `op` or algorithm; other members are not affected.
            OperationMismatch, OperationInterrupted, JoinRefused, JoinTimeout, RegistryError, QuorumLost,
                RemovedFromView, ReplicasDiverged, StepTimeout, ShoalError: as `all_reduce`.
        """
        return self._calls.reduce_scatter(tensor, op, algorithm, async_op=async_op, commit=commit)

    def explain(self, size_bytes: int) -> dict[str, Any]:
        """Explain which algorithm an `all_reduce` of this size takes, and why, if its call leaves that open.

        Members on several hosts measure their links, and gather the measurements at the end of a training step (`step`,
        or one of a model). Once a receipt shows that all have the same table of prices, the cheapest algorithm of
        `one-shot`, `direct`, `ring`, `tree` and `halving-doubling` is taken, by all from the same step on; for float16
        and bfloat16 one of the first two, which round once. Until then, after a change of members, with more than 64
        members, and with all members on one host, sizes decide.

        Args:
            size_bytes: of the tensor; times are for the nearest power of two from 1 KiB to 64 MiB.

        Returns:
            A new dict: `size_bytes`; `algorithm`; `why`, as text; and durations in seconds, by algorithm: `expected_s`,
            by which it is chosen; `predicted_s`, by the model alone; `measured_s`, the median measured by this peer in
            this view, from its call on, of sums that had the links to themselves.

        Raises:
            ValueError: `size_bytes` is negative.
        """
        if size_bytes < 0:
            raise ValueError(f"the number of bytes must be at least 0, is {size_bytes}")
        self._session.callers.check_process("peer.explain")
        return explain(self._session.loop, size_bytes)

    def wait(self) -> None:
        """Wait until all open operations with `async_op` are committed, and their results in the tensors.

        The same as `wait` of one of their handles, for a script without these. Returns at once if none is open.

        Raises:
            OperationMismatch, OperationInterrupted, QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: as
                `Handle.wait`.
            ShoalError: another thread has them open, or this peer has left.
        """
        self._calls.wait()

    def step(self, samples: int | None = None) -> AbstractContextManager[Step]:
        """`with peer.step(samples=n):` combines all operations in the block into one step, committed at its end.

        In the block the tensors hold the inputs, and must not be written, nor passed to a second operation, which would
        not see the result of the first one; after it they hold the results. The number of operations, and each of them,
        must be the same on every peer.

        An exception in the block withdraws the submitted operations, and the others wait. If the script catches it and
        continues, with any call, the step is void: all others raise `OperationInterrupted` for it, once, so that
        different steps are never summed. If the script leaves, the others redo the step without this peer. Operations
        with `commit=False` before the block are void at once, on every peer.

        Costs one commit for all of them, and 40 bytes to each member for the samples. Each operation holds its input,
        and memory for its result, until the end.

        Args:
            samples: number of samples that this peer adds, for the receipt; None: the slice of a loader, or one for
                scripts without a loader.

        Returns:
            A context manager; `as` gives the `Step`, whose `samples` are the weight of this peer.

        Raises:
            TypeError, ValueError: `samples` is no whole number, or negative.
            JoinRefused, JoinTimeout, RegistryError: this peer gets no seat, as `wait_view`.
            OperationMismatch, OperationInterrupted: at the end of the block, as `all_reduce`.
            QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: the same; the tensors are untouched.
            ShoalError: another step is open, the batch of a loader is on a receipt already, or this peer has left.
        """
        return self._calls.step(samples)

    @overload
    def combine(self, value: float, *, samples: int) -> tuple[float, int]: ...

    @overload
    def combine(self, value: Mapping[str, float], *, samples: int) -> tuple[dict[str, float], int]: ...

    def combine(self, value: float | Mapping[str, float], *, samples: int) -> tuple[Any, int]:
        """The mean of all members' values, weighted by their samples: for losses and scores after an evaluation.

        A step of its own, of 8 bytes for each value and member. Added in rank order, in float64: the same bits on all.
        The values of a peer without a seat when `Loader.evaluate` split the dataset do not count until it trains:
        others have evaluated the same samples.

        Args:
            value: a mean over this peer's `samples`, or several by name; ignored if `samples` is 0.
            samples: number of samples in the mean.

        Returns:
            The mean, or the means by name, and its number of samples: fewer than were evaluated if a member is gone
            since. NaN and 0 if no member has any.

        Raises:
            TypeError, ValueError: `samples` is no whole number, or negative.
            OperationMismatch: another member called something else, or has other names; raised on every member.
            JoinRefused, JoinTimeout, RegistryError, OperationInterrupted, QuorumLost, RemovedFromView,
                ReplicasDiverged, StepTimeout, ShoalError: as `barrier`.
        """
        return self._calls.combine(value, samples)
