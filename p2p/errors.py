"""Errors raised on purpose; the command line prints any of them as one line.

ShoalError
    RemoteProtocolError   a peer broke the protocol; message dropped, state unchanged
    RegistryError         the registry folder cannot be used, or shows that the swarm's state is gone
    LaunchError           `shoal run` or `shoal bench` started nothing
    LabError              there can be no network lab here, or not as requested
    ExperimentError       an experiment cannot be run as it is written; nothing was started
    NetworkError          this peer cannot listen at the given address
    SecurityError         the swarm key cannot be used, or it would not keep strangers out
    JoinRefused           the swarm runs or trains something else; raised on the joiner only
    DatasetRefused        a dataset that no loader can hand out; raised before anything is read of it
    JoinTimeout           too few peers, or no seat, in time; it may continue to wait
    OperationMismatch     peers called different operations; raised on the minority, or on every one of them
    OperationInterrupted  members changed after results were returned before their commit; raised on every peer
    RootLost              the member that was to send a tensor is gone; raised on every peer
    ReplicasDiverged      peers finished one step with different bits, and none can stay; raised on every one of them
    NonFiniteGradient     this peer's gradients are not finite; raised on it only, before it sends them
    QuorumLost            this side must not continue; state kept
    RunEnded              the run that this peer was to join, or was in, is over; exit code 0
    RemovedFromView       the others continue without this peer
    TooSlow               this peer is much slower than the others, which continue without it; exit code 4
    StepTimeout           a step was not committed in time; this peer leaves, the others continue without it
    DeviceLost            this peer's device has failed during an operation; the others continue without it
"""


class ShoalError(Exception):
    """Base of all errors of shoal. The text says what happened, with which values, and what to do, in one line.

    Raised itself for calls that are out of order (another step is open, this peer has left) or not allowed (two threads
    at once, a forked child), for a loop that has failed, and for receipts that cannot be written.

    Attributes:
        is_recoverable: whether the peer that raises it may call the next operation.
    """

    is_recoverable = False


class RemoteProtocolError(ShoalError):
    """A peer has violated the protocol. The message is dropped and counted.

    The error reaches a script only if a state for its model has the right layout, but does not fit.
    """


class RegistryError(ShoalError):
    """The registry folder cannot be used, or the run of the swarm that it describes is over, and its state gone."""


class LaunchError(ShoalError):
    """The command line cannot start what it was asked for. No function of `p2p` raises it."""


class LabError(ShoalError):
    """The network lab cannot be created, or changed as requested. No training peer raises it."""


class ExperimentError(ShoalError):
    """An experiment cannot be run as it is written, or a folder holds no run. No training peer raises it."""


class NetworkError(ShoalError):
    """This peer cannot listen at an address, or an address is invalid."""


class SecurityError(ShoalError):
    """The swarm key cannot be used, or strangers could connect: this peer does not run."""


class JoinRefused(ShoalError):
    """This peer runs or trains something else than the swarm, which continues. Both values are in the text."""


class DatasetRefused(ShoalError, TypeError):
    """A loader was given data that cannot be read by index: an IterableDataset, a DataLoader, a tuple of arrays."""

    is_recoverable = True


class JoinTimeout(ShoalError):
    """This peer has no seat, or step 0 was not committed, in time: too few peers, or no swarm.

    `Peer.wait_view` may be called again to continue waiting. A late step raises `StepTimeout`.
    """

    is_recoverable = True


SAME_ON_ALL = (
    "call the same operation on every peer; where that depends on a count, base it on `peer.done`, which counts "
    "training steps and is the same on all, or on `loader.epoch`, rather than on what `loader.epochs()` gave before a "
    "state of another epoch was loaded, or on a counter of your own, which a joiner begins at 0"
)


HINTS = {
    " (Subset ": "a Subset that is drawn at random needs the same seed on every peer (torch.utils.data.random_split)",
    " all_gather ": "rows of an all_gather have one shape on all peers, but parts of a batch differ in size, and a "
    "joiner is given 2 samples: pad them",
}
"""Likely reasons for a mismatch, by a part of its text."""


class OperationMismatch(ShoalError):
    """Members called different operations. None was run.

    Attributes:
        is_alone: all others call the same, so this peer has left, and they continue. Otherwise the error is raised on
            every member, and the next operation may be called.
        is_recoverable: not `is_alone`.
    """

    def __init__(self, reason: str, *, is_alone: bool = False) -> None:
        outcome = (
            "this peer has left, the run continues" if is_alone else "nothing was summed, and no majority can continue"
        )
        advice = "; ".join([SAME_ON_ALL, *(hint for sign, hint in HINTS.items() if sign in f" {reason} ")])
        super().__init__(f"{reason}; {outcome}: {advice}")
        self.is_alone, self.is_recoverable = is_alone, not is_alone


class OperationInterrupted(ShoalError):
    """A step was given up on all peers before its commit.

    Either results of it had been returned (`commit=False`), and members joined or left, or one withdrew its operations;
    or the script of one continued after an exception had ended its `peer.step` block.

    The error is raised once on every member, by its next call, and no operation of the step counts: repeat all
    operations called since the last commit. It is not raised on the member whose own exception ended the block.
    """

    is_recoverable = True

    def __init__(self, step: int, view_number: int, reason: str) -> None:
        super().__init__(
            f"step {step} was given up in view {view_number}: {reason}; none of it counts, on any peer: "
            f"call again what was called since step {step - 1}"
        )


class RootLost(ShoalError):
    """The root of a broadcast was gone before all had its tensor. The step is committed, without that broadcast.

    The error is raised on every peer alike, after that commit: tensors are as they were, `peer.view` is without that
    member, and all other operations of the step count.
    """

    is_recoverable = True

    def __init__(self, step: int, operation: str) -> None:
        super().__init__(
            f"{operation}: that peer was gone before all had it, so step {step} moved none of it, on any peer; call it "
            "again with a root that is in `peer.view`"
        )


class ReplicasDiverged(ShoalError):
    """Members finished one step with different bits. The step is not committed."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(
            f"{reason}; step {step} is not committed: start again from a checkpoint; nothing that differs between "
            "peers (a schedule by a local loss, a seed, Embedding(max_norm)) may change parameters, and devices must "
            "compute the same bits"
        )


class NonFiniteGradient(ShoalError):
    """This peer has computed NaN or infinity. It has sent none of these values, and the swarm is intact.

    A script that catches the error continues with other samples: this peer then adds none to the step.
    """

    is_recoverable = True


class QuorumLost(ShoalError):
    """Too few members of the view are alive to agree on the next one, now or ever. The state of this peer is kept."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; this side may not continue, since the others might; this peer's state is kept: save it, and "
            "start the peers again"
        )


class RunEnded(ShoalError):
    """The run that this peer was to join, or was in, has ended while it waited. Nothing is lost.

    Raised on a peer that only joins (`shoal run --join`), has observed the run without a seat, was started to replace a
    dead one (`--restarts`), or was removed and returns; on the latter also if another run of the same name has begun
    since, whose state it does not take. A script of several runs (folds) continues with the next one after it.

    Attributes:
        exit_code: of a script that leaves `with p2p.join()` by this error.
    """

    exit_code = 0

    def __init__(self, swarm: str, reason: str = "") -> None:
        super().__init__(reason or f"the run of swarm {swarm} is over, so there is nothing to join")


class RemovedFromView(ShoalError):
    """The others agreed on a view without this peer, and committed steps that it does not know.

    A peer that trains a model returns by itself, unless configured not to, or if it does not find its position in the
    script; after a delay, if it is removed often. A script without a model has to ask for it (`Peer.wait_view`): it
    alone knows whether it needs the results that it has missed.

    Attributes:
        exit_code: of a script that leaves `with p2p.join()` by this error.
        reason: the cause, without advice.
        is_astray: this peer has joined in another phase of the script's loop than the others, and tries again.
        is_final: this peer does not return by itself.
        has_stalled: all had waited for this peer, in a step that was redone repeatedly, since frames were lost.
    """

    exit_code = 3

    def __init__(
        self, reason: str, *, is_astray: bool = False, is_final: bool = False, has_stalled: bool = False
    ) -> None:
        self.is_astray, self.is_final, self.has_stalled = is_astray, is_final, has_stalled
        super().__init__(
            f"{reason}; start this peer again to join as a new member, or, unless it has joined with `rejoin=False`, "
            "call `peer.wait_view` in it"
        )
        self.reason = reason


class TooSlow(ShoalError):
    """This peer is much slower than the others, which wait for it in each step, and is configured to leave then.

    All its steps are committed. The others continue without it.

    Attributes:
        exit_code: of a script that leaves `with p2p.join()` by this error.
    """

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"this peer is the slowest: {reason}; slow_peers is `leave`, so it leaves, and the others continue without "
            "it"
        )


class StepTimeout(ShoalError):
    """A step was not committed within `step_timeout_s`. The text says which members it waits for.

    These members have not called the step's operations, or too few are heard to continue without them; a dead or silent
    member would have been left out. This peer leaves the swarm, which continues without it: join again.
    """


class DeviceLost(ShoalError):
    """The device of this peer raised an error while a tensor of it was copied or added up. The text ends with that.

    Unfinished work does not count: a step counts this peer only if all that it adds had reached the host. This peer
    leaves the swarm, which continues without it; a failed device cannot be used by this process any more: restart it.
    """

    def __init__(self, reason: object) -> None:
        first, _, _ = str(reason).partition("\n")
        super().__init__(f"the device of this peer has failed, so it leaves, and the others continue: {first}")
