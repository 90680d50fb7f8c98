"""Data-parallel training whose steps commit: averages gradients over the samples of all members of the view.

Gradients are copied into buckets as backward produces them, and each bucket is summed while backward goes on; `grad` is
None from the copy to the commit. The end of backward waits until the step is committed, so optimizers see committed
gradients only, and a member's death before that costs no more than summing again what is in the buckets.

What is committed: the mean of the gradients that the members computed, each weighted by its number of samples. If each
loss is a mean over samples, that is the gradient of one process with all these samples in one batch. A step may have
several backward passes, of which the last ends it:

- micro-batches of `peer.loader(max_local_batch=n)` are averaged, weighted by their samples, as one larger batch;
- passes under `no_sync` are summed in `grad`, and the script's to scale; sums are averaged, weighted by their samples.

`grad` is None where no member that counts had a gradient, so that optimizers leave the parameter alone: frozen in the
middle of a run, used by nobody in this step. (Also after `zero_grad(set_to_none=False)`, where one process has zeros.)
After a commit it lies in the arena, which other peers of the host can read and forked children cannot.

Parameters may live on a CUDA device, where backward runs in the calling thread. That was never tried on a GPU. Leaves
out optimizers that call backward several times in a step (LBFGS).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch

from collectives import ALGORITHMS

from ..checkpoint import Checkpoint, Keeper
from ..device import HOST
from ..peer import Peer
from .beside import Beside
from .checks.agreement import Agreement
from .checks.belonging import claim
from .checks.by_hand import Given, given_as
from .checks.copies import ModelCopies
from .checks.same_samples import SameSamples
from .checks.unaveraged import Unaveraged
from .state.mirrors import Mirror
from .state.model_changes import NOTHING_PLANNED, Change, ModelChanges
from .state.replica_state import Stateful
from .steps.buffers import BufferMode, Buffers
from .steps.gradients import Gradients, NonFinite, policy
from .steps.models import OneOfSeveral, ends_of, gather, name_parts
from .steps.passes import Passes
from .steps.replica import ModelReplica
from .steps.resync import Resynchronisation
from .steps.scaling import LrScaling
from .steps.updates import Updates
from .tensors.buckets import BUCKET_BYTES
from .wrapper import Wrapper, session_of


class DataParallel(Wrapper):
    """Wraps a model whose replicas train together, or several that are trained in turn.

    Several are called by name, and have one seat and one state:

        model = p2p.DataParallel(peer, {"G": g, "D": d}, {"G": optimizer_g, "D": optimizer_d})
        loss = criterion(model["D"](model["G"](noise)), real)

    A backward pass sums the gradients of the models that it reaches, the same on all peers; the others keep what they
    have in `grad`, and their optimizers have nothing to use.

    Construction asks for a seat; the replica of a peer that joins a swarm under way is replaced by the swarm's.
    Running statistics (BatchNorm) are averaged at each commit. A backward pass that raises may be caught: the peer
    then adds nothing to the step, which its next forward and backward pass, on other samples, take part in. The end of
    `loss.backward()` waits until the step is committed, `step_timeout_s` at most.

    Memory: twice the gradients' bytes, `grad` included, in the arena while there is room (`arena_bytes`), where other
    peers of the host read them; once more where messages need it. A member that feeds an observer holds a copy of the
    state while it sends it, and up to 256 MiB of results, or of 4 steps; the observer up to 1 GiB, or 8 steps. Each
    member sends per step what an `all_reduce` of all gradients does, and 40 bytes for the samples.

    Raises:
        From `loss.backward()`; the last one also from `optimizer.step`, if it is called between the passes of a step.
        `grad` is then None, or what this process has summed alone.

        NonFiniteGradient: this peer has computed NaN or infinity, and has sent none of it.
        TypeError: a gradient is sparse, and not that of an embedding layer.
        OperationMismatch: another member has called something else; raised on every member.
        QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout, TooSlow: this peer cannot go on.
        DeviceLost: the device of the model has failed; this peer has left, the others go on.
        JoinRefused: this peer observes, and its replica is not like those of the members: it says in what.
        RemoteProtocolError: a state was received that does not fit this replica.
        ShoalError: backward was called again for one batch, or one `optimizer.step`; this peer has left; or the model
            has other parameters, or names in its `state_dict`, than when it was wrapped, which is found in the next
            step: call `refresh` before it.

    Attributes:
        has_committed: whether the last backward pass ended a step. After one that did not, a micro-batch of
            `peer.loader`, `grad` is None, so `optimizer.step` does nothing; whatever else counts steps (a schedule, a
            GradScaler) has to be called only where this is true.
        lr_factor: what `lr_scaling` makes of the last committed step: the update with it has rates so many times those
            of the script. 1 without it.
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

        The order matters: first the model, on its device and in its types, the optimizer and all of `extra`, then this,
        then a batch of a loader, or any operation. A peer has one wrapper, which asks for the seat. Parameters, buffers
        and states of the optimizer and `extra` are then the swarm's, so what was derived from them before is stale.

        Args:
            peer: as `p2p.join` made it; nothing has been called on it that needs a seat.
            module: its parameters that need a gradient are float32, float64, float16 or bfloat16, on one device. Names,
                shapes, strides and types in `module.state_dict()`, and their order, are the same on every peer.
                Gradients have the strides of their parameters. Several models by name have no parameter in common.
            optimizer: of these parameters; of several models one for each, by the same names, or one of several of
                them, by another name.
            extra: what else a joiner must have, since it changes parameters: schedules, scalers, further optimizers,
                averages; the same, in the same order, on every peer. A copy of the model that is not among them,
                and changes, is named in the log.
            bucket_bytes: gradients are summed in operations of about so many bytes, each of one type.
            algorithm: of `collectives.ALGORITHMS`; None: by size.
            state_digest: how much of the parameters every member shows per step to be the same: a sixteenth (`part`),
                or `all`. It is read once more for that; 16 bytes are sent.
            nonfinite: what happens to a peer whose own gradients have NaN or infinity. `raise`: `NonFiniteGradient` in
                its backward pass, before anything of it is sent. `skip`: it adds nothing to the step, as with
                `skip_step`: its samples of a loader are used up, left out, and named in the log. The step is started
                over without them, which takes some milliseconds, and if nobody adds anything `grad` is None. `allow`:
                they are averaged as they are. None: `raise`, or `allow` if there is a GradScaler in `extra`, which has
                to see them.
            buffers: what becomes of those other than running statistics. `check`: they are compared, all within 16
                steps, and the first that is not the same everywhere is named in the log. `mean`: they are averaged
                over the samples, as running statistics are (right for means, not for a largest value); whole numbers
                stay. `rank0`: they become those of rank 0. `local`: nothing; the script may make them one.
            allow_local: `optimizer.step` may use gradients that came from no commit, which updates this replica alone.
            lr_scaling: learning rates follow how many samples a step has counted, over `lr_batch`: `linear`, or `sqrt`,
                its square root, for Adam and the like. For `batch_per_peer` of `peer.loader`, with which that number
                grows with the members. The factor is made of the receipt, is on the rates of all optimizers while
                they make an update, and at no other time, so schedules go on as without. Where the script says other
                weights (`num_samples`), these are counted. The same on every peer.
            lr_batch: so many samples the rates of the script are for.
            checkpoint: where the state is written, and what a run that was stopped goes on from; the same everywhere.
            changes: functions by steps of training: each is called once behind that step, on every peer, and changes
                the model, and tells its optimizer of it, as for `refresh`. Who joins later, or goes on from a
                checkpoint, wraps the model of the beginning, and makes what its state needs. They call nothing of the
                peer or a loader, and draw the same random numbers everywhere. `{3 * len(loader): unfreeze}`.

        Raises:
            TypeError, ValueError: a parameter of another type, on another device, or none at all; a tensor whose
                elements share memory (`expand`); a state that cannot be sent; a layer of SyncBatchNorm; no such
                `algorithm`, `state_digest`, `nonfinite`, `buffers` or `lr_scaling`, or that without `lr_batch`.
            JoinRefused: the swarm trains another model.
            JoinTimeout, RegistryError, RemovedFromView, QuorumLost: there is no seat for this peer, as `wait_view`.
            RemoteProtocolError: a state was received that does not fit this replica.
            ShoalError: this peer has asked for its seat without this model, or has left; `checkpoint` cannot be used;
                or a parameter is in another p2p.DataParallel.
        """
        super().__init__()
        self._session = session_of(peer, checkpoint, "p2p.DataParallel")
        scaling = LrScaling(lr_scaling, lr_batch)
        if algorithm is not None and algorithm not in [*ALGORITHMS]:  # what can be no key is refused, too
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, is {algorithm!r}")
        if state_digest not in ("part", "all"):
            raise ValueError(f"state_digest must be part or all, is {state_digest!r}")
        models = gather(module, optimizer)
        self.module = module = models.module
        self._parts = parts = name_parts(models.optimizers, extra)
        self._session.share.schedule_ends = ends_of(parts)
        self._gradients = Gradients(models, self._session, policy(nonfinite, extra), bucket_bytes, algorithm)
        if self._gradients.device is not HOST:
            torch.autograd.set_multithreading_enabled(False)  # the commit is waited for by who has called backward
        self._models, self._allow_local = models, allow_local
        keeper = None if checkpoint is None else Keeper(checkpoint, peer, lambda: self._passes.updates.are_made)
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
        planned.take_up, planned.agree = self._take_up, partial(replica.agree, is_planned=True)
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

    def _watched(self, buffers: BufferMode, algorithm: str | None) -> Sequence[Beside]:
        """What each step sends of the module as it is now, and of `extra`, beside gradients."""
        make_mirror = partial(Mirror, self._session, self._gradients.device)
        return (
            Buffers(self.module, buffers, algorithm, make_mirror),
            Unaveraged(self.module, self._parts, make_mirror),
            Agreement(self._parts),
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
        """That of the module, under the names that it has there.

        Args:
            args: of the module's.
            kwargs: of the module's.

        Returns:
            What the module's returns.
        """
        return self.module.state_dict(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass.

        Args:
            args: of the module.
            kwargs: of the module.

        Returns:
            What the module returns.

        Raises:
            OperationMismatch, QuorumLost, RemovedFromView, ReplicasDiverged, StepTimeout, ShoalError: the last backward
                pass raised, and the step that it had begun cannot be taken back; or the model has other parameters than
                when it was wrapped.
        """
        if self._names:
            raise TypeError(f"this wrapper has several models: call one of them, as in `model[{self._names[0]!r}](x)`")
        return self._passes.forward("", self.module, *args, **kwargs)

    def __getitem__(self, name: str) -> torch.nn.Module:
        """One of several models, to be called in its place.

        Args:
            name: as it was given.

        Returns:
            A module, of which `module` is the model.

        Raises:
            KeyError: there is no such model.
        """
        if name not in self._names:
            raise KeyError(f"no model of this wrapper is called {name!r}: {self._names or 'one, without a name'}")
        return self._callable[name]

    @property
    def _names(self) -> list[str]:
        return [name for name in self._models.named if name]

    def num_samples(self, number: int) -> None:
        """This peer adds `number` samples in each further backward pass.

        For scripts without `peer.loader`; and for a loss that is a mean over something else (tokens): the current
        batch of a loader, or each of its micro-batches, weighs so much. The next weighs its samples, unless said.

        Args:
            number: of what the loss is a mean of. With 0 this peer's gradients count for nothing.

        Raises:
            ShoalError: the batch has had a backward pass before.
            ValueError: `number` is negative.
        """
        self._session.share.set_number(number)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes in the block add to `grad`, and to this peer's samples of the step, and do not end it.

        The first pass after the block does. Parts of one batch of `peer.loader` add no samples: all of it counts.
        Sends nothing and waits for nobody in the block. `grad` takes memory of its own there.

        Returns:
            A context manager.
        """
        return self._passes.no_sync()

    def skip_step(self, *models: str) -> None:
        """End the step without adding to it: `loss.backward() if loss.isfinite() else model.skip_step()`.

        The script goes on as after `loss.backward()`, with clipping, `optimizer.step` and schedules, *not* with
        `continue`: the others' gradients are in `grad`. This peer's samples of the step are used up and left out, those
        of its other micro-batches, too.

        Args:
            models: names of those that the backward pass would have reached, where there are several.

        Raises:
            ValueError: they are not named, or not the wrapper's.
            OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout,
                RemoteProtocolError, ShoalError: as `loss.backward()`; or it was called under `no_sync`.
        """
        if not set(models) <= set(self._names) or (self._names and not models):
            raise ValueError(
                f"skip_step needs the names of the models that backward would reach, of {self._names}, got {models}"
            )
        self._passes.skip(models)

    def refresh(self) -> None:
        """Go on with the module as it is now, after layers were unfrozen, added, replaced or removed; see `changes`.

        On every peer, after `optimizer.step` of the same step (`if peer.done == 1000:`); the module is then the same
        everywhere, new parameters included (`torch.manual_seed`). Tell the optimizer before: `add_param_group` for what
        is new. A step of its own, which counts no samples; who calls something else, or has another model, is named.
        Who joins later wraps the model in its new form; `changes` need no such script.

        Raises:
            TypeError, ValueError: as of the wrap, of the new module; the others wait, or go on without this peer.
            OperationMismatch, QuorumLost, RegistryError, RemovedFromView, ReplicasDiverged, StepTimeout: as
                `Peer.barrier`.
            ShoalError: it was called in the middle of a step, or beside `changes`; or a parameter is in use elsewhere.
        """
        with self._session.callers.call("DataParallel.refresh"):
            self._passes.check_may_refresh()
            self._take_up()
            self._replica.agree()

    def _take_up(self) -> None:
        """Go on with the module as it is now."""
        if not self._allow_local:
            self._models.check(self._parts)
        claim(self.module.named_parameters(), self._passes.is_in_use)
        self._passes.refresh()
        self._replica.take_up()

    def reduce_gradients(self, gradients: Given | Mapping[str, Given]) -> Given | Mapping[str, Given]:
        """Average gradients that the script has computed itself, with `torch.autograd.grad` or `torch.func`.

        In place of `loss.backward()`, also under `no_sync` and in micro-batches. What was in `grad` is forgotten,
        except between the passes of a step.

        Args:
            gradients: in the order of `module.parameters()`, of all or of those that need a gradient; or by name. None
                where there is none. Where there are several models: a dict with these for each model that has any.

        Returns:
            The committed gradients, in the same form, which are the parameters' `grad`, too. None where nobody had one,
            and everywhere if the step has not ended.

        Raises:
            ValueError: a gradient is of no parameter or model, or of another shape.
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
