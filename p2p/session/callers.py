"""Callers of a peer: one thread at a time, in the process that has joined.

A script may use its peer from several threads in turn. A call while another thread is in a call, or has a step open,
would interfere with that, so it raises an error that names both. Calls by autograd during a backward pass belong to
that pass, in any thread. A forked child has neither the loop's thread nor the arena: all calls raise there.
"""

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ShoalError
from .attempt import Attempt, OpenedBy

BACKWARD_CALL = "loss.backward"

EXPECTED = (ShoalError, ValueError, TypeError)
"""Errors that define the outcome of the step, or that the call had no effect. All others interrupt a call half-way."""


class Caller:
    """A thread and its call; the context manager delimits the call.

    If a signal handler, or another error, ends the block after a first irrevocable action, the script cannot know the
    outcome.
    """

    __slots__ = ("_callers", "_num_acts", "call", "thread")

    def __init__(self, callers: "Callers", call: str) -> None:
        self._callers, self.call, self.thread = callers, call, threading.current_thread()
        self._num_acts = callers.num_acts

    def __enter__(self) -> None:
        if os.getpid() != self._callers.pid:
            self._callers.check_process(self.call)
        before = self._callers.in_call.setdefault("now", self)  # atomic
        if before.thread is not self.thread:
            raise _both(self, before, "is still running")
        opener = self._callers.opener
        if before is self and opener is not None and opener.thread is not self.thread:  # and not within another call
            try:
                self._callers.check_step(opener, self)
            except ShoalError:
                self.__exit__()
                raise

    def __exit__(self, _: object = None, error: BaseException | None = None, trace: object = None) -> None:
        callers = self._callers
        if callers.in_call.get("now") is self:
            del callers.in_call["now"]
            if error is not None and callers.num_acts != self._num_acts and not isinstance(error, EXPECTED):
                callers.interrupt()


@dataclass(frozen=True, slots=True)
class Pass:
    """A backward pass of autograd.

    Attributes:
        begun_by: a thread in which it runs; there may be others.
        number: value of `current` in all its threads, and in no other.
        end: weak reference to an object that autograd holds until the pass ends.
    """

    begun_by: Caller
    number: int
    current: Callable[[], int]
    end: Callable[[], object]

    @property
    def is_over(self) -> bool:
        return self.end() is None

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread belongs to it."""
        return self.begun_by.thread is threading.current_thread() or self.current() == self.number


class Callers:
    """Callers of one peer.

    Attributes:
        pid: of the process that has joined.
        in_call: `now`: the caller that is in a call, if any.
        opener: the caller that opened the last step.
        num_acts: number of irrevocable actions begun; counted where they are performed.
        interrupt: called when an error ends a call after such an action.
    """

    def __init__(self, attempt: Attempt, interrupt: Callable[[], None] = lambda: None) -> None:
        """`attempt`: tells whether a step is open."""
        self._attempt = attempt
        self.num_acts, self.interrupt = 0, interrupt
        self.pid = os.getpid()
        self.in_call: dict[str, Caller] = {}
        self.opener: Caller | None = None
        self._pass: Pass | None = None

    @property
    def is_fork(self) -> bool:
        """Whether this process is a forked child of the one that has joined."""
        return os.getpid() != self.pid

    @property
    def other(self) -> Caller | None:
        """The caller that is in a call, if it is another thread."""
        caller = self.in_call.get("now")
        return None if caller is None or caller.thread is threading.current_thread() else caller

    def check_process(self, call: str) -> None:
        """Raise ShoalError in a forked child."""
        if self.is_fork:
            raise ShoalError(
                f"{call} was called in process {os.getpid()}, a forked child of process {self.pid}, which is the "
                "peer: call it there, or `p2p.join` here to be a peer of its own"
            )

    def call(self, call: str) -> Caller:
        """A context manager for `call` of the calling thread; has no effect within another call.

        Raises:
            ShoalError: on entry, in a forked child, or if another thread is in a call or has a step open.
        """
        return Caller(self, call)

    def check_step(self, opener: Caller, me: Caller) -> None:
        """Raise ShoalError if `opener`, another thread, has a step open to which `me` does not belong."""
        under_way = self._pass
        if not opener.thread.is_alive() or self._attempt.opened_by in (None, OpenedBy.EARLY):
            return
        if opener.call == BACKWARD_CALL and under_way is not None and (under_way.is_over or under_way.is_mine):
            return
        raise _both(me, opener, "has a step open")

    def open_step(self) -> None:
        """Record that the current caller has opened a step."""
        self.opener = self.in_call.get("now")
        if self._pass is not None and self._pass.is_over:
            self._pass = None

    def follow_pass(self, end: Callable[[], None], current: Callable[[], int]) -> Callable[[], None]:
        """Begin a backward pass in the calling thread. Returns `end`, for autograd to hold, and to call at its end.

        Args:
            end: must not be referenced elsewhere.
            current: returns the number of the pass that the calling thread works on.
        """
        self._pass = Pass(Caller(self, BACKWARD_CALL), current(), current, weakref.ref(end))
        return end

    @property
    def is_pass_over(self) -> bool:
        """Whether no backward pass of autograd is running."""
        return self._pass is None or self._pass.is_over

    def check_pass(self, call: str = BACKWARD_CALL) -> None:
        """Raise ShoalError if a backward pass is running and `call` does not come from it."""
        self.check_process(call)
        under_way = self._pass
        if under_way is not None and not under_way.is_mine and not under_way.is_over:
            raise _both(Caller(self, call), under_way.begun_by, "is still running")


def _both(me: Caller, other: Caller, why: str) -> ShoalError:
    return ShoalError(
        f"{me.call} was called in thread {me.thread.name!r}, and {other.call} in thread {other.thread.name!r}, which "
        f"{why}: a peer serves one thread at a time; call it in one, or under a lock"
    )
