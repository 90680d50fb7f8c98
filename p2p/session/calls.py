"""Calls of a script without a model: one operation, several at a time, or an explicit step.

Several operations form one step: they are submitted in the order of the calls, run while the script continues, and
their results are written into the tensors when the step commits.
"""

import math
import operator
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collectives import OPS, Array
from collectives.goals import GOALS

from ..data.counting import counts_operation, whole_number
from ..device import HOST, Device
from ..errors import RootLost, ShoalError
from ..staging import Staged
from ..step.collective import AllGather, AllReduce, Barrier, GenericCollective
from ..step.operation import Operation
from ..step.receipts import UNKNOWN_SAMPLE
from .aliasing import Accesses
from .attempt import OpenedBy
from .device_memory import pinned, single_device_of, staged_by
from .operation_call import OperationArgs, OperationCall, StagedCall
from .session import Session
from .tensors import ResultBuffers

IN_BLOCK = (
    "operations in a `with peer.step()` block are asynchronous, and committed at its end: "
    "leave `async_op` and `commit` out"
)

_ALL_REDUCES: Final = [AllReduce(op) for op in OPS]
"""One object per `op`, reused by all calls: its description is cached by identity."""


class ScriptStep:
    """A step that a script has opened, and the calls in it.

    Attributes:
        number: of the step.
        session: of the peer.
    """

    def __init__(self, session: Session, by: OpenedBy) -> None:
        """Open the step."""
        session.membership.take_seat()
        session.open_step(by)
        session.membership.post(session.membership.offer_or_withhold_state())  # a peer may wait for it
        self.number = session.history.done + 1
        self.is_open = True
        self.session = session
        self._calls: list[OperationCall] = []
        self._waiting: deque[tuple[OperationCall, int]] = deque()
        """Calls, each with the index of an operation."""
        self._is_committed = False
        self._what = "`peer.step` block" if by is OpenedBy.BLOCK else "step of asynchronous operations"
        self._accesses = Accesses()

    def add(self, call: OperationCall) -> None:
        """Submit the operations of one more call, each as soon as it and all before it are ready.

        Raises:
            ValueError: a call of the step writes memory that this one reads or writes; no operation is submitted.
        """
        call.note_access(self._accesses)
        self.session.callers.num_acts += 1
        self._calls.append(call)
        self._waiting += ((call, index) for index in range(len(call.operations)))
        while self._waiting and self._waiting[0][0].is_ready(self._waiting[0][1]):
            self._submit()

    def _submit(self) -> None:
        call, index = self._waiting.popleft()
        self.session.submit(call.operations[index])

    def commit(self) -> None:
        """Wait until all members have finished the step, and write its results. Idempotent."""
        if self.is_open:
            self.session.callers.num_acts += 1
            self.is_open = False
            while self._waiting:
                call, index = self._waiting[0]
                call.wait(index)
                self._submit()
            self.session.commit()
            for call in self._calls:
                call.deliver_result(self.number)
            self._is_committed = True
            self.session.history.announce()
        elif not self._is_committed:
            self.session.membership.check_usable()
            raise ShoalError(f"step {self.number}, which has this operation, was given up: call it again")

    def check_devices(self) -> None:
        """Before the commit: raise ShoalError if a device cannot be called now. The step stays open."""
        for each in self._calls if self.is_open else ():
            each.check()

    def check_inputs(self) -> None:
        """Before the commit: raise ShoalError if the script has written an input, and give up the step."""
        try:
            for number, each in enumerate(self._calls if self.is_open else (), 1):
                each.check_input(number)
        except ShoalError as error:
            self.withdraw(error)
            raise

    def check(self) -> None:
        """Raise RootLost if the root of an operation was gone; make results visible to the current stream."""
        self.follow()
        for call in self._calls:
            call.value()

    def follow(self) -> None:
        """Make the available results visible to the current stream."""
        for call in self._calls:
            call.follow()

    def withdraw(self, error: BaseException) -> None:
        """Withdraw all operations: `error` ended the step."""
        self.is_open = False
        if self.session.membership.unusable is not None:
            return
        self.session.withdraw(f"{type(error).__name__} ended a {self._what} of peer {self.session.loop.peer_id}")


@dataclass(frozen=True, slots=True)
class Step:
    """The step of a `with peer.step()` block.

    Attributes:
        number: value of `Peer.last_step` once it is committed.
        samples: number of samples that this peer adds, which is the weight of its tensors; 0 if its batch does not
            count: it has just joined, there were too few samples for all, or one could not be loaded.
    """

    number: int
    samples: int


class Handle:
    """An operation whose result is available later: with `async_op`, or in a `with peer.step()` block."""

    def __init__(self, step: ScriptStep, call: OperationCall, *, is_in_block: bool = False) -> None:
        self._step, self._call, self._is_in_block = step, call, is_in_block

    def wait(self) -> Any:
        """Wait for the results of all operations of the step, which ends here.

        Waits until every member has submitted the same operations and called `wait`, at most `step_timeout_s`. A second
        call, or one on another handle of the step, returns at once; so does one for an operation in a
        `with peer.step()` block, which is made after the block.

        Returns:
            The return value of the operation without `async_op`; None if its result is in the tensor.

        Raises:
            OperationMismatch, OperationInterrupted: as `Peer.all_reduce`; the tensors are untouched, call it again.
            RootLost: the root of one of the operations was gone; the step is committed, all others count, and a second
                call returns their results.
            QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: this peer cannot continue; the tensors are
                untouched.
            ShoalError: the step was given up before, or its block is open.
        """
        with self._step.session.callers.call("the `wait` of a handle"):
            if self._is_in_block and self._step.is_open:
                raise ShoalError(OpenedBy.BLOCK.value)
            ends_it = self._step.is_open
            self._step.check_devices()
            self._step.check_inputs()
            self._step.commit()
            if ends_it:
                self._step.check()
            self._step.follow()
            return self._call.value()


class Calls:
    """The operations and steps of one peer's script."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffers, self._inputs = ResultBuffers(session.empty), ResultBuffers(session.empty)
        self._staged: dict[tuple[Device, int], Staged] = {}
        self._block: ScriptStep | None = None
        self._asynchronous: ScriptStep | None = None

    def all_reduce(
        self, tensor: Any, op: str, algorithm: str | None, *, out: Any, async_op: bool, commit: bool
    ) -> Handle | None:
        """See `Peer.all_reduce`."""
        with self._session.callers.call("peer.all_reduce"):
            collective = _ALL_REDUCES[OPS.index(op)] if op in OPS else AllReduce(op)  # refused later
            handle = self._run(tensor, OperationArgs(collective, algorithm, out), async_op, commit)
            if self._session.history.own_data.is_late:
                self._tell_what_is_not_given(tensor, op, is_alone=commit and not async_op and self._block is None)
            return handle if async_op else None

    def _tell_what_is_not_given(self, tensor: Any, op: str, *, is_alone: bool) -> None:
        """Warn a late peer without a model or loader; `is_alone`: this operation is a step of its own."""
        if not (self._session.membership.trains_model or self._session.share.tracks.epochs):
            self._session.history.own_data.reduce(op, str(tensor.dtype), tuple(tensor.shape), is_alone=is_alone)

    def broadcast(
        self, tensor: Any, root: int | str, algorithm: str | None, *, out: Any, async_op: bool, commit: bool
    ) -> Handle | None:
        """See `Peer.broadcast`."""
        with self._session.callers.call("peer.broadcast"):
            asked = OperationArgs(GenericCollective("broadcast", root=self._peer_at(root)), algorithm, out)
            handle: Handle | None = self._run(tensor, asked, async_op, commit)
            return handle if async_op else None

    def all_gather(self, tensor: Any, algorithm: str | None, *, async_op: bool, commit: bool) -> Any:
        """See `Peer.all_gather`."""
        with self._session.callers.call("peer.all_gather"):
            return self._run(tensor, OperationArgs(AllGather(), algorithm), async_op, commit)

    def reduce_scatter(self, tensor: Any, op: str, algorithm: str | None, *, async_op: bool, commit: bool) -> Any:
        """See `Peer.reduce_scatter`."""
        with self._session.callers.call("peer.reduce_scatter"):
            asked = OperationArgs(GenericCollective("reduce-scatter", op), algorithm)
            return self._run(tensor, asked, async_op, commit)

    def _peer_at(self, root: int | str) -> str:
        """The peer_id of a rank of the script's view, or `root` itself if it is the peer_id of a member.

        Raises:
            TypeError, ValueError: no such rank or member.
        """
        view = self._session.membership.take_seat()
        there = [member.peer_id for member in view.members]
        if isinstance(root, str):
            if root not in there:
                names = ", ".join(there)
                raise ValueError(f"root must be a rank or a peer_id of `peer.view`, is {root!r}; members: {names}")
            return root
        wanted = f"root must be a rank of `peer.view`, 0 to {len(there) - 1}, or a peer_id, is {root}"
        try:
            rank = operator.index(root)
        except TypeError:
            raise TypeError(f"{wanted}, a {type(root).__name__}") from None
        if not 0 <= rank < len(there):
            raise ValueError(wanted)
        return there[rank]

    def _run(self, tensor: Any, asked: OperationArgs, async_op: bool, commit: bool) -> Any:
        """Run a call. Returns a handle, or the value of the call."""
        if async_op and not commit:
            raise ValueError("async_op=True and commit=False: pass one, or use `async_op` for several at a time")
        if self._block is not None:
            if async_op or not commit:
                raise ShoalError(IN_BLOCK)
            call = self._make(tensor, asked, is_alone=False)
            self._block.add(call)
            return Handle(self._block, call, is_in_block=True)
        if async_op:
            call = self._make(tensor, asked, is_alone=False)
            if self._asynchronous is None or not self._asynchronous.is_open:
                self._asynchronous = ScriptStep(self._session, OpenedBy.ASYNCHRONOUS)
            self._asynchronous.add(call)
            return Handle(self._asynchronous, call)
        call = self._make(tensor, asked, is_alone=True)
        if len(call.operations) > 1:  # and no open step may return these early
            step = ScriptStep(self._session, OpenedBy.PARTS)
            step.add(call)
            step.commit()
            return call.value()
        call.wait(0)
        operation, history = call.operation, self._session.history
        if not commit and self._session.may_run_early(operation):
            call.copy_input()
            call.deliver_result(history.done + 1, self._session.run_early(operation))
        else:
            self._session.run_alone(operation)
            call.deliver_result(history.done)
            history.announce()
        return call.value()

    def wait(self) -> None:
        """See `Peer.wait`."""
        with self._session.callers.call("peer.wait"):
            self._session.membership.check_usable()
            if self._asynchronous is not None and self._asynchronous.is_open:
                self._asynchronous.check_devices()
                self._asynchronous.check_inputs()
                self._asynchronous.commit()
                self._asynchronous.check()
            elif self._asynchronous is not None:
                self._asynchronous.follow()

    def _make(self, tensor: Any, asked: OperationArgs, *, is_alone: bool) -> OperationCall:
        """`is_alone`: no other operation of the same size is open, so the memory of its result can be reused."""
        out = asked.out
        device = single_device_of(self._session, tensor, "the tensor")
        if device is HOST:
            if out is not None and self._session.device_of(out) is not HOST:
                raise ValueError(f"out is on {out.device}, and the tensor on the CPU: pass both on one device")
            return OperationCall(tensor, asked, self._buffers.of if is_alone else self._session.empty)
        device.check()
        if out is not None and self._session.device_of(out) is not device:
            where = getattr(out, "device", "the CPU")
            raise ValueError(f"out is on {where}, and the tensor on {tensor.device}: pass both on one device")

        def staged(index: int) -> Staged:
            """One per operation of the call; reused memory keeps the marks of earlier calls."""
            made = staged_by(self._session, device)
            return self._staged.setdefault((device, index), made) if is_alone else made

        makers = (self._inputs.of, self._buffers.of) if is_alone else (self._session.empty, self._session.empty)
        input, result = (pinned(self._session, device, make) for make in makers)
        return StagedCall(tensor, asked, staged, (input, result))

    def barrier(self) -> None:
        """See `Peer.barrier`."""
        one = np.ones(1, np.int64)
        with self._session.callers.call("peer.barrier"):
            self._session.run_alone(Operation(Barrier(), one, np.empty_like(one), (), "one-shot"))
            self._session.history.announce()

    def move(self, kind: str, array: Array, root: int, algorithm: str | None) -> Array:
        """Run one of `collectives.goals` that no method of `Peer` offers, as a step of its own: for the benchmark.

        Returns all chunks, of which those that are due to this rank are valid; the memory is reused. `array`: all
        chunks of this rank, or, for a gather, its single one.
        """
        with self._session.callers.call(f"the benchmark's {kind}"):
            peer_id = self._peer_at(root) if GOALS[kind].has_root else ""
            collective = GenericCollective(kind, root=peer_id)
            operation = Operation(collective, array, self._buffers.like(array), array.shape, algorithm)
            self._session.run_alone(operation)
            self._session.history.announce()
            if operation.is_root_missing:
                raise RootLost(self._session.history.done, operation.describe())
            return operation.result

    def gather(self, row: Array, label: str) -> Array:
        """A step of its own. Returns the rows of all members in order of the receipt; `label` must be equal on all."""
        operation = Operation(AllGather(label=label), row, row, row.shape, "one-shot")
        with self._session.callers.call(label):
            self._session.run_alone(operation)
            self._session.history.announce()
        return operation.result.reshape(-1, row.size)

    def combine(self, value: float | Mapping[str, float], samples: int) -> tuple[Any, int]:
        """See `Peer.combine`."""
        samples = whole_number(samples)
        samples = 0 if self._session.share.only_looks_on else samples
        named = dict(sorted(value.items())) if isinstance(value, Mapping) else {"value": value}
        mine = [_number(name, each) * samples if samples else 0.0 for name, each in named.items()]
        rows = self.gather(np.array([samples, *mine], np.float64), f"means of {', '.join(named)}")
        total, *sums = rows.sum(0).tolist()
        means = {name: part / total if total else math.nan for name, part in zip(named, sums, strict=True)}
        if not isinstance(value, Mapping):
            return means["value"], int(total)
        return {name: means[name] for name in value}, int(total)  # in the order given by the script

    @contextmanager
    def step(self, samples: int | None) -> Iterator[Step]:
        """See `Peer.step`."""
        samples = None if samples is None else whole_number(samples)
        share, callers = self._session.share, self._session.callers
        step: ScriptStep | None = None
        try:
            with callers.call("peer.step"):
                weight = share.weight if samples is None else samples
                counts = share.operation() if samples is None else counts_operation((UNKNOWN_SAMPLE, samples, samples))
                step = self._block = ScriptStep(self._session, OpenedBy.BLOCK)
                self._session.submit(counts)
            yield Step(step.number, weight)
            step.check_devices()
            step.check_inputs()
            self._block = None
            with callers.call("peer.step"):
                step.commit()
                if samples is None:
                    share.spend()
                step.check()
        except BaseException as error:
            if step is not None and step.is_open:
                step.withdraw(error)
            raise
        finally:
            if step is not None:  # else another thread has a block open
                self._block = None


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value).__name__
        raise TypeError(f"combine takes one number for each name, and {name} is a {kind}: {error}") from None
