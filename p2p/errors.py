"""Errors raised on purpose; the command line prints any of them as one line.

ShoalError
    RemoteProtocolError   a peer broke the protocol; message dropped, state unchanged
    RegistryError         the registry folder cannot be used, or says that the swarm's state is gone
    LaunchError           `shoal run` or `shoal bench` started nothing
    LabError              there can be no network lab here, or not what it was asked for
    ExperimentError       an experiment cannot be run as it is written; nothing was started
    NetworkError          this peer cannot listen where it was told to
    SecurityError         the swarm key cannot be used, or it would not keep strangers out
    JoinRefused           the swarm runs or trains something else; raised on the joiner only
    DatasetRefused        a dataset that no loader can hand out; raised before anything is read of it
    JoinTimeout           nobody came, or gave this peer a seat, in time; it may go on waiting
    OperationMismatch     peers called different operations; raised on who differs from most, or on every one of them
    OperationInterrupted  members changed under results that were handed out before their commit; raised on every peer
    RootLost              the member that was to hand a tensor out is gone; raised on every peer
    ReplicasDiverged      peers finished one step with different bits, and none can stay; raised on every one of them
    NonFiniteGradient     this peer's gradients are not finite; raised on it only, before it sends them
    QuorumLost            this side may not go on; state kept
    RunEnded              the run that this peer was to join, or was in, is over; exit code 0
    RemovedFromView       the others go on without this peer
    TooSlow               this peer is much slower than the others, who go on without it; exit code 4
    StepTimeout           a step was not committed in time; this peer leaves, the others go on without it
    DeviceLost            this peer's device has failed in the middle of something; the others go on without it
"""


class ShoalError(Exception):
    """What happened, with which values, and what to do, in one line. The base of all errors of shoal.

    Raised itself for calls that are out of order (another step is open, this peer has left) or from where none may
    come (two threads at once, a forked child), for a loop that has failed, and for receipts that cannot be written.

    Attributes:
        goes_on: whether the peer that raises it may call the next operation.
    """

    goes_on = False


class RemoteProtocolError(ShoalError):
    """A peer sent what no peer of this version sends. The message is dropped and counted.

    A script is told only where a state for its model has the right layout, and does not fit it all the same.
    """


class RegistryError(ShoalError):
    """The registry folder cannot be used, or the run of the swarm that it describes is over, and its state gone."""


class LaunchError(ShoalError):
    """The command line was asked for something that it cannot start. No function of `p2p` raises it."""


class LabError(ShoalError):
    """The network lab cannot be made, or changed as it was asked to. No training peer raises it."""


class ExperimentError(ShoalError):
    """An experiment cannot be run as it is written, or a folder holds no run. No training peer raises it."""


class NetworkError(ShoalError):
    """This peer cannot listen at an address, or was given one that is none."""


class SecurityError(ShoalError):
    """The swarm key cannot be used, or strangers would get in: this peer does not run."""


class JoinRefused(ShoalError):
    """This peer runs or trains something else than the swarm, which goes on. Both values are in the text."""


class DatasetRefused(ShoalError, TypeError):
    """A loader was given what it cannot hand out by number: an IterableDataset, a DataLoader, a tuple of arrays."""

    goes_on = True


class JoinTimeout(ShoalError):
    """This peer has no seat, or step 0 was not committed, in time: too few peers, or no swarm.

    `Peer.wait_view` may be called again, and goes on waiting. A step that is late is a `StepTimeout`.
    """

    goes_on = True


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
"""What is mostly the reason where this is in the text."""


class OperationMismatch(ShoalError):
    """Members called different operations. Nothing was summed.

    Attributes:
        is_alone: the others call the same, so this peer has left, and they go on. Otherwise it is raised on every
            member, and the next operation may be called.
        goes_on: not `is_alone`.
    """

    def __init__(self, reason: str, *, is_alone: bool = False) -> None:
        outcome = "this peer has left, the run goes on" if is_alone else "nothing was summed, and no majority can go on"
        advice = "; ".join([SAME_ON_ALL, *(hint for sign, hint in HINTS.items() if sign in f" {reason} ")])
        super().__init__(f"{reason}; {outcome}: {advice}")
        self.is_alone, self.goes_on = is_alone, not is_alone


class OperationInterrupted(ShoalError):
    """A step was given up on all peers before its commit.

    Either results of it had been handed out (`commit=False`), and members came or went, or one took back what it had
    called; or the script of one went on after an exception had ended its `peer.step` block.

    The error is raised once on every member, by whatever it calls next, and nothing of the step counts: call all
    operations again that were called since the last commit. Whose own exception ended the block is not told again.
    """

    goes_on = True

    def __init__(self, step: int, view_number: int, reason: str) -> None:
        super().__init__(
            f"step {step} was given up in view {view_number}: {reason}; none of it counts, on any peer: "
            f"call again what was called since step {step - 1}"
        )


class RootLost(ShoalError):
    """The root of a broadcast was gone before all had its tensor. The step is committed, and nothing was moved in it.

    The error is raised on every peer alike, after that commit: tensors are as they were, `peer.view` is without that
    member, and all other operations of the step count.
    """

    goes_on = True

    def __init__(self, step: int, operation: str) -> None:
        super().__init__(
            f"{operation}: that peer was gone before all had it, so step {step} has moved nothing of it, on any peer; "
            "call it again with a root that is in `peer.view`"
        )


class ReplicasDiverged(ShoalError):
    """Members finished one step with different bits. The step is not committed."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(
            f"{reason}; step {step} is not committed: start again from a checkpoint, where nothing changes parameters "
            "that is not the same on all peers (a schedule by a local loss, a seed, Embedding(max_norm)), and devices "
            "compute the same bits"
        )


class NonFiniteGradient(ShoalError):
    """This peer has computed NaN or infinity. It has sent none of it, and the swarm is intact.

    A script that catches it goes on with other samples: this peer then adds none to the step.
    """

    goes_on = True


class QuorumLost(ShoalError):
    """Too few members of the view are alive to agree on the next one, now or ever. The state of this peer is kept."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; this side may not go on, since the others might; "
            "this peer's state is kept: save it, and start the peers again"
        )


class RunEnded(ShoalError):
    """The run that this peer was to join, or was in, has ended while it waited. Nothing is lost.

    Of a peer that only joins (`shoal run --join`), has observed the run without a seat, was started in the place of one
    that had died (`--restarts`), or was removed, and comes back; of the latter also where another run of the same name
    has begun since, whose state it does not take. A script of several runs (folds) goes on with the next one behind it.

    Attributes:
        exit_code: of a script that leaves `with p2p.join()` by this error.
    """

    exit_code = 0

    def __init__(self, swarm: str, reason: str = "") -> None:
        super().__init__(reason or f"the run of swarm {swarm} is over, so there is nothing to join")


class RemovedFromView(ShoalError):
    """The others agreed on a view without this peer, and committed steps that it does not know.

    A peer that trains a model comes back by itself, unless it was told not to, or looks for its place in vain; after a
    while, if it is removed often. A script without one has to ask for it (`Peer.wait_view`): it alone knows whether it
    can do without the results that it has missed.

    Attributes:
        exit_code: of a script that leaves `with p2p.join()` by this error.
        reason: why, without what to do.
        is_astray: it has joined in another phase of the script's loop than that of the others, and tries again.
        is_final: it does not come back by itself.
        has_stalled: all had waited for it, in a step that was done over again and again, since frames were lost.
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
    """This peer is much slower than the others, who wait for it in each step, and was told to leave then.

    All its steps are committed. The others go on without it.

    Attributes:
        exit_code: of a script that leaves `with p2p.join()` by this error.
    """

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"this peer is the slowest: {reason}; slow_peers is `leave`, so it leaves, and the others go on without it"
        )


class StepTimeout(ShoalError):
    """A step was not committed within `step_timeout_s`. The text says which members it waits for.

    These members have not called the step's operations, or too few can be heard to go on without them; a member that
    is dead or silent would have been left out. This peer leaves the swarm, which goes on without it: join again.
    """


class DeviceLost(ShoalError):
    """The device of this peer raised an error while a tensor of it was copied or added up. The text ends with that.

    What it had begun counts nowhere: a step counts this peer only if all that it adds was on the host before. This peer
    leaves the swarm, which goes on without it; a device that has failed is of no use to this process: start it again.
    """

    def __init__(self, reason: object) -> None:
        first, _, _ = str(reason).partition("\n")
        super().__init__(f"the device of this peer has failed, so it leaves, and the others go on: {first}")
