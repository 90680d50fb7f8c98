import logging
import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from collectives import CODECS
from p2p.errors import NonFiniteGradient
from p2p.staging import Staged
from p2p.training.rounds.outer import CHUNK, OuterConfig, OuterOptimizer
from p2p.training.rounds.outer_on_device import DeviceOuterOptimizer
from tests.p2p.staging.standin import StandIn
from tests.p2p.training.rounds import Array, Rounds, decoded, flat, gathered, model

MACHINE = settings(max_examples=settings.default.max_examples if settings.default else 30, stateful_step_count=15)


def replicas(
    number: int, config: OuterConfig, **options: Any
) -> tuple[list[dict[str, torch.Tensor]], list[OuterOptimizer]]:
    models = [model() for _ in range(number)]
    return models, [OuterOptimizer(each, config, **options) for each in models]


def train(parameters: dict[str, torch.Tensor], seed: int, size: float = 1e-3) -> None:
    generator = torch.Generator().manual_seed(seed)
    for each in parameters.values():
        each += (torch.randn(each.shape, generator=generator) * size).to(each.dtype)


def exchange(outers: list[OuterOptimizer], samples: list[int]) -> None:
    outcome = gathered([outer.payloads() for outer in outers])
    for rank, outer in enumerate(outers):
        outer.apply(outcome, samples, rank)


def test_replicas_stay_equal_and_residuals_are_a_transaction() -> None:
    run_state_machine_as_test(Rounds, settings=MACHINE)


class Hasty(OuterOptimizer):
    """Mutant: counts deltas as sent that may never be."""

    def payloads(self) -> list[Array]:
        pieces = super().payloads()
        self._keep(pieces)
        return pieces


class Owned(OuterOptimizer):
    """Mutant: subtracts the delta that it meant to send, not the one that others decode."""

    def apply(self, gathered: Any, num_samples: Any, rank: int | None) -> None:
        pending = self._pending
        super().apply(gathered, num_samples, rank)
        if self.residual is not None and pending is not None and rank is not None and num_samples[rank]:
            self.residual[:] = 0


class Inherited(OuterOptimizer):
    """Mutant: continues with its old residual."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pending = self._pending
        super().load_state_dict(state_dict)
        self._pending = pending
        if pending is not None:
            self.residual = pending


@pytest.mark.parametrize("mutant", [Hasty, Owned, Inherited])
def test_a_residual_that_is_changed_at_another_time_is_noticed(mutant: type[OuterOptimizer]) -> None:
    class Mutated(Rounds):
        kind = mutant

    once = settings(max_examples=100, stateful_step_count=15, phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Mutated, settings=once)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 1000), min_size=1, max_size=5))
def test_float32_and_nothing_else_is_the_mean_in_rank_order(seed: int, samples: list[int]) -> None:
    models, outers = replicas(len(samples), OuterConfig(codec="float32", outer_lr=1.0, momentum=0.0), max_bytes=1000)
    anchor = outers[0].anchor.copy()
    for index, each in enumerate(models):
        train(each, seed + index, 10.0 ** (index - 3))
    start = torch.cat([each.float().flatten() for each in model().values()]).numpy()
    mean = np.zeros_like(anchor)
    for each, number in zip(models, samples, strict=True):
        if number:
            mean = mean + np.float32(number / sum(samples)) * (start - flat(each))
    exchange(outers, samples)
    assert all(outer.anchor.tobytes() == (anchor - mean).tobytes() for outer in outers)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("codec", CODECS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_replicas_on_a_device_and_on_the_host_have_the_same_bits(codec: str, momentum: float, seed: int) -> None:
    config = OuterConfig(codec=codec, momentum=momentum, decay=0.9)
    models, device = [model() for _ in range(4)], StandIn(seed)
    outers = [
        OuterOptimizer(each, config, max_bytes=3000)
        if index % 2
        else DeviceOuterOptimizer(each, config, Staged(device), np.empty, max_bytes=3000)
        for index, each in enumerate(models)
    ]
    for turn in range(3):
        for index, each in enumerate(models):
            train(each, seed + 10 * turn + index // 2, 10.0 ** (turn - 3))  # pairs do the same
        assert [p.tobytes() for p in outers[0].payloads()] == [p.tobytes() for p in outers[1].payloads()]
        exchange(outers, [3, 3, 5, 5 * (turn != 1)])
        for name in ("anchor", "momentum") if momentum else ("anchor",):
            assert len({bytes(outer.part(getattr(outer, name), 0, 1 << 20)) for outer in outers}) == 1
        assert len({flat(each).tobytes() for each in models}) == 1
        if outers[0].residual is not None:
            assert np.array_equal(np.asarray(outers[0].residual), np.asarray(outers[1].residual))
        assert not any(outer.copy_changes_to_anchor() for outer in outers)
        for each in models:
            next(iter(each.values()))[:1] = turn + 1.5  # all set the same value between two rounds
        assert all(outer.copy_changes_to_anchor() for outer in outers)
        assert len({bytes(outer.part(outer.anchor, 0, 1 << 20)) for outer in outers}) == 1
    state = outers[0].state_dict()
    outers[3].load_state_dict(state)
    outers[2].load_state_dict(outers[1].state_dict())
    assert bytes(outers[2].part(outers[2].anchor, 0, 99)) == bytes(outers[3].part(outers[3].anchor, 0, 99))
    assert outers[0].residual_ratio() == pytest.approx(outers[1].residual_ratio())


def test_what_is_not_finite_on_a_device_is_named_and_nothing_is_sent() -> None:
    parameters, device = model(), StandIn(0)
    outer = DeviceOuterOptimizer(parameters, OuterConfig(), Staged(device), np.empty)
    (*_, last) = parameters
    parameters[last][...] = math.inf
    with pytest.raises(NonFiniteGradient, match=f"{last} became NaN or infinity on this peer in this round"):
        outer.payloads()
    assert device.num_copies == 0


def on_each(parameters: dict[str, torch.Tensor], config: OuterConfig) -> list[OuterOptimizer]:
    """Outer steps for copies of `parameters`; the second has its copies on a device."""
    copies = {name: each.clone() for name, each in parameters.items()}
    return [OuterOptimizer(parameters, config), DeviceOuterOptimizer(copies, config, Staged(StandIn(0)), np.empty)]


@pytest.mark.parametrize("codec", ["sign", "sparse16", "sparse64"])
def test_a_residual_that_makes_a_change_infinite_is_dropped_and_the_next_round_goes_on(codec: str) -> None:
    for outer in on_each({"fine": torch.zeros(2), "huge": torch.zeros(4)}, OuterConfig(codec=codec, momentum=0.0)):
        for _ in range(2):
            outer._parameters["fine"] += 1
            outer._parameters["huge"] -= torch.tensor([2e38, 1, 0, 0])
            if outer.residual_ratio():  # after the first round
                with pytest.raises(
                    NonFiniteGradient, match=f"the change of huge in this round and the residual of {codec}"
                ):
                    outer.payloads()
                outer.apply(gathered([outer.zero_payloads()]), [0], 0)
            else:
                outer.apply(gathered([outer.payloads()]), [1], 0)
        assert outer.residual is not None and not outer.residual.any()
        before = outer.copy_parameters()
        outer._parameters["huge"] -= torch.tensor([2e38, 1, 0, 0])
        outer.apply(gathered([outer.payloads()]), [1], 0)
        assert outer.copy_parameters()[1][0] < before[1][0]


@pytest.mark.parametrize("count", [1, 64, 640, 4096 + 640])
@pytest.mark.parametrize(("codec", "num_rounds"), [("sparse16", 32), ("sparse64", 64)])
def test_the_last_block_moves_as_a_whole_one_does(codec: str, num_rounds: int, count: int) -> None:
    found = []
    for number in (4096, count):
        parameters = {"weight": torch.zeros(number)}
        outer = OuterOptimizer(parameters, OuterConfig(codec=codec, outer_lr=1.0, momentum=0.0))
        for _ in range(num_rounds):
            parameters["weight"] += 0.01
            outer.apply(gathered([outer.payloads()]), [1], 0)
        found.append(parameters["weight"][(number - 1) // 4096 * 4096 :].mean().item())
    whole, last = found
    assert last >= 0.99 * whole


def test_changes_that_int4_leaves_out_for_good_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="p2p")
    parameters = {"still": torch.zeros(2), "large": torch.zeros(256), "small": torch.zeros(256), "tiny": torch.zeros(9)}
    for codec, number in (("int4", 1), ("sign", 0), ("float32", 0)):
        for outer in on_each(parameters, OuterConfig(codec=codec)):
            caplog.clear()
            for _ in range(2):
                for name, size in (("large", 1e-7), ("small", 2e-8), ("tiny", 1e-12)):
                    outer._parameters[name] += size
                outer.apply(gathered([outer.payloads()]), [1], 0)
            assert len(caplog.records) == number
            assert ("of 3.0e-08 or less" in caplog.text) == ("in small and in 1 other" in caplog.text) == number


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("codec", CODECS)
def test_a_model_that_does_not_train_leaves_the_anchor_as_it_is(codec: str, momentum: float) -> None:
    models, outers = replicas(2, OuterConfig(codec=codec, momentum=momentum))
    anchor, before = outers[0].anchor.tobytes(), flat(models[0]).tobytes()
    for _ in range(3):
        exchange(outers, [3, 5])
    assert [outer.anchor.tobytes() for outer in outers] == [anchor] * 2
    assert [flat(each).tobytes() for each in models] == [before] * 2


def test_an_anchor_is_finer_than_parameters_of_half_a_type() -> None:
    parameters = {"weight": torch.ones(1, dtype=torch.bfloat16)}
    outer = OuterOptimizer(parameters, OuterConfig(codec="float32", outer_lr=0.25, momentum=0.0))
    step = 2.0**-7  # the distance of two bfloat16
    for number in range(1, 9):
        parameters["weight"] += step
        outer.apply(gathered([outer.payloads()]), [1], 0)
        assert outer.anchor[0] == 1 + number * step / 4
    assert parameters["weight"].item() == 1 + 2 * step


def test_nesterov_momentum_is_that_of_torch() -> None:
    models, outers = replicas(1, OuterConfig(codec="float32", outer_lr=0.7, momentum=0.9))
    del models[0]["bias"]
    outers = [OuterOptimizer(models[0], outers[0].config)]
    reference = torch.nn.Parameter(torch.from_numpy(outers[0].anchor.copy()))
    optimizer = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=True)
    for seed in range(5):
        train(models[0], seed)
        reference.grad = torch.from_numpy(outers[0].anchor - flat(models[0]))
        exchange(outers, [1])
        optimizer.step()
        np.testing.assert_allclose(outers[0].anchor, reference.detach(), rtol=1e-5, atol=1e-7)


def test_momentum_that_has_run_out_is_zero() -> None:
    models, outers = replicas(1, OuterConfig(codec="float32"))
    train(models[0], 0)
    for _ in range(200):
        exchange(outers, [1])
    assert outers[0].momentum is not None
    assert not outers[0].momentum.any()


@pytest.mark.parametrize("codec", ["float32", "sign"])
def test_a_script_that_flushes_subnormal_numbers_has_the_same_anchor(codec: str) -> None:
    anchors = []
    for flushes in (False, True):
        parameters = {"weight": torch.tensor([1e-38, 2e-38, 1e-39])}
        outer = OuterOptimizer(parameters, OuterConfig(codec=codec))
        payload = outer.codec.encode(np.array([3e-39, 1e-39, 1e-40], np.float32))
        assert torch.set_flush_denormal(flushes)
        try:
            outer.apply([np.stack([payload, payload])], [1, 2], 0)
            assert (parameters["weight"][:1] / 4 == 0) == flushes, "the script still has its setting"
        finally:
            torch.set_flush_denormal(False)
        anchors.append(outer.anchor.tobytes())
    assert anchors[0] == anchors[1]


def test_how_a_payload_is_cut_changes_nothing() -> None:
    config, found = OuterConfig(codec="sparse16"), []
    for max_bytes in (1, 600, 1 << 20):
        models, outers = replicas(2, config, max_bytes=max_bytes)
        for number in range(3):
            for index, each in enumerate(models):
                train(each, 10 * number + index)
            exchange(outers, [2, 3])
        found.append((outers[0].anchor.tobytes(), outers[1].residual.tobytes()))  # type: ignore[union-attr]
    assert len(set(found)) == 1


def test_a_long_vector_is_applied_chunk_by_chunk() -> None:
    for codec in CODECS:
        parameters = {"weight": torch.zeros(2 * CHUNK + 77)}
        outer = OuterOptimizer(parameters, OuterConfig(codec=codec, outer_lr=1.0, momentum=0.0))
        train(parameters, 1)
        payloads = outer.payloads()
        outer.apply(gathered([payloads]), [1], 0)
        assert np.array_equal(outer.anchor, -decoded(outer, payloads))


def test_who_observes_moves_its_anchor_and_keeps_no_residual() -> None:
    models, outers = replicas(3, OuterConfig(codec="sign"))
    for index, each in enumerate(models):
        train(each, index)
    outcome = gathered([outer.payloads() for outer in outers[:2]])
    outers[2].payloads()
    for rank, outer in zip((0, 1, None), outers, strict=True):
        outer.apply(outcome, [1, 1], rank)
    assert len({outer.anchor.tobytes() for outer in outers}) == 1
    assert outers[2].residual is not None
    assert not outers[2].residual.any()
    assert flat(models[2]).tobytes() == flat(models[0]).tobytes()


def test_what_leaves_with_a_peer_is_known() -> None:
    models, outers = replicas(1, OuterConfig(codec="sparse64"))
    assert outers[0].residual_ratio() == 0
    train(models[0], 1)
    delta = np.linalg.norm(outers[0].anchor - flat(models[0]))
    exchange(outers, [1])
    assert outers[0].residual is not None
    assert outers[0].residual_ratio() == pytest.approx(np.linalg.norm(outers[0].residual) / delta, rel=1e-5)
    assert 0.5 < outers[0].residual_ratio() < 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_not_finite_is_named_and_nothing_has_changed(codec: str, value: float) -> None:
    models, outers = replicas(2, OuterConfig(codec=codec))
    for number in range(2):
        for index, each in enumerate(models):
            train(each, 2 * number + index)
        if not number:
            exchange(outers, [1, 1])
    residual = None if outers[0].residual is None else outers[0].residual.copy()
    models[0]["table"][4000] = value
    with pytest.raises(NonFiniteGradient, match="table became NaN or infinity on this peer in this round"):
        outers[0].payloads()
    outcome = gathered([outers[0].zero_payloads(), outers[1].payloads()])
    for rank, outer in enumerate(outers):
        outer.apply(outcome, [0, 1], rank)
    assert outers[0].anchor.tobytes() == outers[1].anchor.tobytes()
    assert np.isfinite(flat(models[0])).all()
    if residual is not None:
        assert outers[0].residual is not None
        assert outers[0].residual.tobytes() == residual.tobytes()


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    _, (outer, other) = replicas(2, OuterConfig())
    before = outer.anchor.tobytes()
    for wrong, why in (
        (
            {"anchor": torch.zeros(3), "momentum": torch.zeros(3)},
            r"anchor is float32 \[3\] in the state, but float32 \[",
        ),
        ({"anchor": other.state_dict()["anchor"] + 1, "momentum": None}, "momentum is missing in the state"),
        ({}, "anchor is missing in the state"),
    ):
        with pytest.raises(ValueError, match=why):
            outer.load_state_dict(wrong)
    assert outer.anchor.tobytes() == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_a_parameter_that_float32_does_not_hold_is_refused(dtype: torch.dtype) -> None:
    named = {"fine": torch.zeros(3), "other": torch.zeros(2, dtype=dtype)}
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"parameter other is {name} \[2\] on cpu: rounds need float32, bfloat16"):
        OuterOptimizer(named, OuterConfig())
    with pytest.raises(ValueError, match=r"parameter there is float32 \[2\] on meta"):
        OuterOptimizer({"there": torch.zeros(2, device="meta")}, OuterConfig())
    with pytest.raises(ValueError, match="there are no parameters to train"):
        OuterOptimizer({}, OuterConfig())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"codec": "int8"}, "codec must be one of float32, int4, sign, sparse16, sparse64, is 'int8'"),
        ({"outer_lr": 0.0}, "outer_lr must be above 0 and finite, is 0.0"),
        ({"outer_lr": math.inf}, "outer_lr must be above 0 and finite, is inf"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, is 1.0"),
        ({"momentum": math.nan}, "momentum must be at least 0 and below 1, is nan"),
        ({"decay": 1.1}, "decay must be between 0 and 1, is 1.1"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        OuterConfig(**settings)


def test_settings_are_described_in_one_line() -> None:
    assert str(OuterConfig(codec="sign", decay=0.95)) == "sign, outer_lr 0.7, momentum 0.5, decay 0.95"
    assert str(OuterConfig(codec="sign", outer_lr=1, momentum=0)) == "sign, outer_lr 1, momentum 0, decay 1"


@given(st.floats(0.1, 10.0), st.sampled_from([1e-9, 1e-8, 1e-7, 1e-6]))
def test_settings_that_compute_otherwise_are_described_otherwise(outer_lr: float, share: float) -> None:
    one, other = (OuterConfig(outer_lr=each) for each in (outer_lr, outer_lr * (1 + share)))
    assert (str(one) == str(other)) == (np.float32(one.outer_lr) == np.float32(other.outer_lr))


SCRIPT = """
import hashlib
import numpy as np, torch
from collectives import CODECS
from p2p.training.rounds.outer import OuterConfig, OuterOptimizer
found = hashlib.sha256()
for codec in CODECS:
    rng = np.random.default_rng(0)
    models = [{"w": torch.zeros(70_001), "b": torch.zeros(300, dtype=torch.bfloat16)} for _ in range(2)]
    outers = [OuterOptimizer(each, OuterConfig(codec=codec, decay=0.95)) for each in models]
    for size in (1e-3, 1e-7, 1e2):
        for each in (tensor for model in models for tensor in model.values()):
            change = rng.standard_normal(each.shape) * rng.random(each.shape) ** 4 * size
            each += torch.from_numpy(change).to(each.dtype)
        outcome = [np.stack([outer.payloads()[0] for outer in outers])]
        for rank, outer in enumerate(outers):
            outer.apply(outcome, [3, 4], rank)
            found.update(outcome[0].tobytes() + outer.anchor.tobytes() + models[rank]["b"].float().numpy().tobytes())
print(torch.backends.cpu.get_cpu_capability(), found.hexdigest())
"""


@pytest.mark.long
def test_a_processor_with_fewer_instructions_leaves_the_same_bits() -> None:
    config: Any = np.show_config(mode="dicts")
    fewer = {"ATEN_CPU_CAPABILITY": "default"}
    if instructions := config["SIMD Extensions"].get("found"):
        fewer["NPY_DISABLE_CPU_FEATURES"] = " ".join(instructions)
    running = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env={**os.environ, **way}, stdout=subprocess.PIPE, text=True)
        for way in ({}, fewer)
    ]
    capabilities, digests = zip(*(each.communicate()[0].split() for each in running), strict=True)
    assert digests[0] == digests[1]
    assert capabilities[1] == "DEFAULT"


@pytest.mark.parametrize("codec", ["float32", "sign"])
def test_parameters_that_are_taken_are_the_anchor_and_nothing_is_left_of_rounds_before(codec: str) -> None:
    models, outers = replicas(2, OuterConfig(codec=codec))
    for index, each in enumerate(models):
        train(each, index, 0.1)
    exchange(outers, [1, 2])
    for each in models:
        train(each, 7, 0.1)
    for outer, each in zip(outers, models, strict=True):
        outer.payloads()
        outer.reset_anchor()
        assert outer.anchor.tobytes() == flat(each).tobytes()
        assert outer.momentum is not None and not outer.momentum.any()
        assert outer.residual is None or not outer.residual.any()
        assert all(not payload.any() for payload in outer.payloads()) or codec == "sign"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_set_between_two_rounds_is_the_anchor_and_nothing_else_changes(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(3, 2).to(dtype).requires_grad_(False)
    outer = OuterOptimizer(dict(model.named_parameters()), OuterConfig(codec="sign"))
    train(dict(model.named_parameters()), 1, 0.1)
    outer.apply([payload[None] for payload in outer.payloads()], [1], 0)
    assert outer.momentum is not None and outer.residual is not None
    before = [vector.copy() for vector in (outer.anchor, outer.momentum, outer.residual)]
    assert not outer.copy_changes_to_anchor()
    with torch.no_grad():
        model.weight[0, 0] = 7
    assert outer.copy_changes_to_anchor() and not outer.copy_changes_to_anchor()
    assert outer.anchor[0] == 7 and outer.anchor[1:].tobytes() == before[0][1:].tobytes()
    assert (outer.momentum.tobytes(), outer.residual.tobytes()) == (before[1].tobytes(), before[2].tobytes())
    with torch.no_grad():
        model.weight[0, 1] = torch.nan
    assert not outer.copy_changes_to_anchor()
    with pytest.raises(NonFiniteGradient, match="weight became NaN"):
        outer.payloads()
