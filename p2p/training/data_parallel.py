"""Data-parallel training whose steps commit: averages gradients over the members of the view.

Gradients are copied into buckets as backward produces them, and each bucket is summed while backward goes on. The end
of backward waits until the step is committed, so clipping, schedules and any optimizer see committed gradients only,
and a member's death before that costs no more than summing again what backward has left in the buckets.

Leaves out: gradient accumulation under `no_sync`, types other than float32, devices other than the CPU, averaging of
float buffers (BatchNorm): each replica keeps its own, and a joiner is given the donor's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import xxhash

from collectives import ALGORITHMS

from ..errors import ShoalError
from ..handover import PackedState, Replica
from ..operations import Operation, Use
from ..peer import Peer
from ..state import Stateful, compare, describe, pack, unpack_into
from ..wire import MAX_BYTES_LEN

BUCKET_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class Bucket:
    """Gradients that are summed in one operation.

    Attributes:
        parameters: in reverse order of registration, which is about the order in which backward reaches them.
        inputs: this peer's gradients, views of `operation.input`, one per parameter.
        results: the committed gradients, views of `operation.result`.
        missing: indices of the parameters that have no gradient yet in this backward pass.
    """

    parameters: list[torch.nn.Parameter]
    inputs: list[torch.Tensor]
    results: list[torch.Tensor]
    operation: Operation
    missing: set[int]


class DataParallel(torch.nn.Module):
    """Wraps a model whose replicas train together.

    Construction asks for a seat; the replica of a peer that joins a swarm under way is replaced by the swarm's.
    """

    def __init__(
        self,
        peer: Peer,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        extra: Sequence[Stateful] = (),
        bucket_bytes: int = BUCKET_BYTES,
        algorithm: str | None = None,
        state_digest: Literal["part", "all"] = "part",
    ) -> None:
        """Take a seat in the swarm of `peer`.

        Args:
            peer: as `p2p.join` made it.
            module: its parameters that need a gradient are float32 and on the CPU.
            optimizer: of these parameters.
            extra: what else a joiner must have: schedules, scalers.
            bucket_bytes: gradients are summed in operations of about this size.
            algorithm: of `collectives.ALGORITHMS`; None: by size.
            state_digest: how much of the parameters every member shows per step to be the same: a sixteenth, or all.

        Raises:
            JoinRefused: the swarm trains another model.
            ValueError: a parameter of another type, on another device, or none at all.
        """
        super().__init__()
        if algorithm is not None and algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, is {algorithm!r}")
        self.module = module
        self._session = peer.session
        self._parts = (optimizer, *extra)
        self._state_digest = state_digest
        self._summed = _summable(module)
        self._buckets = [_make_bucket(part, algorithm) for part in _split(self._summed, bucket_bytes)]
        self._place = {p: (b, i) for b in self._buckets for i, p in enumerate(b.parameters)}
        self._num_submitted = 0
        self._in_backward = False
        tensors = dict(module.state_dict())
        layout = describe(tensors)
        if len(layout[1]) > MAX_BYTES_LEN:
            raise ValueError(f"{len(tensors)} tensors cannot be described to a joiner in {MAX_BYTES_LEN} bytes")
        self._pack()  # raises here, not in a member that a joiner asks
        self._session.take_seat(Replica(layout, self._pack, self._load, partial(compare, layout[1])))
        for parameter in self._summed:
            parameter.register_post_accumulate_grad_hook(self._take_gradient)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass."""
        if self._in_backward:
            self._session.leave()
            raise ShoalError("the last backward pass did not end, so this peer has left the swarm: join again")
        self._session.state_is_complete()
        return self.module(*args, **kwargs)

    def num_samples(self, number: int) -> None:
        """This peer adds `number` samples to each further step; for scripts that do not use `peer.batches`."""
        self._session.share.set_number(number)

    # State.

    def _pack(self) -> PackedState:
        return pack(dict(self.module.state_dict()), self._parts, self._session.share.state)

    def _load(self, state: PackedState) -> None:
        tensors = dict(self.module.state_dict())
        self._session.share.state = unpack_into(state, tensors, self._parts)

    def _digest_state(self) -> bytes:
        """Of the parameters that this step was computed with."""
        chosen = self._summed
        if self._state_digest == "part":
            chosen = chosen[(self._session.done + 1) % 16 :: 16]
        digest = xxhash.xxh3_128()
        for parameter in chosen:
            digest.update(parameter.detach().contiguous().numpy().data)
        return digest.digest()

    # Backward.

    def _take_gradient(self, parameter: torch.nn.Parameter) -> None:
        """Copy a finished gradient into its bucket, and submit the buckets whose turn has come."""
        if not self._in_backward:
            self._in_backward = True
            self._submit_counts()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_backward)
        bucket, index = self._place[parameter]
        assert parameter.grad is not None
        bucket.inputs[index].copy_(parameter.grad)
        bucket.missing.discard(index)
        self._submit_full_buckets()

    def _submit_counts(self) -> None:
        """Operation 0 of every step: who adds which samples, and how many."""
        counts = np.array(self._session.share.slice, np.int64)
        self._session.submit(Operation("all_gather", counts, counts, counts.shape, "one-shot", Use.COUNTS))

    def _submit_full_buckets(self) -> None:
        while self._num_submitted < len(self._buckets) and not self._buckets[self._num_submitted].missing:
            self._session.submit(self._buckets[self._num_submitted].operation)
            self._num_submitted += 1

    def _finish_backward(self) -> None:
        """Submit what is left, wait for the commit, and hand the committed gradients out."""
        try:
            for bucket in self._buckets[self._num_submitted :]:
                for index in bucket.missing:
                    bucket.inputs[index].zero_()
                bucket.missing.clear()
            self._submit_full_buckets()
            self._session.commit(self._digest_state)
            for bucket in self._buckets:
                for parameter, result in zip(bucket.parameters, bucket.results, strict=True):
                    parameter.grad = result
        finally:
            self._num_submitted, self._in_backward = 0, False
            for bucket in self._buckets:
                bucket.missing = set(range(len(bucket.parameters)))


def _summable(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters whose gradients are averaged, in about the order in which backward reaches them."""
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not named:
        raise ValueError(f"{type(module).__name__} has no parameter that needs a gradient")
    for name, parameter in named:
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ValueError(f"parameter {name} is {parameter.dtype} on {parameter.device}; need float32 on the CPU")
    return [parameter for _, parameter in reversed(named)]


def _split(parameters: list[torch.nn.Parameter], bucket_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Consecutive parameters in groups of `bucket_bytes`, more only where one parameter is larger."""
    groups: list[list[torch.nn.Parameter]] = []
    size = bucket_bytes
    for parameter in parameters:
        if size + parameter.nbytes > bucket_bytes:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.nbytes
    return groups


def _make_bucket(parameters: list[torch.nn.Parameter], algorithm: str | None) -> Bucket:
    sizes = [parameter.numel() for parameter in parameters]
    inputs, results, scratch = (torch.zeros(sum(sizes)) for _ in range(3))
    operation = Operation(
        "all_reduce",
        inputs.numpy(),
        results.numpy(),
        tuple(inputs.shape),
        algorithm,
        Use.WEIGHTED,
        scratch.numpy(),
        op="mean",
    )
    return Bucket(
        parameters, _views(inputs, parameters), _views(results, parameters), operation, set(range(len(parameters)))
    )


def _views(flat: torch.Tensor, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Parts of `flat` in the shapes of `parameters`."""
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
