"""Training with little communication: peers take local steps, and exchange what has changed, in rounds that commit.

DiLoCo (Douillard et al. 2023), whose deltas are sent with 4 bits, 1 bit, or a half or an eighth of a bit for each
parameter (collectives/codec.py). All replicas have the same anchor, bit for bit: the parameters as the last round has
left them. What a peer does in a round is its own until that commits: a peer that dies in one costs the others
nothing, and its samples come back.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

import torch

from ...catchup.replica import Replica
from ...checkpoint import Checkpoint, Keeper
from ...data.cutter import check_length
from ...device import HOST
from ...given import check_whole
from ...peer import Peer
from ..beside import Beside
from ..checks.belonging import check_optimizers, claim
from ..checks.by_hand import Given, LocalPasses, given_as, match
from ..checks.copies import ModelCopies
from ..checks.rates import unwrapped
from ..checks.same_settings import SameSettings
from ..checks.unaveraged import Unaveraged
from ..state.changes import OF_ROUNDS, Watch, is_training
from ..state.mirrors import Mirror
from ..state.replica_state import Stateful
from ..steps.buffers import BufferMode, Buffers
from ..steps.gradients import policy
from ..steps.models import AS_ONE, ends_of, name_parts
from ..wrapper import Wrapper, session_of
from .dense import DensePhase
from .exchange import check_room
from .outer import OuterConfig, payload_bytes
from .outer_on_device import outer_of
from .round_state import RoundReplica
from .rounds import Rounds, nonfinite_policy

logger = logging.getLogger("p2p")


class DiLoCo(Wrapper):
    """Wraps a model whose replicas train on their own for a round, and become one at its end.

        model = p2p.DiLoCo(peer, model, optimizer, codec="int4")
        for batch in peer.loader(data, global_batch=96, inner_steps=30):
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    A round ends in the `optimizer.step` on its last batch, which waits until the exchange is committed; where the
    script left that step out (an infinite loss, `continue`, `break`), when it asks for its next batch. Of a slice of
    which a peer has been given only a part, that part counts. With `round_s=` in place of `inner_steps=` it ends when
    its time is over, so each peer makes as many steps as it can, and nobody waits for a slow one.

    Each peer's delta, the anchor less its parameters, is averaged, weighted by its samples, and taken off the anchor as
    an outer optimizer does that, SGD with Nesterov's momentum. Then the parameters are the anchor. What the inner
    optimizer keeps (moments) stays with its peer, and starts anew at a joiner.

    A joiner is given anchor and momentum as a round has left them, and all else as the next one began. It makes rounds
    that count nothing until it has a seat.

    Memory, beside model and optimizer, where they are: 8 bytes per parameter, 8 more with a codec that keeps a
    residual; and while an exchange is under way 4 bytes per parameter and a payload of each member.

    Raises:
        From `optimizer.step`, or from the loop over batches; in dense steps from `loss.backward()`:

        NonFiniteGradient: a parameter has become NaN or infinity on this peer. Nothing of the round was sent, and the
            parameters are as it began.
        OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout, JoinRefused,
            RemoteProtocolError, ShoalError: as `DataParallel`.

    Attributes:
        has_committed: whether the last `optimizer.step`, or request for a batch, ended a round. At the top of the loop
            over batches it is true on all peers after the same rounds: there call what all have to call.
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
            peer: as `p2p.join` made it; nothing has been called on it that needs a seat.
            module: its parameters that need a gradient are float32, bfloat16 or float16, on one device.
            optimizer: of these parameters; any of torch.
            codec: of `collectives.CODECS`: `float32`, `int4` (8 times fewer bytes), `sign` (30), `sparse16` (63),
                `sparse64` (241). What the last three leave out is kept, and added to what is sent next.
            inner_steps: of a round, in a script with a loader of its own; with `peer.loader` it is an argument of that.
            round_s: instead of `inner_steps`: a round ends at the first step that is later than so many seconds after
                the last commit of this peer.
            dense_steps: so many steps come before rounds, in which gradients are averaged in the backward pass, as
                `DataParallel` does it; they take a global batch of `peer.loader` each.
            outer_lr: of the mean of the deltas, so many times is taken off the anchor.
            momentum: of the outer optimizer. Plain averaging is `outer_lr=1, momentum=0`.
            decay: what is left of a residual in the next round.
            extra: what else a joiner must have: schedules, scalers, further optimizers; the same, in the same order, on
                every peer.
            state_digest: how much of anchor and momentum every member shows in each round to be the same: a sixteenth
                (`part`), or `all`.
            nonfinite: what happens to a peer whose parameters are NaN or infinity at the end of a round. None, `raise`:
                `NonFiniteGradient`. `skip`: it adds nothing to the round, and goes on from the anchor.
            buffers: running statistics are averaged in each exchange, over the samples. `mean`: other buffers, too.
                `local`: they are each peer's own.
            checkpoint: where the state is written, as of `DataParallel`.

        Raises:
            TypeError, ValueError: a parameter of another type, on another device, or none at all; a state that cannot
                be sent; no such codec; a number that is out of its range; or no memory for what all members send.
            JoinRefused: the swarm trains another model, or exchanges in another way.
            JoinTimeout, RegistryError, RemovedFromView, QuorumLost: there is no seat for this peer, as `wait_view`.
            ShoalError: as of `DataParallel`.
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
        self._outer = outer_of(session, trained, config)
        device = session.device_of(next(iter(trained.values())))
        if dense_steps and device is not HOST:
            torch.autograd.set_multithreading_enabled(False)  # the commit is waited for by who has called backward
        keeper = None if checkpoint is None else Keeper(checkpoint, peer, self._may_be_kept)
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
                lambda: self._rounds.take_anchor(),
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
            nonfinite=nonfinite_policy(nonfinite),
            is_digested_whole=state_digest == "all",
        )
        self._take_seat(offered, keeper)
        logger.info(
            "an exchange is %d bytes of %s from each peer; with n members each sends it to n - 1 and keeps n of them "
            "until the commit",
            *(payload_bytes(codec, len(self._outer.anchor)), codec),
        )

    def _watched_in_rounds(self, beside: Sequence[Beside], parts: Mapping[str, Stateful]) -> Sequence[Beside]:
        same = SameSettings(parts, lambda: self._rounds.length_s is not None)
        copies = ModelCopies(self.module, parts, lambda: self._session.loop.now())
        return *beside, same, copies, *self._replica.beside

    def _take_seat(self, offered: Replica, keeper: Keeper | None) -> None:
        """Nothing is followed any more if there is none for this peer."""
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
            self._outer.restore()  # all begin with the anchor

    @property
    def has_committed(self) -> bool:
        dense = self._dense_now
        return self._rounds.has_committed if dense is None else dense.passes.has_committed

    @property
    def _dense_now(self) -> DensePhase | None:
        """What makes the open step, if that is a dense one."""
        return self._dense if self._session.share.is_dense else None

    def _may_be_kept(self) -> bool:
        """In the middle of a round, too: what is kept is as that has begun."""
        if self._dense is not None and self._dense.passes.updates.is_due:
            return False
        self._rounds.settle()
        return True

    def _begin_round(self) -> None:
        if self._dense is not None:
            self._dense.passes.end()
            self._dense = None
        self._replica.freeze()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass.

        Args:
            args: of the module.
            kwargs: of the module.

        Returns:
            What the module returns.
        """
        if torch.is_grad_enabled():
            self._rounds.begin_forward(is_training=is_training(self.module))
        if (dense := self._dense_now) is not None:
            return dense.forward(*args, **kwargs)
        return self.module(*args, **kwargs)

    def num_samples(self, number: int) -> None:
        """This peer adds `number` samples in each further `optimizer.step`, as `DataParallel.num_samples`.

        Args:
            number: of what the loss is a mean of.

        Raises:
            ValueError: `number` is negative.
        """
        self._session.share.set_number(number)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes in the block add to `grad`: `DataParallel.no_sync` in dense steps, and nothing in rounds.

        Returns:
            A context manager.
        """
        return self._gradients.no_sync()

    def skip_step(self) -> None:
        """In place of `loss.backward()`: as `DataParallel.skip_step`; in a round the update that comes changes nothing.

        Raises:
            As `DataParallel.skip_step`, in dense steps.
        """
        self._gradients.skip()

    def reduce_gradients(self, gradients: Given) -> Given:
        """In place of `loss.backward()`: as `DataParallel.reduce_gradients`; in a round they are put into `grad`.

        Args:
            gradients: in the order of `module.parameters()`, of all or of those that need a gradient; or by name. None
                where there is none.

        Returns:
            The parameters' `grad`, in the same form; None where nobody had one.

        Raises:
            ValueError: a gradient is of no parameter, or of another shape.
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
        """In the block the parameters are the anchor, which all peers have in common; then they are what they were.

        Buffers are as the round began. For evaluations and copies in the middle of a round, which goes on behind the
        block; between rounds parameters are what all have anyway.

        Yields:
            Nothing.
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
            self._outer.set_parameters(kept)
            self._replica.put_buffers(buffers)
            share.is_anchor_shown = was_shown

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module, under the names that it has there; in the middle of a round with the anchor's values.

        Args:
            args: of the module's.
            kwargs: of the module's.

        Returns:
            What the module's returns; a copy in the middle of a round.
        """
        if not self._rounds.is_amid:
            return self.module.state_dict(*args, **kwargs)
        with self.anchor():
            state = self.module.state_dict(*args, **kwargs)
            return type(state)((name, _copied(value)) for name, value in state.items())


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _watched(module: torch.nn.Module, buffers: BufferMode, make_mirror: Callable[[], Mirror]) -> Sequence[Beside]:
    """What each round, and each dense step, sends of the module beside what has changed."""
    return Buffers(module, buffers, None, make_mirror), Unaveraged(module, {}, make_mirror)


def _check(module: Any, dense_steps: int, state_digest: str, buffers: str) -> None:
    """Raise TypeError for what is no model, ValueError for what is no such setting."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"the model of p2p.DiLoCo is one torch.nn.Module, this is a {type(module).__name__}: {AS_ONE}")
    check_whole(dense_steps=dense_steps)
    if dense_steps < 0:
        raise ValueError(f"dense_steps must be at least 0, is {dense_steps}")
    if state_digest not in ("part", "all"):
        raise ValueError(f"state_digest must be part or all, is {state_digest!r}")
    if buffers not in ("mean", "local"):
        raise ValueError(f"buffers must be mean or local in rounds, is {buffers!r}")


def _describe_lengths(inner_steps: int | None, round_s: float | None, dense_steps: int) -> str:
    """Who exchanges in another way is refused with these words."""
    steps = "" if inner_steps is None else f", {inner_steps} steps each"
    seconds = "" if round_s is None else f", {round_s:g} s each"
    return f"{steps}{seconds}" + (f", after {dense_steps} dense steps" if dense_steps else "")
