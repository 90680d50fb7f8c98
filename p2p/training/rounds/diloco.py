"""Training with little communication: peers take local steps, and exchange their deltas in rounds that commit.

DiLoCo (Douillard et al. 2023), with deltas of 4 bits, 1 bit, or a half or an eighth of a bit per parameter
(collectives/codec.py). All replicas have the same anchor, bit for bit: the parameters at the end of the last round. The
work of a peer in a round stays local until the round commits: if the peer dies before, the others lose no work, and its
samples come back.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

import torch

from ...catchup.replica import Replica
from ...checkpoint import Checkpoint, Checkpointer
from ...data.cutter import check_length
from ...device import HOST
from ...given import check_whole
from ...peer import Peer
from ..checks.belonging import check_optimizers, claim
from ..checks.by_hand import Given, LocalPasses, given_as, match
from ..checks.copies import ModelCopies
from ..checks.rates import unwrapped
from ..checks.same_settings import SameSettings
from ..checks.unaveraged import Unaveraged
from ..side_operations import SideOperations
from ..state.changes import OF_ROUNDS, Watch, is_training
from ..state.mirrors import Mirror
from ..state.replica_state import Stateful
from ..steps.buffers import BufferMode, Buffers
from ..steps.models import AS_ONE, ends_of, name_parts
from ..steps.reducer import policy
from ..wrapper import Wrapper, session_of
from .dense import DensePhase
from .exchange import check_room
from .outer import OuterConfig, payload_bytes
from .outer_on_device import make_outer_optimizer
from .round_state import RoundReplica
from .rounds import Rounds

logger = logging.getLogger("p2p")


class DiLoCo(Wrapper):
    """Wraps a model whose replicas train locally during a round, and are equal again at its end.

        model = p2p.DiLoCo(peer, model, optimizer, codec="int4")
        for batch in peer.loader(data, global_batch=96, inner_steps=30):
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    A round ends in the `optimizer.step` on its last batch, which waits until the exchange is committed; if the script
    skips that step (an infinite loss, `continue`, `break`), at its request for the next batch. If a peer has received
    only a part of its slice by then, that part counts. With `round_s=` in place of `inner_steps=` a round ends after a
    time, so each peer makes as many steps as it can, and no peer waits for a slow one.

    The deltas of all peers, anchor minus parameters, are averaged, weighted by samples, and an outer optimizer (SGD
    with Nesterov's momentum) subtracts the mean from the anchor. The parameters are then set to the anchor. The state
    of the inner optimizer (moments) stays local to its peer; a joiner starts without.

    A joiner receives anchor and momentum as of the end of a round, and all other state as of the start of the next.
    Its rounds count no samples until it has a seat.

    Memory, in addition to model and optimizer and on their device: 8 bytes per parameter, 8 more with a codec that
    keeps a residual; and during an exchange 4 bytes per parameter and a payload of each member.

    Raises:
        From `optimizer.step`, or from the loop over batches; in dense steps from `loss.backward()`:

        NonFiniteGradient: a parameter has become NaN or infinity on this peer. No data of the round was sent, and the
            parameters are as at its start.
        OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout, JoinRefused,
            RemoteProtocolError, ShoalError: as `DataParallel`.

    Attributes:
        has_committed: whether the last `optimizer.step`, or request for a batch, ended a round. At the top of the loop
            over batches it is true on all peers after the same rounds: make collective calls there.
        module: the model.
    """

    def __init__(
        self,
        peer: Peer,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        codec: str = "int4",
        inner_steps: int | None = None,
        round_s: float | None = None,
        dense_steps: int = 0,
        outer_lr: float = 0.7,
        momentum: float = 0.5,
        decay: float = 1.0,
        extra: Sequence[Stateful] = (),
        state_digest: Literal["part", "all"] = "part",
        nonfinite: Literal["raise", "skip"] | None = None,
        buffers: Literal["mean", "local"] = "mean",
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Take a seat in the swarm of `peer`, and wait for it as `Peer.wait_view` does.

        Args:
            peer: from `p2p.join`; before any call on it that needs a seat.
            module: its parameters that need a gradient are float32, bfloat16 or float16, on one device.
            optimizer: of these parameters; any of torch.
            codec: of `collectives.CODECS`: `float32`, `int4` (8 times fewer bytes), `sign` (30), `sparse16` (63),
                `sparse64` (241). The last three keep the part that is not sent, and add it to the next round.
            inner_steps: of a round, in a script with its own loader; with `peer.loader` it is an argument of that.
            round_s: instead of `inner_steps`: a round ends at the first step later than this many seconds after the
                last commit of this peer.
            dense_steps: the number of steps before the first round, in which gradients are averaged in the backward
                pass, as in `DataParallel`; each takes a global batch of `peer.loader`.
            outer_lr: the multiple of the mean delta that is subtracted from the anchor.
            momentum: of the outer optimizer. Plain averaging is `outer_lr=1, momentum=0`.
            decay: the factor by which a residual is carried to the next round.
            extra: other state that a joiner needs: schedules, scalers, further optimizers; the same, in the same order,
                on every peer.
            state_digest: the share of anchor and momentum that members compare in each round: a sixteenth (`part`), or
                `all`.
            nonfinite: policy for a peer whose parameters are NaN or infinity at the end of a round. None, `raise`:
                `NonFiniteGradient`. `skip`: it adds no samples to the round, and continues from the anchor.
            buffers: running statistics are averaged in each exchange, over the samples. `mean`: other buffers, too.
                `local`: other buffers stay local to each peer.
            checkpoint: where the state is written, as in `DataParallel`.

        Raises:
            TypeError, ValueError: a parameter of another type, on another device, or none at all; a state that cannot
                be sent; an unknown codec; a number out of its range; or too little memory for the payloads of all
                members.
            JoinRefused: the swarm trains another model, or exchanges in another way.
            JoinTimeout, RegistryError, RemovedFromView, QuorumLost: this peer gets no seat, as in `wait_view`.
            ShoalError: as `DataParallel`.
        """
        super().__init__()
        session = self._session = session_of(peer, checkpoint, "p2p.DiLoCo")
        config = OuterConfig(codec=codec, outer_lr=outer_lr, momentum=momentum, decay=decay)
        check_length(inner_steps, round_s)
        _check(module, dense_steps, state_digest, buffers)
        self.module = module
        parts = name_parts({"": unwrapped(optimizer)}, extra)
        check_optimizers(module, parts)
        trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self._outer = make_outer_optimizer(session, trained, config)
        device = session.device_of(next(iter(trained.values())))
        if dense_steps and device is not HOST:
            torch.autograd.set_multithreading_enabled(False)  # the thread that calls backward waits for the commit
        keeper = None if checkpoint is None else Checkpointer(checkpoint, peer, self._may_be_kept)
        strategy = f"rounds of local steps, {state_digest} of the anchor compared, buffers {buffers}"
        strategy += _describe_lengths(inner_steps, round_s, dense_steps)
        beside = _watched(module, buffers, partial(Mirror, session, device))
        self._trained = frozenset(trained.values())
        self._local = LocalPasses(trained.values())
        watch = Watch(module, trained.values(), OF_ROUNDS)
        session.share.dense_steps, session.share.schedule_ends = dense_steps, ends_of(parts)
        self._dense: DensePhase | None = None
        if dense_steps:
            self._dense = DensePhase(
                session,
                module,
                parts,
                watch,
                beside,
                lambda: self._rounds.reset_anchor(),
                nonfinite=policy(nonfinite, extra),
                is_digested_whole=state_digest == "all",
            )
        self._replica = RoundReplica(
            module, self._outer, parts, keeper, session, strategy, self._dense, device, lambda: self._rounds.loaded()
        )
        offered = self._replica.offered()
        self._rounds = Rounds(
            session,
            self._outer,
            watch,
            self._watched_in_rounds(beside, parts),
            parts,
            self._begin_round,
            self._replica.put_buffers,
            inner_steps=inner_steps,
            round_s=round_s,
            nonfinite=_nonfinite(nonfinite),
            is_digested_whole=state_digest == "all",
        )
        self._take_seat(offered, keeper)
        logger.info(
            "each peer sends %d bytes of %s in an exchange; with n members it sends them to n - 1 others, and keeps n "
            "such payloads until the commit",
            *(payload_bytes(codec, len(self._outer.anchor)), codec),
        )

    def _watched_in_rounds(
        self, beside: Sequence[SideOperations], parts: Mapping[str, Stateful]
    ) -> Sequence[SideOperations]:
        same = SameSettings(parts, lambda: self._rounds.length_s is not None)
        copies = ModelCopies(self.module, parts, lambda: self._session.loop.now())
        return *beside, same, copies, *self._replica.beside

    def _take_seat(self, offered: Replica, keeper: Checkpointer | None) -> None:
        """Take the seat; on failure, stop following optimizers and passes."""
        try:
            claim(self.module.named_parameters(), self._rounds.is_in_use)
            (self._session.take_seat if keeper is None else keeper.take_seat)(offered)
            check_room(self._session, self._outer.config.codec, len(self._outer.anchor))
        except BaseException:
            self._rounds.end_use()
            if self._dense is not None:
                self._dense.passes.end()
            raise
        if not self._session.share.is_dense:
            self._outer.restore()  # all start from the anchor

    @property
    def has_committed(self) -> bool:
        dense = self._dense_now
        return self._rounds.has_committed if dense is None else dense.passes.has_committed

    @property
    def _dense_now(self) -> DensePhase | None:
        """The dense phase, if the open step belongs to it."""
        return self._dense if self._session.share.is_dense else None

    def _may_be_kept(self) -> bool:
        """Whether a checkpoint may be written now. Within a round it holds the state at the start of that round."""
        if (dense := self._dense) is not None and not (
            dense.passes.updates.are_whole and not dense.passes.updates.is_due
        ):
            return False
        self._rounds.refresh_snapshot()
        return not self._rounds.is_torn

    def _begin_round(self) -> None:
        if self._dense is not None:
            self._dense.passes.end()
            self._dense = None
        self._replica.freeze()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward pass.

        Args:
            args: passed to the module.
            kwargs: passed to the module.

        Returns:
            The module's output.
        """
        if torch.is_grad_enabled():
            self._rounds.begin_forward(is_training=is_training(self.module))
        if (dense := self._dense_now) is not None:
            return dense.forward(*args, **kwargs)
        return self.module(*args, **kwargs)

    def num_samples(self, number: int) -> None:
        """Set the number of samples of each further `optimizer.step` of this peer, as `DataParallel.num_samples`.

        Args:
            number: of the units that the loss is a mean of.

        Raises:
            ValueError: `number` is negative.
        """
        self._session.share.set_number(number)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes in the block add to `grad`: in dense steps as `DataParallel.no_sync`, in rounds locally.

        Returns:
            A context manager.
        """
        return self._gradients.no_sync()

    def skip_step(self) -> None:
        """Replaces `loss.backward()`, as `DataParallel.skip_step`; in a round it clears `grad` for the next update.

        Raises:
            As `DataParallel.skip_step`, in dense steps.
        """
        self._gradients.skip()

    def reduce_gradients(self, gradients: Given) -> Given:
        """Replaces `loss.backward()`, as `DataParallel.reduce_gradients`; in a round they are put into `grad`.

        Args:
            gradients: in the order of `module.parameters()`, of all or of those that need a gradient; or by name. None
                for a parameter without one.

        Returns:
            The parameters' `grad`, in the same form; None for a parameter without a gradient on any member.

        Raises:
            ValueError: a gradient matches no parameter, or has another shape.
            As `DataParallel.reduce_gradients`, in dense steps.
        """
        matched = match(dict(self.module.named_parameters()), self._trained, gradients)
        self._gradients.take(matched)
        is_there = self.has_committed or not self._session.share.is_dense
        return given_as(gradients, {name: each.grad if is_there else None for name, (each, _) in matched.items()})

    @property
    def _gradients(self) -> DensePhase | LocalPasses:
        return self._dense_now or self._local

    @contextmanager
    def anchor(self) -> Iterator[None]:
        """Set the parameters to the anchor in the block, which is equal on all peers; then restore them.

        Buffers are set to their values at the start of the round. For evaluations and copies in the middle of a round,
        which continues after the block; between rounds parameters equal the anchor anyway.

        Yields:
            None.
        """
        if not self._rounds.is_amid:
            yield
            return
        share, kept = self._session.share, self._outer.copy_parameters()
        was_shown, share.is_anchor_shown = share.is_anchor_shown, True
        self._outer.restore()
        buffers = self._replica.put_buffers()
        try:
            yield
        finally:
            if self._rounds.is_amid:  # else this peer has left in the block
                self._outer.set_parameters(kept)
                self._replica.put_buffers(buffers)
            share.is_anchor_shown = was_shown

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the module, with its own names; in the middle of a round with the values of the anchor.

        Args:
            args: passed to `module.state_dict`.
            kwargs: passed to `module.state_dict`.

        Returns:
            The result of `module.state_dict`; a copy in the middle of a round.
        """
        if not self._rounds.is_amid:
            return self.module.state_dict(*args, **kwargs)
        with self.anchor():
            state = self.module.state_dict(*args, **kwargs)
            for name, value in state.items():  # in place: it also has the versions of layers
                state[name] = _copied(value)
            return state


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _watched(
    module: torch.nn.Module, buffers: BufferMode, make_mirror: Callable[[], Mirror]
) -> Sequence[SideOperations]:
    """The side operations of each round and of each dense step, for the module."""
    return Buffers(module, buffers, None, make_mirror), Unaveraged(module, {}, make_mirror)


def _check(module: Any, dense_steps: int, state_digest: str, buffers: str) -> None:
    """Raise TypeError if `module` is no model, ValueError for an invalid setting."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"the model of p2p.DiLoCo must be one torch.nn.Module, is a {type(module).__name__}: {AS_ONE}")
    check_whole(dense_steps=dense_steps)
    if dense_steps < 0:
        raise ValueError(f"dense_steps must be at least 0, is {dense_steps}")
    if state_digest not in ("part", "all"):
        raise ValueError(f"state_digest must be part or all, is {state_digest!r}")
    if buffers not in ("mean", "local"):
        raise ValueError(f"buffers must be mean or local in rounds, is {buffers!r}")


def _describe_lengths(inner_steps: int | None, round_s: float | None, dense_steps: int) -> str:
    """The lengths of rounds in words, for the message that refuses a peer with other lengths."""
    steps = "" if inner_steps is None else f", {inner_steps} steps each"
    seconds = "" if round_s is None else f", {round_s:g} s each"
    return f"{steps}{seconds}" + (f", after {dense_steps} dense steps" if dense_steps else "")


def _nonfinite(policy: Any) -> Literal["raise", "skip"]:
    """The policy for a round that ends with parameters that are not finite; see `DiLoCo`."""
    if policy not in (None, "raise", "skip"):
        raise ValueError(f"nonfinite must be raise or skip, is {policy!r}")
    return "skip" if policy == "skip" else "raise"
