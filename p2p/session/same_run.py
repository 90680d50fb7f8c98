"""Run of a state: a peer that has taken part in one run does not continue in the middle of another.

A run has several lineages if it is continued by an heir, or from a checkpoint. Each of its states names the first one
(`SampleTracker.run`). After the end of a run, other peers may begin a new one, at step 0 and under the same name: a
peer that was stopped meanwhile, or an observer, finds these and is offered their state.
"""

from collections.abc import Callable

from ..catchup.replica import Replica
from ..data.sample_tracker import SampleTracker
from ..data.track import Samples, unpack_samples
from ..errors import RemoteProtocolError, RemovedFromView, RunEnded, ShoalError
from ..net.parcels import PackedState
from ..step.notices import StateOffer
from .history import History


class SameRun:
    """Check of one peer, through all its incarnations."""

    def __init__(
        self,
        swarm: str,
        history: History,
        share: SampleTracker,
        give_up: Callable[[ShoalError], None],
        has_checkpoints: Callable[[], bool] = lambda: False,
    ) -> None:
        """`swarm`: its name; `give_up`: makes this peer leave with an error; `has_checkpoints`: of its script."""
        self._swarm, self._history, self._share, self._give_up = swarm, history, share, give_up
        self._has_checkpoints = has_checkpoints

    def is_other(self, replica: Replica, state: PackedState, lineage: bytes) -> bool:
        """Whether `state`, of a member of `lineage`, belongs to another run than the one this peer has taken part in.

        For any thread. A state that does not name its run is of the same one.
        """
        return self._other(replica, state, lineage) is not None

    def check(self, replica: Replica, offer: StateOffer) -> None:
        """If so, leave and raise RunEnded, or RemovedFromView if its members may be about to load a checkpoint."""
        other = self._other(replica, offer.state, offer.view.lineage)
        if other is None:
            return
        over: ShoalError = RunEnded(
            self._swarm,
            f"the run of this peer, after {self._share.num_trained} steps of training, is over or elsewhere, and "
            f"another run of swarm {self._swarm} is under way, after {other.num_trained}; this peer does not join it: "
            "start it again to take part",
        )
        if self._has_checkpoints() and not other.num_trained:  # a restarted process would be one of these members
            over = RemovedFromView(
                f"no member is left of the run of this peer, after {self._share.num_trained} steps of training; others "
                f"of swarm {self._swarm} begin, and may continue from a checkpoint, so this script has to begin again, "
                "too",
                is_final=True,
            )
        self._give_up(over)
        raise over

    def _other(self, replica: Replica, state: PackedState, lineage: bytes) -> Samples | None:
        """The samples in the state of another run, or None; a script without a model has no state to lose."""
        if not (self._history.has_followed and self._share.run and replica.trains_model):
            return None
        try:
            theirs = unpack_samples(replica.samples(state))
        except RemoteProtocolError:
            return None  # loading it will fail
        return None if (theirs.run or lineage) == self._share.run else theirs  # before step 0 the run is that lineage
