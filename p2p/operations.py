"""What a script computes together with the other peers: operations, and steps of several of them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, overload

from .session.calls import Calls, Handle, Step
from .session.explaining import explain
from .session.session import Session
from .session.tensors import empty_tensor


class Operations:
    """Of one peer: each is a step of its own, unless it says otherwise, that commits on all members or on none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls = Calls(session)

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

        - Until then copies of their inputs and results are kept; `view`, `done` and `last_step` are those of the last
          commit.
          End with one before you leave.
        - If members come or go before that commit, or a `peer.step` block of one ends with an exception,
          `OperationInterrupted` is raised once on every peer, by its next call at the latest. None of these operations
          counts: call all of them again.
        - Every 256 operations, or 64 MiB, are committed as they come, and so is each operation of a peer that trains a
          model.

        A tensor of more than 64 MiB is called as operations of 32 MiB in one step, wherever it lives; so is that of a
        `broadcast`. The receipt names the algorithm of each.

        Args:
            tensor: a tensor or array of any strides; float64, 32, 16, bfloat16, int64, 32, 16, 8, uint8 or bool. On the
                CPU, or on a CUDA device (never run on one); then the current stream sees the result. Written only
                after the step is committed.
            op: sum, mean, min or max, the same on every peer. A mean is over the members, of floating-point types.
            algorithm: of `collectives.ALGORITHMS` (`collectives.register_algorithm` adds your own), the same on every
                peer; None: what is measured of the links says so (`explain`), and until that is known `one-shot` up to
                256 KiB (less with more than 4 members, 1 MiB with two without memory in common), `direct` beyond,
                `ring` from 8 MiB on with `network="wan"`.
            out: takes the result instead, and `tensor` is not written. Contiguous, of the same shape, type and device,
                memory of its own; undefined until this returns.
            async_op: return at once. All operations up to the first `wait`, of the peer or of a handle, are one step,
                in the order of the calls, the same on every peer; nothing else can be called before that, and the
                tensors must not be written, nor passed to another call of the step, which would not see the result
                (both are refused). Each holds its input, and memory for its result, until then.
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

        The root is a peer, not a place: a rank is that of `peer.view` as this call finds it. If members come or go
        before the commit, the tensor is still that of the same peer, whatever its rank is then. If the root itself is
        gone before all have its tensor, nobody's is taken in its place, since only the root need have filled it:
        the step commits without it, and `RootLost` is raised on every peer.

        For S bytes and n members: `one-shot` sends S (n - 1) bytes from the root in one hop, `binary-tree` at most 2 S
        from each in about log2(n), `ring` S from each in n - 1. Members of one host read the root's memory. Every
        member needs memory for a result of S bytes, kept as that of an `all_reduce`.

        Args:
            tensor: as of `all_reduce`, of the same shape and type on every peer; at the root it is what is sent.
            root: a rank of `peer.view`, or a peer_id that is in it; the same peer on all.
            algorithm: one of the above; None: the cheapest over links as all members have measured them, if a training
                step has gathered that (`explain`); else `one-shot` while the root sends 256 KiB at most (2 MiB with
                `network="wan"`), and beyond that `ring`.
            out: as of `all_reduce`.
            async_op: as of `all_reduce`.
            commit: as of `all_reduce`.

        Returns:
            None, or with `async_op` a handle to wait for.

        Raises:
            RootLost: see above; tensors are as they were. Other operations of the step count.
            TypeError, ValueError: no such tensor, root or algorithm; nobody else hears of it.
            OperationMismatch, OperationInterrupted, JoinRefused, JoinTimeout, RegistryError, QuorumLost,
                RemovedFromView, ReplicasDiverged, StepTimeout, ShoalError: as `all_reduce`.
        """
        return self._calls.broadcast(tensor, root, algorithm, out=out, async_op=async_op, commit=commit)

    def all_gather(
        self, tensor: Any, *, algorithm: str | None = None, async_op: bool = False, commit: bool = True
    ) -> Any:
        """The tensors of all members, as rows in the order of their ranks. A step of its own.

        The rows are those of the members on the receipt: if one is gone before the commit, the step is done over, and
        has one row less; so there is no `out`, whose size could not be known. All members get the same bits.

        Tensors of different lengths are padded to the longest (an `all_reduce` with `op="max"`), each with its length
        at its beginning: lengths that were gathered by another call may be those of other members.

        For S bytes and n members each sends S (n - 1) bytes: `one-shot` in one hop, `ring` in n - 1. Members of one
        host read each other's memory. The result takes n S bytes, which are the script's own.

        Args:
            tensor: as of `all_reduce`, of the same shape and type on every peer; not written, so it may be read-only.
            algorithm: one of the above; None: `one-shot`.
            async_op: as of `all_reduce`.
            commit: as of `all_reduce`.

        Returns:
            A new tensor of shape [n, *shape], or an array, as `tensor` is one, on the same device. With `async_op`, and
            in a `peer.step` block, a handle, whose `wait` returns it.

        Raises:
            TypeError, ValueError: no such tensor or algorithm; nobody else hears of it.
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
        """This peer's share of what `op` makes of all members' tensors. A step of its own.

        Shares are contiguous parts of the tensor in one dimension, by rank, of L / n elements, one more or less. They
        are those of the members on the receipt: if one is gone before the commit, the step is done over, and the
        shares of those who are left are larger, and elsewhere. If it is gone after all have finished, the step counts,
        and the share of the dead is lost with it: then an `all_gather` of shares lacks it. A peer without a seat
        (a joiner that observes) has a share of no elements. Nobody else has the same bits, so none are compared.

        Where shares are put together again: L / n need not be whole, so pad them, or the tensor, to one length. With
        `commit=False` this and the `all_gather` after it are one step: `OperationInterrupted` if anybody goes between.
        Until it commits `peer.world_size` is that of the last commit: go by the share, not by that.

        For S bytes and n members each sends S (n - 1) / n bytes: `direct` in one hop, added in rank order, `ring` in
        n - 1. Members of one host read each other's memory. Takes S bytes for partial sums, kept as by `all_reduce`.

        Args:
            tensor: as of `all_reduce`; not written, so it may be read-only.
            op: as of `all_reduce`.
            algorithm: one of the above; None: `direct`.
            async_op: as of `all_reduce`.
            commit: as of `all_reduce`.

        Returns:
            The share, a new tensor (or array) of one dimension, and the slice of the flattened tensor that it is. With
            `async_op`, and in a `peer.step` block, a handle, whose `wait` returns both.

        Raises:
            TypeError, ValueError: no such tensor, `op` or algorithm; nobody else hears of it.
            OperationMismatch, OperationInterrupted, JoinRefused, JoinTimeout, RegistryError, QuorumLost,
                RemovedFromView, ReplicasDiverged, StepTimeout, ShoalError: as `all_reduce`.
        """
        return self._calls.reduce_scatter(tensor, op, algorithm, async_op=async_op, commit=commit)

    def explain(self, size_bytes: int) -> dict[str, Any]:
        """Which algorithm an `all_reduce` of so many bytes takes, and why, if its call leaves that open: for people.

        Where members are on several hosts, they measure their links, and gather what they have measured at the end of a
        training step (`step`, or one of a model). Once a receipt says that all have the same table of it, the cheapest
        algorithm of `one-shot`, `direct`, `ring`, `tree` and `halving-doubling` is taken, from the same step on by all;
        for float16 and bfloat16 of the first two, which round once.
        Until then, where members change, in more than 64, and where all are on one host, sizes decide.

        Args:
            size_bytes: of the tensor; what is known of the nearest power of two from 1 KiB to 64 MiB is said.

        Returns:
            A new dict: `size_bytes`; `algorithm`; `why`, in words; and in seconds, by algorithm, until the result is
            there: `expected_s`, by which it is chosen; `predicted_s`, by the model alone; `measured_s`, the median of
            what this peer has seen in this view, from its call on, of sums that had the links to themselves.

        Raises:
            ValueError: `size_bytes` is negative.
        """
        if size_bytes < 0:
            raise ValueError(f"the number of bytes must be at least 0, is {size_bytes}")
        self._session.callers.check_process("peer.explain")
        return explain(self._session.loop, size_bytes)

    def wait(self) -> None:
        """Return when all operations with `async_op` that are open are committed, and their results in the tensors.

        The same as `wait` of one of their handles, for a script that has dropped them. If none is open it returns at
        once.

        Raises:
            OperationMismatch, OperationInterrupted, QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: as
                `Handle.wait`.
            ShoalError: another thread has them open, or this peer has left.
        """
        self._calls.wait()

    def step(self, samples: int | None = None) -> AbstractContextManager[Step]:
        """`with peer.step(samples=n):` makes one step of all operations in the block, committed at its end.

        In the block the tensors hold the inputs, and must not be written, nor be passed to a second operation, which
        would not see the result of the first one; after it they hold the results. The number of operations, and each
        of them, must be the same on every peer.

        An exception in the block takes back what was submitted, and the others wait. If the script catches it and goes
        on, with whatever it calls next, the step is void: all others raise `OperationInterrupted` for it, once, so that
        no step is summed with another one. If it leaves, the others do the step over without this peer. Operations
        before the block that said `commit=False` are void at once, on every peer.

        Costs one commit for all of them, and 40 bytes to each member for the samples. Each operation holds its input,
        and memory for its result, until the end.

        Args:
            samples: how many this peer adds, for the receipt; None: the slice of a loader, or, for scripts that do
                not use it, one.

        Returns:
            A context manager; `as` gives the `Step`, whose `samples` are the weight of what this peer adds.

        Raises:
            TypeError, ValueError: `samples` is no whole number, or negative.
            JoinRefused, JoinTimeout, RegistryError: there is no seat for this peer, as `wait_view`.
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
        """The mean of all members' values, each weighted by its samples: of losses and scores after an evaluation.

        A step of its own, of 8 bytes for each value and member. Added in rank order, in float64: the same bits on all.
        Of who had no seat when `Loader.evaluate` split the dataset, nothing counts until it trains: others have had
        the same samples.

        Args:
            value: a mean over this peer's `samples`, or several by name; it counts for nothing where that is 0.
            samples: how many it is a mean of.

        Returns:
            The mean, or the means by name, and of how many samples: less than were evaluated if a member is gone
            since. NaN and 0 where nobody has any.

        Raises:
            TypeError, ValueError: `samples` is no whole number, or negative.
            OperationMismatch: another member called something else, or has other names; raised on every member.
            JoinRefused, JoinTimeout, RegistryError, OperationInterrupted, QuorumLost, RemovedFromView,
                ReplicasDiverged, StepTimeout, ShoalError: as `barrier`.
        """
        return self._calls.combine(value, samples)
