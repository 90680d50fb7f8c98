"""Replicas of the outer step in one process: they commit, redo, exclude, join and skip, in any order."""

from typing import Any, ClassVar

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from collectives import CODECS
from p2p.training.rounds.outer import OuterConfig, OuterOptimizer

Array = NDArray[Any]
SHAPES = {"weight": (3, 100), "bias": (1,), "table": (4200,)}
MAX_BYTES = 600
"""Small enough to cut the payloads of all codecs."""
SUMS_OF_FOUR = {1: [4], 2: [2, 2], 3: [1, 2, 1], 4: [1, 1, 1, 1]}
"""Weights that are powers of two."""


def model(seed: int = 0, scale: float = 0.1, half: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(shape, generator=generator) * scale for name, shape in SHAPES.items()}
    return drawn | {"bias": drawn["bias"].to(half)}


def flat(parameters: dict[str, torch.Tensor]) -> Array:
    return torch.cat([each.detach().float().flatten() for each in parameters.values()]).numpy()


def gathered(payloads: list[list[Array]]) -> list[Array]:
    """The result of an `all_gather` of each piece over all ranks."""
    return [np.stack(rows) for rows in zip(*payloads, strict=True)]


def decoded(outer: OuterOptimizer, payloads: list[Array]) -> Array:
    out: Array = np.zeros_like(outer.anchor)
    for cut, payload in zip(outer.cuts, payloads, strict=True):
        outer.codec.add(payload, 1.0, out[cut])
    return out


class Replica:
    """A model, its outer step, and the test's expectations of both."""

    def __init__(self, kind: type[OuterOptimizer], config: OuterConfig, is_dyadic: bool) -> None:
        self.parameters = model(scale=0.0 if is_dyadic else 0.1, half=torch.float32 if is_dyadic else torch.bfloat16)
        self.outer = kind(self.parameters, config, max_bytes=MAX_BYTES)
        self.residual = np.zeros_like(self.outer.anchor)
        self.moved = np.zeros(self.outer.anchor.size)
        self.sent = np.zeros(self.outer.anchor.size)

    def delta(self) -> Array:
        """The difference to the anchor, in the precision of each parameter's type."""
        start = self.outer.anchor.copy()
        begin = 0
        for each in self.parameters.values():
            piece = slice(begin, begin + each.numel())
            start[piece] = torch.from_numpy(start[piece]).to(each.dtype).float().numpy()
            begin = piece.stop
        difference: Array = start - flat(self.parameters)
        return difference

    def commit(self, outcome: list[Array], samples: list[int], rank: int, own: list[Array]) -> None:
        if samples[rank] and self.outer.codec.keeps_residual:
            delta, sent = self.delta(), decoded(self.outer, own)
            total = self.residual * np.float32(self.outer.config.decay) + delta
            self.residual = total - sent
            self.moved += delta
            self.sent += sent
        self.outer.apply(outcome, samples, rank)


class Rounds(RuleBasedStateMachine):
    """Four replicas. The codec is drawn, and whether numbers are dyadic, so that no sum is rounded."""

    kind: ClassVar[type[OuterOptimizer]] = OuterOptimizer

    @initialize(codec=st.sampled_from(list(CODECS)), is_dyadic=st.booleans())
    def begin(self, codec: str, is_dyadic: bool) -> None:
        how = {"outer_lr": 1.0, "momentum": 0.0, "decay": 1.0} if is_dyadic else {"decay": 0.9}
        self.is_dyadic = is_dyadic
        self.config = OuterConfig(codec=codec, **how)
        self.members = [self.new() for _ in range(4)]
        self.num_seats = 4

    def new(self) -> Replica:
        return Replica(self.kind, self.config, self.is_dyadic)

    def train(self, seed: int) -> None:
        """Inner steps; a sixteenth of the table's elements does not change."""
        for index, member in enumerate(self.members):
            rng = np.random.default_rng([seed, index])
            for name, each in member.parameters.items():
                change = rng.integers(-(2**15), 2**15, each.shape) / 2.0**24
                if not self.is_dyadic:
                    change = rng.standard_normal(each.shape) * 1e-3
                if name == "table":
                    change *= np.arange(each.numel()) % 4096 > 256
                each -= torch.from_numpy(np.asarray(change)).to(each.dtype)

    def commit(self, payloads: list[list[Array]], skipped: set[int]) -> None:
        counting = [index for index in range(len(self.members)) if index not in skipped]
        samples = [0] * len(self.members)
        weights = SUMS_OF_FOUR if self.is_dyadic else {number: range(1, number + 1) for number in range(5)}
        for index, number in zip(counting, weights[len(counting)] if counting else [], strict=True):
            samples[index] = number
        outcome = gathered(payloads)
        before = self.members[0].outer.anchor.copy()
        for rank, member in enumerate(self.members):
            member.commit(outcome, samples, rank, payloads[rank])
        if not counting:
            assert self.members[0].outer.anchor.tobytes() == before.tobytes()

    @rule(seed=st.integers(0, 99), skipped=st.sets(st.integers(0, 3)))
    def round(self, seed: int, skipped: set[int]) -> None:
        """A round; a member that skips sends empty payloads."""
        self.train(seed)
        payloads = [
            member.outer.zero_payloads() if index in skipped else member.outer.payloads()
            for index, member in enumerate(self.members)
        ]
        self.commit(payloads, skipped)

    @rule(seed=st.integers(0, 99), spoiled=st.integers(0, 3))
    def round_with_an_invalid_payload(self, seed: int, spoiled: int) -> None:
        self.train(seed)
        payloads = [member.outer.payloads() for member in self.members]
        spoiled %= len(self.members)
        payloads[spoiled][0][:4] = 0xFF
        check = self.members[0].outer.codec.check
        found = {index for index, pieces in enumerate(payloads) if any(check(piece) for piece in pieces)}
        assert found == {spoiled}
        self.commit(payloads, found)

    @rule(seed=st.integers(0, 99))
    def withdraw(self, seed: int) -> None:
        """A step that is given up or redone: the payloads are the same."""
        self.train(seed)
        first, again = ([member.outer.payloads() for member in self.members] for _ in range(2))
        for one, other in zip(first, again, strict=True):
            assert [each.tobytes() for each in one] == [each.tobytes() for each in other]

    @precondition(lambda self: len(self.members) > 1)
    @rule(seed=st.integers(0, 99), gone=st.integers(0, 3))
    def redo_without_one(self, seed: int, gone: int) -> None:
        self.train(seed)
        payloads = [member.outer.payloads() for member in self.members]
        gone %= len(self.members)
        del self.members[gone], payloads[gone]
        self.commit(payloads, set())

    @precondition(lambda self: len(self.members) > 1)
    @rule(gone=st.integers(0, 3))
    def exclude(self, gone: int) -> None:
        """A member is removed between two exchanges; the others are not affected."""
        del self.members[gone % len(self.members)]

    @precondition(lambda self: len(self.members) < 4)
    @rule(seed=st.integers(0, 99), donor=st.integers(0, 3))
    def join(self, seed: int, donor: int) -> None:
        """A joiner in the middle of a round: it receives the committed state."""
        joiner = self.new()
        self.members.append(joiner)
        self.train(seed)
        joiner.outer.payloads()  # those of its first round, which does not count
        joiner.outer.load_state_dict(self.members[donor % (len(self.members) - 1)].outer.state_dict())
        assert not joiner.delta().any()

    @invariant()
    def anchors_are_equal(self) -> None:
        assert len({member.outer.anchor.tobytes() for member in getattr(self, "members", [])}) <= 1
        assert all(np.isfinite(member.outer.anchor).all() for member in getattr(self, "members", []))
        moments = [member.outer.momentum for member in getattr(self, "members", [])]
        assert len({each.tobytes() for each in moments if each is not None}) <= 1

    @invariant()
    def residuals_are_what_was_left_out(self) -> None:
        for member in getattr(self, "members", []):
            if member.outer.residual is None:
                assert not member.outer.codec.keeps_residual
                continue
            assert np.array_equal(member.outer.residual, member.residual)
            if self.is_dyadic:
                assert np.array_equal(member.sent + member.outer.residual, member.moved)
