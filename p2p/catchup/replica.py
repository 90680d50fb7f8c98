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
"""Lends the state to somebody who has frozen parameters of this digest, or has none: empty."""


class Copies(Protocol):
    """Of states, that are under way."""

    def hold(self) -> None:
        """What the caller does from now on, or has its device do, comes after what was begun has been read."""
        ...

    def end(self) -> None:
        """Return when nothing is under way."""
        ...


class _NoCopies:
    """Of a state that is nothing but its tree."""

    def hold(self) -> None:
        pass

    def end(self) -> None:
        pass


NO_COPIES: Final[Copies] = _NoCopies()

MODEL: Final = "model"
"""The trait that is the layout of a state: it is compared tensor by tensor."""
BUCKETS: Final = "buckets"
"""The trait that is which gradients are summed, and in which parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What a peer trains, for those who give and receive it.

    Attributes:
        traits: of what is trained, and how, which must be the same everywhere; `MODEL` is among them. Empty: no model.
        pack: lends the state, while nothing changes it.
        lender: called by the training thread when the state is complete; makes what lends it to the loop's thread,
            which waits for no copy. None: `pack` does.
        copies: of states that are under way.
        load: takes over a member's state, in the training thread. It raises FrozenDiffer, and changes nothing, if that
            leaves out what is not here.
        compare: says in words how a member's `MODEL` differs from this one.
        show: what a replica is compared by, while it waits for a commit.
        lends: whether what `lender` makes, or `pack`, lends memory, which costs nothing; else it fetches from a device.
        sizes: of its tensors in bytes, when it was offered; not of what `frozen` is the digest of.
        frozen: digest of the frozen parameters as they are now (catchup/frozen.py), for who asks for a seat.
        is_at: whether the script is where those of members were in each of the steps that are shown.
        is_of_other_model: whether a member's state is of a model that this one becomes first, between two steps.
        is_of_other_run: whether a state, given in this lineage, is of another run than this peer has taken part in.
        samples: what a member's state says of the samples that are used up, as `Share.pack` made it.
        digest: of its parameters, as for the step after the last committed one; None: they are not on the host.
        check: why this replica cannot go on, if that of a member, which is shown in this step, is not like it; with
            whether both are of one numerics class.
        keep: what forward passes change, as the step after the last committed one begins with it.
        renew: the operations of the open step, if a state was loaded in the middle of it: the step that it is now, and
            the view in which the one before was committed.
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
    lender: Callable[[], Packer] | None = None
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
        """Of the state, which is complete now; for the training thread."""
        return self.lender() if self.lender is not None else lambda known: self.pack()

    @property
    def trains_model(self) -> bool:
        return bool(self.traits)
