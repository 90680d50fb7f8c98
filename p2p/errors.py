"""Errors raised on purpose; the command line prints any of them as one line.

ShoalError
    RemoteProtocolError   a peer broke the protocol; message dropped, state unchanged
    RegistryError         the registry folder cannot be used, or says that the swarm's state is gone
    LaunchError           nothing was started
    NetworkError          this peer cannot listen where it was told to
    SecurityError         the swarm key cannot be used, or it would not keep strangers out
    JoinRefused           the swarm trains something else; raised on the joiner only
    OperationMismatch     peers called different operations; raised on every one of them
    OperationInterrupted  members changed under results that were handed out before their commit; raised on every peer
    ReplicasDiverged      peers finished one step with different bits; raised on every one of them
    NonFiniteGradient     this peer's gradients are not finite; raised on it only, before it sends them
    QuorumLost            this side may not go on; state kept
    RemovedFromView       the others go on without this peer
    StepTimeout           a step was not committed in time
"""

from gossip.effects import Diverged, Paused, Refused, Removed


class ShoalError(Exception):
    """Says what happened, with which values, and what to do, in one line.

    Attributes:
        goes_on: the peer that raises it may call the next operation.
    """

    goes_on = False


class RemoteProtocolError(ShoalError):
    """A peer sent what no peer of this version sends. The message is dropped and counted."""


class RegistryError(ShoalError):
    """The registry folder cannot be used, or the swarm it describes cannot be joined."""


class LaunchError(ShoalError):
    """`shoal run` was asked for something that it cannot start."""


class NetworkError(ShoalError):
    """This peer cannot listen at an address, or was told of one that is none."""


class SecurityError(ShoalError):
    """The swarm key cannot be used, or strangers would get in: this peer does not run."""


class JoinRefused(ShoalError):
    """The state that this peer can receive is not the one that the swarm trains. The swarm goes on."""


class OperationMismatch(ShoalError):
    """Members called different operations. Nothing was summed.

    Attributes:
        is_alone: this peer had just joined, and its first step was not that of the others. It has left, they go on.
            Otherwise it is raised on every member, and the next operation may be called.
    """

    def __init__(self, reason: str, *, is_alone: bool = False) -> None:
        outcome = (
            "this peer has left the swarm, which goes on" if is_alone else "nothing was summed, the swarm is intact"
        )
        super().__init__(f"{reason}; {outcome}: call the same operation on every peer")
        self.is_alone, self.goes_on = is_alone, not is_alone


class OperationInterrupted(ShoalError):
    """A step was given up on all peers before its commit.

    Either results of it had been handed out (`commit=False`), and members came or went, or one took back what it had
    called; or the script of one went on after an exception had ended its `peer.step` block.

    It is raised once on every member, by whatever it calls next, and nothing of the step counts: call all operations
    again that were called since the last commit.
    """

    goes_on = True

    def __init__(self, step: int, view_number: int, reason: str) -> None:
        super().__init__(
            f"step {step} was given up in view {view_number}: {reason}; none of it counts, on any peer: "
            f"call again what was called since step {step - 1}"
        )


class ReplicasDiverged(ShoalError):
    """Members finished one step with different bits. The step is not committed."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(
            f"{reason}; step {step} is not committed: start again from a checkpoint, "
            "on devices that compute the same bits"
        )


class NonFiniteGradient(ShoalError):
    """This peer has computed NaN or infinity. It has sent none of it, and the swarm is intact."""


class QuorumLost(ShoalError):
    """Too few members of the view are alive to agree on the next one, now or ever."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; this side may not go on, since the others might; "
            "this peer's state is kept: save it, and start the peers again"
        )


class RemovedFromView(ShoalError):
    """The others agreed on a view without this peer, and committed steps that it does not know.

    Who trains a model comes back by itself, unless it was told not to, or is removed all the time. A script without one
    has to ask for it: it alone knows whether it can do without the results that it has missed.
    """

    exit_code = 3

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; start this peer again to join as a new member, or call `peer.wait_view` in it")
        self.reason = reason


class StepTimeout(ShoalError):
    """A step was not committed in time, and nobody is dead."""


def error_of(effect: Refused | Removed | Paused | Diverged) -> ShoalError:
    """What the training thread raises when the core has this to say."""
    match effect:
        case Refused(layout):
            return JoinRefused(layout)
        case Removed(reason):
            return RemovedFromView(reason)
        case Paused(reason=reason):
            return QuorumLost(reason)
        case Diverged(step, reason):
            return ReplicasDiverged(step, reason)
