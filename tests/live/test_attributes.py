"""Attributes of modules that a script has changed, when its run resumes from a checkpoint, or a peer joins."""

from functools import reduce
from pathlib import Path

import pytest

from tests.live.swarm import Process, Swarm

pytestmark = pytest.mark.torch

SAID = "1.p is 0.1 here, 0.3 there. If training depends on them"

ONCE = """
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
folder, wrapper, epochs, when = sys.argv[1:]
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with p2p.join() as peer:
    parallel = getattr(p2p, wrapper)(peer, model, optimizer, checkpoint=p2p.Checkpoint(folder, every=1))
    dataset = torch.utils.data.TensorDataset(torch.randn(32, 4))
    length = {"inner_steps": 2} if wrapper == "DiLoCo" else {}
    for (x,) in peer.loader(dataset, global_batch=8, epochs=int(epochs), **length):
        if peer.done == 1 if when == "once" else peer.done >= 1:
            model[1].p = 0.3
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
    print("ends", peer.done, model[1].p)
"""
"""The rate of a dropout is set after the first step: once, or by the number of the step."""


def run(swarm: Swarm, *words: str) -> Process:
    peer = swarm.start(ONCE, *words)
    assert peer.end() == 0, peer.report()
    return peer


@pytest.mark.parametrize("wrapper", ["DataParallel", pytest.param("DiLoCo", marks=pytest.mark.long)])
def test_what_a_script_has_set_once_and_does_not_set_again_is_named_where_it_goes_on(
    swarm: Swarm, tmp_path: Path, wrapper: str
) -> None:
    for when, said in (("once", [1]), ("by number", [])):
        folder = str(tmp_path / when)
        assert run(swarm, folder, wrapper, "1", when).stdout[-1].endswith(" 0.3")
        other = run(swarm, folder, wrapper, "2", when)
        assert [line.count(SAID) for line in other.stderr if SAID in line] == said
        assert other.stdout[-1].endswith(" 0.1" if said else " 0.3")


IN_EACH = {"Dropout(0.1)": "BatchNorm1d(4)", "model[1].p = 0.3": "model[1].eval()", "model[1].p)": "model[1].training)"}
MODES = reduce(lambda script, pair: script.replace(*pair), IN_EACH.items(), ONCE.replace("(32, 4)", "(400, 4)"))
"""A layer is set to evaluation after the first step: once, or by the number of the step."""


@pytest.mark.parametrize("wrapper", ["DataParallel", pytest.param("DiLoCo", marks=pytest.mark.long)])
def test_a_layer_that_evaluated_before_a_checkpoint_and_does_not_where_the_run_goes_on_is_named(
    swarm: Swarm, tmp_path: Path, wrapper: str
) -> None:
    for when, said in (("once", 1), ("by number", 0)):
        folder = str(tmp_path / when)
        for epochs, is_set in (("1", True), ("2", not said)):
            peer = swarm.start(MODES, folder, wrapper, epochs, when)
            assert peer.end() == 0, peer.report()
            assert peer.stdout[-1].endswith(f" {not is_set}")
        assert sum("in none of the" in line for line in peer.stderr) == said, peer.report()
        assert not said or any("all layers are trained" in line and "the first 1," in line for line in peer.stderr)
