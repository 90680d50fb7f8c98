"""What a script calls without a model: one operation, several at a time, or a step by hand.

Several operations are one step: they are submitted in the order of the calls, run while the script goes on, and their
results are written into the tensors when the step commits.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives import Array

from ..data.share import count_samples
from ..device import HOST, Device
from ..errors import ShoalError
from ..staging import Staged
from ..step.collective import AllGather, Barrier
from ..step.operation import Operation
from ..step.receipts import UNKNOWN_SAMPLE
from .all_reduce_call import AllReduceCall, StagedAllReduceCall
from .device_memory import pinned, staged_by
from .session import Session
from .tensors import Buffers

ASYNCHRONOUS = "asynchronous operations are open: call `peer.wait()`, or `wait` of one of their handles, first"
BY_HAND = "a `with peer.step()` block is open: its operations are committed at its end, so call this after it"
IN_BLOCK = (
    "operations in a `with peer.step()` block are asynchronous, and committed at its end: "
    "leave `async_op` and `commit` out"
)


class ScriptStep:
    """A step that a script has opened, and the calls in it.

    Attributes:
        number: of the step.
        session: of the peer.
    """

    def __init__(self, session: Session, what: str) -> None:
        """Open it; `what` is told to who opens another one before it is over."""
        session.membership.take_seat()
        session.open_step(what)
        session.show_state()
        self.number = session.history.done + 1
        self.is_open = True
        self.session = session
        self._calls: list[AllReduceCall] = []
        self._waiting: deque[AllReduceCall] = deque()
        self._is_committed = False

    def add(self, call: AllReduceCall) -> None:
        """Submit one more operation, as soon as it is ready, and those before it are."""
        self._calls.append(call)
        self._waiting.append(call)
        while self._waiting and self._waiting[0].is_ready():
            self.session.submit(self._waiting.popleft().operation)

    def commit(self) -> None:
        """Wait until all members have finished the step, and write its results. The first time; then there they are."""
        if self.is_open:
            self.is_open = False
            while self._waiting:
                self._waiting[0].wait()
                self.session.submit(self._waiting.popleft().operation)
            self.session.commit()
            self._is_committed = True
            for call in self._calls:
                call.hand_out()
            self.session.history.announce()
        elif not self._is_committed:
            raise ShoalError(f"step {self.number}, of which this operation was one, was given up: call it again")

    def withdraw(self, error: BaseException) -> None:
        """Take everything back: `error` ended the block."""
        self.is_open = False
        self.session.withdraw(f"{type(error).__name__} ended a `peer.step` block of peer {self.session.loop.peer_id}")


@dataclass(frozen=True, slots=True)
class Step:
    """The step that a `with peer.step()` block makes.

    Attributes:
        number: that `Peer.last_step` has when it is committed.
        samples: how many this peer adds, so what its tensors weigh; 0 if its batch does not count: it has only just
            joined, there were too few samples for all, or one could not be loaded.
    """

    number: int
    samples: int


class Handle:
    """An operation that runs while the script goes on. Made by `Peer.all_reduce` with `async_op`."""

    def __init__(self, step: ScriptStep) -> None:
        self._step = step

    def wait(self) -> None:
        """Return when the result is in the tensor, and so are those of all operations of the step, which ends here.

        Waits until every member has submitted the same operations and called `wait`, `step_timeout_s` at most. A
        second call, or that of another handle of the step, returns at once.

        Raises:
            OperationMismatch, OperationInterrupted: as `Peer.all_reduce`; the tensors are untouched, call it again.
            QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout: this peer cannot go on; the tensors are
                untouched.
            ShoalError: the step was given up before.
        """
        with self._step.session.callers.call("the `wait` of a handle"):
            self._step.commit()


class Calls:
    """The operations and steps of one peer's script."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffers, self._inputs = Buffers(session.empty), Buffers(session.empty)
        self._staged: dict[Device, Staged] = {}
        self._block: ScriptStep | None = None
        self._asynchronous: ScriptStep | None = None

    def all_reduce(
        self, tensor: Any, op: str, algorithm: str | None, *, out: Any, async_op: bool, commit: bool
    ) -> Handle | None:
        """See `Peer.all_reduce`."""
        if async_op and not commit:
            raise ValueError("async_op=True and commit=False: take one, or use `async_op` for several at a time")
        with self._session.callers.call("peer.all_reduce"):
            return self._all_reduce(tensor, op, algorithm, out=out, async_op=async_op, commit=commit)

    def _all_reduce(
        self, tensor: Any, op: str, algorithm: str | None, *, out: Any, async_op: bool, commit: bool
    ) -> Handle | None:
        if self._block is not None:
            if async_op or not commit:
                raise ShoalError(IN_BLOCK)
            self._block.add(self._make(tensor, op, algorithm, out, is_alone=False))
            return None
        if async_op:
            call = self._make(tensor, op, algorithm, out, is_alone=False)
            if self._asynchronous is None or not self._asynchronous.is_open:
                self._asynchronous = ScriptStep(self._session, ASYNCHRONOUS)
            self._asynchronous.add(call)
            return Handle(self._asynchronous)
        call = self._make(tensor, op, algorithm, out, is_alone=True)
        call.wait()
        if not commit and self._session.may_run_early(call.operation):
            call.keep_apart()
            call.hand_out(self._session.run_early(call.operation))
        else:
            self._session.run_alone(call.operation)
            call.hand_out()
            self._session.history.announce()
        return None

    def wait(self) -> None:
        """See `Peer.wait`."""
        with self._session.callers.call("peer.wait"):
            self._session.membership.check_usable()
            if self._asynchronous is not None and self._asynchronous.is_open:
                self._asynchronous.commit()

    def _make(self, tensor: Any, op: str, algorithm: str | None, out: Any, *, is_alone: bool) -> AllReduceCall:
        """`is_alone`: no other operation of the same size is open, so that memory for its result can be kept."""
        device = self._session.device_of(tensor)
        if device is HOST:
            if out is not None and self._session.device_of(out) is not HOST:
                raise ValueError(f"out is on {out.device}, and what is reduced on the CPU: pass both on one device")
            return AllReduceCall(tensor, op, algorithm, out, self._buffers.like if is_alone else self._new)
        if out is not None and self._session.device_of(out) is not device:
            where = getattr(out, "device", "the CPU")
            raise ValueError(f"out is on {where}, and the tensor on {tensor.device}: pass both on one device")
        staged = staged_by(self._session, device)
        staged = self._staged.setdefault(device, staged) if is_alone else staged
        makers = (self._inputs.of, self._buffers.of) if is_alone else (self._session.empty, self._session.empty)
        input, result = (pinned(self._session, device, make) for make in makers)
        return StagedAllReduceCall(tensor, op, algorithm, out, staged, (input, result))

    def _new(self, array: Array) -> Array:
        """Memory for a result, while others of the same size are open."""
        return self._session.empty(array.size, array.dtype)

    def barrier(self) -> None:
        """See `Peer.barrier`."""
        one = np.ones(1, np.int64)
        with self._session.callers.call("peer.barrier"):
            self._session.run_alone(Operation(Barrier(), one, np.empty_like(one), (), "one-shot"))
            self._session.history.announce()

    def gather(self, row: Array, label: str) -> Array:
        """A step of its own. Returns the rows of all members on its receipt, in their order; `label` is the same."""
        operation = Operation(AllGather(label=label), row, row, row.shape, "one-shot")
        with self._session.callers.call(label):
            self._session.run_alone(operation)
            self._session.history.announce()
        return operation.result.reshape(-1, row.size)

    def combine(self, value: float | Mapping[str, float], samples: int) -> tuple[Any, int]:
        """See `Peer.combine`."""
        if samples < 0:
            raise ValueError(f"the number of samples must be at least 0, is {samples}")
        samples = 0 if self._session.share.only_looks_on else samples
        named = dict(sorted(value.items())) if isinstance(value, Mapping) else {"value": value}
        mine = [float(each) * samples if samples else 0.0 for each in named.values()]
        rows = self.gather(np.array([samples, *mine], np.float64), f"means of {', '.join(named)}")
        total, *sums = rows.sum(0).tolist()
        means = {name: part / total if total else math.nan for name, part in zip(named, sums, strict=True)}
        if not isinstance(value, Mapping):
            return means["value"], int(total)
        return {name: means[name] for name in value}, int(total)  # in the order that the script has said

    @contextmanager
    def step(self, samples: int | None) -> Iterator[Step]:
        """See `Peer.step`."""
        if samples is not None and samples < 0:
            raise ValueError(f"the number of samples must be at least 0, is {samples}")
        share, callers = self._session.share, self._session.callers
        with callers.call("peer.step"):
            weight = share.weight if samples is None else samples
            counts = share.operation() if samples is None else count_samples((UNKNOWN_SAMPLE, samples, samples))
            step = self._block = ScriptStep(self._session, BY_HAND)
        try:
            self._session.submit(counts)
            yield Step(step.number, weight)
        except BaseException as error:
            step.withdraw(error)
            raise
        finally:
            self._block = None
        with callers.call("peer.step"):
            step.commit()
            if samples is None:
                share.spend()
