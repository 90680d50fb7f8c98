"""What a peer trains, as the training thread offers it to those who give and receive its state: calls, and traits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gossip import View
from gossip.view import NO_NUMERICS

from ..errors import ShoalError
from ..net.parcels import PackedState
from ..net.trees import unpack_tree

Packer = Callable[[bytes], PackedState]
"""Lends the state to a peer whose frozen parameters have this digest; empty: it has none."""


class Copies(Protocol):
    """Copies of states that are in flight."""

    def order_after_copies(self) -> None:
        """Order later work of the caller, and of its device, after the reads of copies that were begun."""
        ...

    def end(self) -> None:
        """Return when no copy is in flight."""
        ...


class _NoCopies:
    """Copies of a state that has no tensors."""

    def order_after_copies(self) -> None:
        pass

    def end(self) -> None:
        pass


NO_COPIES: Final[Copies] = _NoCopies()

MODEL: Final = "model"
"""The trait with the layout of a state, which is compared tensor by tensor."""
BUCKETS: Final = "buckets"
"""The trait with the gradients that are summed, and their division into buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What a peer trains, as donors and observers see it.

    Attributes:
        traits: of what is trained, and how, which must be the same everywhere; `MODEL` is among them. Empty: no model.
        pack: lends the state, while nothing changes it.
        make_packer: called by the training thread when the state is complete; makes a packer for the loop's thread,
            which waits for no copy. None: `pack` is the packer.
        copies: copies of states that are in flight.
        load: takes over a member's state, in the training thread. Raises FrozenDiffer, and changes nothing, if that
            state leaves out frozen parameters which this peer does not have.
        compare: says in words how a member's `MODEL` differs from this one.
        show: bytes by which replicas are compared, while this one waits for a commit.
        lends: whether the packer lends memory, which is free; else it fetches from a device.
        sizes: sizes of the tensors in bytes, when the replica was offered; without frozen parameters.
        frozen: digest of the frozen parameters as they are now (catchup/frozen.py), for a request for a seat.
        is_at: whether the script is where those of members were in each of the shown steps.
        is_of_other_model: whether a member's state is of a form that this model takes first, between two steps.
        is_of_other_run: whether a state, given in this lineage, is of another run than this peer has taken part in.
        samples: what a member's state says of used samples, as `SampleTracker.pack` made it.
        digest: digest of the parameters with which the next step is computed; None: they are not on the host.
        check: why this replica cannot continue, if it differs from a member's, as shown in this step; the last argument
            says whether both are of one numerics class.
        keep: saves what forward passes change, as the next step begins with it.
        renew: new operations for the open step, if a state was loaded in the middle of it; takes the step that it is
            now, and the view in which the step before was committed.
        numerics: the numerics class, without where such hardware came in.
    """

    traits: Mapping[str, bytes]
    pack: Callable[[], PackedState]
    load: Callable[[PackedState], None]
    compare: Callable[[bytes], str]
    show: Callable[[], bytes] = bytes
    check: Callable[[int, bytes, bool], ShoalError | None] = lambda step, shown, is_akin: None
    keep: Callable[[], None] = lambda: None
    renew: Callable[[Sequence[Any], int, View | None], list[Any]] = lambda operations, step, view: [*operations]
    numerics: bytes = NO_NUMERICS
    make_packer: Callable[[], Packer] | None = None
    copies: Copies = NO_COPIES
    digest: Callable[[], bytes] | None = None
    lends: bool = True
    sizes: Sequence[int] = ()
    frozen: Callable[[], bytes] = bytes
    is_at: Callable[[Sequence[bytes]], bool] = lambda shown: True
    is_of_other_model: Callable[[PackedState], bool] = lambda state: False
    is_of_other_run: Callable[[PackedState, bytes], bool] = lambda state, lineage: False
    samples: Callable[[PackedState], Any] = lambda state: unpack_tree(state.tree)

    def packer(self) -> Packer:
        """A packer of the state, which is complete now; for the training thread."""
        return self.make_packer() if self.make_packer is not None else lambda known: self.pack()

    @property
    def trains_model(self) -> bool:
        return bool(self.traits)
