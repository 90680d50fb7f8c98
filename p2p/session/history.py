"""Committed history as the training thread knows it: changes only when a step commits or a state is loaded."""

import logging
from collections.abc import Callable
from typing import Final

from gossip import Member, View

from ..data.own_data import OwnData
from ..data.sample_tracker import SampleTracker
from ..errors import ShoalError
from ..step.notices import Commit
from ..step.receipts import NUM_COLUMNS, TOOK, Continued, Ledger, Receipt
from ..step.stragglers import StragglerDetector

logger = logging.getLogger("p2p")

NEVER: Final = -2
"""In place of a step: never equal to `History.done`, which is -1 before step 0."""


class History:
    """History of one peer, through all its incarnations.

    Attributes:
        view: of the last committed step; None until this peer has a seat or, if it observes, a state.
        done: the last committed step; -1 before step 0.
        receipt: of the last committed step, if this peer has seen it committed.
        listeners: called with each new view, after the commit that shows it.
        lacks_state: this peer was removed, or has withdrawn a step, and has loaded no state since.
        has_followed: a training step was committed here, or the state after one was loaded.
        num_steps, num_samples: steps committed with this peer on the receipt, and samples that it added to them.
        count_listeners: called when the first step is committed that counts this peer.
        end_listeners: called when no more steps will be committed.
        kept: objects kept alive until then, such as those that follow the script's passes.
        seat_listeners: called with the view and the last committed step that the script begins with.
        own_data: data that no loader provides.
        speeds: of the members.
    """

    def __init__(self, share: SampleTracker, ledger: Ledger | None, speeds: StragglerDetector) -> None:
        """Without committed steps. `share` counts the samples; receipts go to `ledger`, if there is one."""
        self.view: View | None = None
        self.done = -1
        self.receipt: Receipt | None = None
        self.listeners: list[Callable[[View], None]] = []
        self.lacks_state = self.has_followed = False
        self.num_steps = self.num_samples = 0
        self.count_listeners: list[Callable[[], None]] = []
        self.end_listeners: list[Callable[[], None]] = []
        self.kept: set[object] = set()
        self.seat_listeners: list[Callable[[View, int], None]] = []
        self._share = share
        self._ledger = ledger
        self._announced: View | None = None
        self.own_data = OwnData()
        self.speeds = speeds

    def add(self, commit: Commit, me: Member) -> None:
        """Add a committed step; recorded unless `me` received it as an observer."""
        share = self._share
        counts = next((each.result for each in commit.operations if each.collective.is_counts), None)
        receipt = share.apply_receipt(commit.receipt, is_training=counts is not None)
        if counts is not None:
            share.num_trained += 1
            self.has_followed = True
            self._judge(receipt, counts.tolist()[TOOK::NUM_COLUMNS], me)
            if share.is_of_loader:
                self.own_data.use_loader()
            else:
                self.own_data.train(share.contributors, share.num_trained)
                self.own_data.weigh([each.weight for each in receipt.contributions], share.num_trained)
        self.done, self.view, self.receipt = receipt.step, commit.view, receipt
        share.run = share.run or commit.view.lineage  # of a peer that begins without a state
        if commit.view.since(me) is not None:
            if receipt.step > 0:  # step 0 is the start, and has no operation
                self.num_steps += 1
                for listener in self.count_listeners if self.num_steps == 1 else ():
                    listener()
            self.num_samples += receipt.contributions[commit.view.members.index(me)].num_samples
            if self._ledger is not None:
                self._ledger.record(receipt)

    def loaded(self, step: int) -> None:
        """The state after `step` is loaded."""
        self.done, self.lacks_state = step, False
        self.has_followed |= self._share.num_trained > 0

    def show(self, commit: Commit) -> None:
        """Note a step of which this peer has the results, but not the state after it."""
        self.view, self.receipt = commit.view, self._share.apply_receipt(commit.receipt, is_training=False)

    def _judge(self, receipt: Receipt, took_us: list[int], me: Member) -> None:
        """Log a slow member, once: on the first member of the receipt, and on the slow one."""
        members = tuple([(each.peer_id, each.incarnation) for each in receipt.contributions])
        found = self.speeds.committed(self._share.num_trained, members, took_us)
        if found is not None and (me.peer_id, me.incarnation) in (members[0], found.who):
            logger.warning(
                "peer %s is the slowest: %s; the others wait for it in each step (slow_peers='leave' of p2p.join has "
                "such a peer leave)",
                *(found.who[0], found),
            )

    def begin_lineage(self, continued: Continued) -> None:
        """Begin another lineage with the state of this peer: all members have died."""
        self.done, self.lacks_state = -1, False
        if self._ledger is not None:
            self._ledger.begin(continued)

    def known_view(self) -> View:
        """The view; raises ShoalError as long as there is none."""
        if self.view is None:
            raise ShoalError(
                "this peer has no seat yet: construct p2p.DataParallel or p2p.DiLoCo first, or, without a model, call "
                "wait_view"
            )
        return self.view

    def begin(self) -> None:
        """The script takes over the present view; listeners are not called for it."""
        self._announced = self.view
        self.own_data.join(self._share.num_trained if self.done > 0 else 0, self.done)
        if self.view is not None:
            for listener in self.seat_listeners:
                listener(self.view, self.done)

    def announce(self) -> None:
        """Call the listeners if the view has changed. Call this after results were handed out."""
        view, before = self.view, self._announced
        self._announced = view
        if view is not before and view is not None and before is not None and view != before:
            for listener in self.listeners:
                listener(view)

    def follow(self) -> None:
        """Write the flight recorder's records to the ledger, if they are many."""
        if self._ledger is not None:
            self._ledger.follow()

    def close(self) -> None:
        """End: no more steps are committed or recorded."""
        for listener in self.end_listeners:
            listener()
        self.kept.clear()
        if self._ledger is not None:
            self._ledger.close()
