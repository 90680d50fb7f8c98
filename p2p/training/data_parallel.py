"""Data-parallel training whose steps commit: averages gradients over the samples of all members of the view.

Gradients are copied into buckets as backward produces them, and each bucket is summed while backward continues; `grad`
is None from the copy to the commit. The end of backward waits until the step is committed, so optimizers see committed
gradients only, and if a member dies before that, the survivors only sum the contents of the buckets again.

A commit yields the mean of the gradients that the members computed, each weighted by its number of samples. If each
loss is a mean over samples, that is the gradient of one process with all these samples in one batch. A step may have
several backward passes, of which the last ends it:

- micro-batches of `peer.loader(max_local_batch=n)` are averaged, weighted by their samples, as one larger batch;
- passes under `no_sync` are summed in `grad`, scaled by the script; the sums are averaged, weighted by their samples.

`grad` is None if no counted member had a gradient, so that optimizers skip the parameter: it was frozen during the run,
or is unused in this step. (Also after `zero_grad(set_to_none=False)`, where one process has zeros.) After a commit
`grad` lies in the arena, which other peers of the host can read and forked children cannot.

Parameters may be on a CUDA device; backward then runs in the calling thread. That was never tried on a GPU. Leaves out
optimizers that call backward several times in a step (LBFGS).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch

from collectives import ALGORITHMS

from ..checkpoint import Checkpoint, Checkpointer
from ..device import HOST
from ..peer import Peer
from .checks.belonging import claim
from .checks.by_hand import Given, given_as
from .checks.copies import ModelCopies
from .checks.same_extra import SameExtra
from .checks.same_samples import SameSamples
from .checks.unaveraged import Unaveraged
from .side_operations import SideOperations
from .state.mirrors import Mirror
from .state.model_changes import NOTHING_PLANNED, Change, ModelChanges
from .state.replica_state import Stateful
from .steps.buffers import BufferMode, Buffers
from .steps.models import OneOfSeveral, collect_models, ends_of, name_parts
from .steps.passes import Passes
from .steps.reducer import GradientReducer, NonFinite, policy
from .steps.replica import ModelReplica
from .steps.resync import Resynchronisation
from .steps.scaling import LrScaling
from .steps.updates import Updates
from .tensors.buckets import BUCKET_BYTES
from .wrapper import Wrapper, session_of


class DataParallel(Wrapper):
    """Wraps a model whose replicas train together, or several models that are trained in turn.

    Several models are called by name, and share one seat and one state:

        model = p2p.DataParallel(peer, {"G": g, "D": d}, {"G": optimizer_g, "D": optimizer_d})
        loss = criterion(model["D"](model["G"](noise)), real)

    A backward pass sums the gradients of the models that it reaches, which must be the same on all peers; the other
    models keep their `grad`, and their optimizers have no new gradients.

    Construction asks for a seat; a peer that joins a running swarm replaces its replica by the swarm's. Running
    statistics (BatchNorm) are averaged at each commit. If a script catches an error of a backward pass, the peer adds
    no samples to the step so far; its next forward and backward pass, on other samples, take part in the same step.
    The end of `loss.backward()` waits until the step is committed, `step_timeout_s` at most.

    Memory: twice the bytes of the gradients, `grad` included, in the arena while it has room (`arena_bytes`), where
    other peers of the host read them; once more if messages need it. A member that feeds an observer holds a copy of
    the state while it sends it, and up to 256 MiB of results, or of 4 steps; the observer up to 1 GiB, or 8 steps.
    Each member sends as much per step as an `all_reduce` of all gradients, and 40 bytes for the samples.

    Raises:
        From `loss.backward()`; ShoalError also from `optimizer.step`, if it is called between the passes of a step.
        `grad` is then None, or the local sum of this process.

        NonFiniteGradient: this peer has computed NaN or infinity, and has sent none of it.
        TypeError: a gradient is sparse, and not that of an embedding layer.
        OperationMismatch: another member has called another operation; raised on every member.
        QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout, TooSlow: this peer cannot continue.
        DeviceLost: the device of the model has failed; this peer has left, the others continue.
        JoinRefused: this peer observes, and its replica differs from those of the members; the message says how.
        RemoteProtocolError: this peer received a state that does not fit its replica.
        ShoalError: backward was called again for one batch, or one `optimizer.step`; this peer has left; or the model
            has other parameters, or names in its `state_dict`, than when it was wrapped, which is detected in the
            next step: call `refresh` before that.

    Attributes:
        has_committed: whether the last backward pass ended a step. If not, as after a micro-batch of `peer.loader`,
            `grad` is None, so `optimizer.step` does nothing; other objects that count steps (a schedule, a
            GradScaler) must be called only if this is true.
        lr_factor: the factor of `lr_scaling` for the last committed step, by which its update multiplies the rates of
            the script. 1 without `lr_scaling`.
    """

    def __init__(
        self,
        peer: Peer,
        module: torch.nn.Module | Mapping[str, torch.nn.Module],
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        *,
        extra: Sequence[Stateful] = (),
        bucket_bytes: int = BUCKET_BYTES,
        algorithm: str | None = None,
        state_digest: Literal["part", "all"] = "part",
        nonfinite: NonFinite | None = None,
        buffers: BufferMode = "check",
        allow_local: bool = False,
        lr_scaling: Literal["linear", "sqrt"] | None = None,
        lr_batch: int | None = None,
        checkpoint: Checkpoint | None = None,
        changes: Mapping[int, Change] = NOTHING_PLANNED,
    ) -> None:
        """Take a seat in the swarm of `peer`, and wait for it as `Peer.wait_view` does.

        The order matters: first create the model, on its device and in its types, the optimizer and all of `extra`;
        then this wrapper; then take a batch of a loader, or call any operation. A peer has one wrapper, which asks for
        the seat. Parameters, buffers and states of the optimizer and `extra` are then the swarm's, so values derived
        from them before are stale.

        Args:
            peer: from `p2p.join`; before any call on it that needs a seat.
            module: its parameters that need a gradient are float32, float64, float16 or bfloat16, on one device. Names,
                shapes, strides and types in `module.state_dict()`, and their order, are the same on every peer.
                Gradients have the strides of their parameters. Several models, by name, share no parameter.
            optimizer: of these parameters; for several models, one each by the same names, or one for several models
                by another name.
            extra: other state that changes parameters and that a joiner needs: schedules, scalers, further optimizers,
                averages; the same, in the same order, on every peer. The log names a copy of the model that is missing
                here and changes.
            bucket_bytes: approximate size of the operations that sum gradients, each of one type.
            algorithm: of `collectives.ALGORITHMS`; None: by size.
            state_digest: the share of the parameters that members compare per step: a sixteenth (`part`), or `all`.
                Costs one more read of that share, and 16 bytes sent.
            nonfinite: policy for NaN or infinity in a peer's own gradients. `raise`: `NonFiniteGradient` in its
                backward pass, before any of it is sent. `skip`: the peer adds no samples to the step, as with
                `skip_step`: its samples of a loader are used up, left out, and named in the log. The step is redone
                without them, which takes some milliseconds; if no member adds samples, `grad` is None. `allow`: they
                are averaged unchanged. None: `raise`, or `allow` if `extra` has a GradScaler, which has to see them.
            buffers: policy for buffers other than running statistics. `check`: all are compared within 16 steps, and
                the log names the first that differs. `mean`: they are averaged over the samples, as running statistics
                are (right for means, not for maxima); integers stay. `rank0`: they become those of rank 0. `local`: no
                exchange; the script may synchronise them.
            allow_local: `optimizer.step` may use gradients that were not committed, which updates this replica alone.
            lr_scaling: learning rates scale with the samples counted in a step, divided by `lr_batch`: `linear`, or by
                the square root (`sqrt`), for Adam and similar. Use it with `batch_per_peer` of `peer.loader`, where
                that number grows with the members. The factor follows from the receipt and applies to the rates of
                all optimizers only during their updates, so schedules are unaffected. Weights that the script sets
                (`num_samples`) count in place of samples. The same on every peer.
            lr_batch: the number of samples per step for which the script's rates are meant.
            checkpoint: where the state is written, and where a stopped run continues from; the same everywhere.
            changes: functions by training step: each is called once after that step, on every peer, changes the model,
                and informs its optimizer, as for `refresh`. A later joiner, or a run that continues from a checkpoint,
                wraps the initial model and applies the changes that its state needs. They call no method of the peer
                or a loader, and draw the same random numbers everywhere. `{3 * len(loader): unfreeze}`.

        Raises:
            TypeError, ValueError: a parameter of another type, on another device, or none at all; a tensor whose
                elements share memory (`expand`); a state that cannot be sent; a layer of SyncBatchNorm; an invalid
                `algorithm`, `state_digest`, `nonfinite`, `buffers` or `lr_scaling`, or the last without `lr_batch`.
            JoinRefused: the swarm trains another model.
            JoinTimeout, RegistryError, RemovedFromView, QuorumLost: this peer gets no seat, as in `wait_view`.
            RemoteProtocolError: this peer received a state that does not fit its replica.
            ShoalError: this peer has asked for its seat without this model, or has left; `checkpoint` cannot be used;
                or a parameter is in another p2p.DataParallel.
        """
        super().__init__()
        self._session = session_of(peer, checkpoint, "p2p.DataParallel")
        scaling = LrScaling(lr_scaling, lr_batch)
        if algorithm is not None and algorithm not in [*ALGORITHMS]:  # a list: refuses unhashable values, too
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, is {algorithm!r}")
        if state_digest not in ("part", "all"):
            raise ValueError(f"state_digest must be part or all, is {state_digest!r}")
        models = collect_models(module, optimizer)
        self.module = module = models.module
        self._parts = parts = name_parts(models.optimizers, extra)
        self._session.share.schedule_ends = ends_of(parts)
        self._gradients = GradientReducer(models, self._session, policy(nonfinite, extra), bucket_bytes, algorithm)
        if self._gradients.device is not HOST:
            torch.autograd.set_multithreading_enabled(False)  # the thread that calls backward waits for the commit
        self._models, self._allow_local = models, allow_local
        keeper = None if checkpoint is None else Checkpointer(checkpoint, peer, lambda: self._passes.updates.are_whole)
        if not allow_local:
            models.check(parts)
        whole, planned = state_digest == "all", ModelChanges(changes, module, parts, self._session)
        resync = Resynchronisation(self._session, self._gradients, [*parts.values()])
        self._replica = replica = ModelReplica(
            module, parts, keeper, self._session, self._gradients, planned, is_digested_whole=whole, scaling=scaling
        )
        offered = replica.offered()
        updates = partial(
            Updates,
            parts,
            self._gradients,
            num_models=len(models.optimizers),
            allow_local=allow_local,
            scaling=scaling,
            has_left=lambda: self._session.membership.has_left,
        )
        samples = SameSamples(self._session.share)
        self._passes = Passes(
            self._session,
            self._gradients,
            lambda: (resync, *self._watched(buffers, algorithm), samples),
            updates,
            replica.digest,
            replica.edge,
            noted=samples.note,
            changes=planned,
        )
        planned.refresh, planned.agree = self._refresh_module, partial(replica.agree, is_planned=True)
        replica.renew = self._passes.renew
        replica.updates = self._passes.updates
        self._callable = {
            name: OneOfSeveral(each, partial(self._passes.forward, name)) for name, each in models.named.items()
        }
        try:
            claim(module.named_parameters(), self._passes.is_in_use)
            take_seat = self._session.take_seat if keeper is None else keeper.take_seat
            take_seat(offered)
        except BaseException:
            self._passes.end()
            raise

    def _watched(self, buffers: BufferMode, algorithm: str | None) -> Sequence[SideOperations]:
        """The side operations of each step, for the module as it is now and for `extra`."""
        make_mirror = partial(Mirror, self._session, self._gradients.device)
        return (
            Buffers(self.module, buffers, algorithm, make_mirror),
            Unaveraged(self.module, self._parts, make_mirror),
            SameExtra(self._parts),
            ModelCopies(self.module, self._parts, lambda: self._session.loop.now()),
            *self._replica.beside,
        )

    @property
    def has_committed(self) -> bool:
        return self._passes.has_committed

    @property
    def lr_factor(self) -> float:
        return self._passes.updates.scaled.factor

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the module, with the module's own names.

        Args:
            args: passed to `module.state_dict`.
            kwargs: passed to `module.state_dict`.

        Returns:
            The result of `module.state_dict`.
        """
        return self.module.state_dict(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward pass.

        Args:
            args: passed to the module.
            kwargs: passed to the module.

        Returns:
            The module's output.

        Raises:
            OperationMismatch, QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout, ShoalError: the last backward
                pass raised, and the step that it had begun cannot be withdrawn; or the model has other parameters than
                when it was wrapped.
        """
        if self._names:
            raise TypeError(f"this wrapper has several models: call one of them, as in `model[{self._names[0]!r}](x)`")
        return self._passes.forward("", self.module, *args, **kwargs)

    def __getitem__(self, name: str) -> torch.nn.Module:
        """A wrapper of one of several models; call it in place of the model.

        Args:
            name: as passed to the constructor.

        Returns:
            A module whose attribute `module` is the model.

        Raises:
            KeyError: no model has this name.
        """
        if name not in self._names:
            raise KeyError(f"this wrapper has no model {name!r}; it has {self._names or 'one, without a name'}")
        return self._callable[name]

    @property
    def _names(self) -> list[str]:
        return [name for name in self._models.named if name]

    def num_samples(self, number: int) -> None:
        """Set the number of samples that this peer adds in each further backward pass.

        For scripts without `peer.loader`; and for a loss that is a mean over other units (tokens): the weight of the
        current batch of a loader, or of each of its micro-batches. The next batch has its samples as weight again.

        Args:
            number: of the units that the loss is a mean of. With 0 this peer's gradients do not count.

        Raises:
            ShoalError: the batch has already had a backward pass.
            ValueError: `number` is negative.
        """
        self._session.share.set_number(number)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes in the block add to `grad`, and to this peer's samples of the step, and do not end the step.

        The first pass after the block ends it. Parts of one batch of `peer.loader` add no samples: the batch counts as
        a whole. In the block no message is sent and no call waits. `grad` takes separate memory there.

        Returns:
            A context manager.
        """
        return self._passes.no_sync()

    def skip_step(self, *models: str) -> None:
        """End the step without samples of this peer: `loss.backward() if loss.isfinite() else model.skip_step()`.

        The script continues as after `loss.backward()`, with clipping, `optimizer.step` and schedules, *not* with
        `continue`: the gradients of the other members are in `grad`. This peer's samples of the step, those of its
        other micro-batches too, are used up and left out.

        Args:
            models: the names that the backward pass would have reached, if the wrapper has several models.

        Raises:
            ValueError: the names are missing, or unknown to the wrapper.
            OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout,
                RemoteProtocolError, ShoalError: as `loss.backward()`; or the call was made under `no_sync`.
        """
        if not set(models) <= set(self._names) or (self._names and not models):
            raise ValueError(
                f"skip_step needs the names of the models that backward would reach, out of {self._names}, got {models}"
            )
        self._passes.skip(models)

    def refresh(self) -> None:
        """Take up the module as it is now, after layers were unfrozen, added, replaced or removed; see `changes`.

        Call it on every peer, after `optimizer.step` of the same step (`if peer.done == 1000:`), with the same module
        everywhere, new parameters included (`torch.manual_seed`). Inform the optimizer before: `add_param_group` for
        new parameters. It is a separate step without samples; a peer that calls another operation, or has another
        model, is named. Later joiners must wrap the model in its new form, which `changes` does not require.

        Raises:
            TypeError, ValueError: as the constructor, for the new module; the others wait, or continue without this
                peer.
            OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout: as
                `Peer.barrier`.
            ShoalError: the call came in the middle of a step, or with `changes`; or a parameter is in use elsewhere.
        """
        with self._session.callers.call("DataParallel.refresh"):
            self._passes.check_may_refresh()
            self._refresh_module()
            self._replica.agree()

    def _refresh_module(self) -> None:
        """Take up the module as it is now."""
        if not self._allow_local:
            self._models.check(self._parts)
        claim(self.module.named_parameters(), self._passes.is_in_use)
        self._passes.refresh()
        self._replica.refresh()

    def reduce_gradients(self, gradients: Given | Mapping[str, Given]) -> Given | Mapping[str, Given]:
        """Average gradients that the script has computed itself, with `torch.autograd.grad` or `torch.func`.

        Replaces `loss.backward()`, also under `no_sync` and in micro-batches. Earlier values of `grad` are dropped,
        except between the passes of a step.

        Args:
            gradients: in the order of `module.parameters()`, of all or of those that need a gradient; or by name. None
                for a parameter without one. For several models: a dict with these for each model that has gradients.

        Returns:
            The committed gradients, in the same form; they are also the parameters' `grad`. None for a parameter
            without a gradient on any member, and for all if the step has not ended.

        Raises:
            ValueError: a gradient matches no parameter or model, or has another shape.
            NonFiniteGradient, TypeError, OperationMismatch, QuorumLost, RegistryError, RemovedFromView,
                ReplicasDiverged, StepTimeout, RemoteProtocolError, ShoalError: as `loss.backward()`.
        """
        by_model: Mapping[str, Any] = gradients if self._names else {"": gradients}  # type: ignore[assignment]
        matched = {name: self._gradients.match(each, name) for name, each in by_model.items()}
        self._passes.take(list(matched), [pair for each in matched.values() for pair in each.values()])
        found: dict[str, Given] = {}
        for model, pairs in matched.items():
            means = {name: each.grad if self.has_committed else None for name, (each, _) in pairs.items()}
            found[model] = given_as(by_model[model], means)
        return found if self._names else found[""]
