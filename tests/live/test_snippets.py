"""Snippets of the documentation run as pasted."""

import re

import pytest

from tests.live.swarm import ROOT, Swarm

pytestmark = [pytest.mark.torch, pytest.mark.light]


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_script_in_the_readme_trains(swarm: Swarm) -> None:
    (script,) = snippets("README.md")
    peers = [swarm.start(script.replace("epochs=50", "epochs=1"), min_peers=2) for _ in range(2)]
    assert [peer.end() for peer in peers] == [0, 0], peers[0].report()
    assert all(peer.stdout[-1].startswith("epoch 0, step 79") for peer in peers), peers[0].report()
    assert [peer.complaints() for peer in peers] == [[], []]


@pytest.mark.long
def test_the_script_in_the_readme_trains_with_a_joiner(swarm: Swarm) -> None:
    (script,) = snippets("README.md")
    script = script.replace("epochs=50", "epochs=6")
    founders = [swarm.start(script, min_peers=2) for _ in range(2)]
    founders[0].expect("epoch 0, step 79")
    joined = swarm.start(script)
    peers = [*founders, joined]
    assert [peer.end() for peer in peers] == [0, 0, 0], joined.report()
    ends = {peer.stdout[-1].partition(":")[0] for peer in peers}
    assert ends == {"epoch 5, step 474"}, ends
    said = [line for peer in peers for line in peer.complaints()]
    assert all("That state is in epoch" in line for line in said), said  # of a joiner that was given it amid its loop


BEFORE = """
import sys, torch, p2p
torch.manual_seed(0)
torch.set_num_threads(1)
resume = "resume" in sys.argv
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
plain = model
with p2p.join() as peer:
"""

LOOP = """
loader = peer.loader(torch.randn(64, 3), global_batch=8, epochs=2)
for x in (x for epoch in loader.epochs() for x in loader):
    optimizer.zero_grad()
    wrapped(x).square().mean().backward()
    optimizer.step()
    schedule.step()
print("done", peer.done)
"""


def test_what_is_said_of_checkpoints_can_be_pasted_around_a_loop(swarm: Swarm) -> None:
    given, alone, by_hand = snippets("docs/checkpoints.md")
    loop = BEFORE + indented(given.replace("every=500", "every=5").replace("model =", "wrapped =") + LOOP)
    assert swarm.start(loop).end() == 0
    loaded = indented(alone.replace("00000500", "00000016").replace("model.load", "plain.load"))
    reading = swarm.start(BEFORE + "    pass\n" + loaded.replace("\n    ", "\n").removeprefix("    "))
    assert reading.end() == 0, reading.report()
    script = BEFORE + indented(by_hand.replace("...", LOOP.replace("wrapped", "parallel")))
    assert swarm.start(script).end() == 0
    again = swarm.start(script, "resume")
    assert again.end() == 0 and "done 16" in again.stdout, again.report()


def test_what_is_said_of_layers_that_are_unfrozen_later_can_be_pasted(swarm: Swarm) -> None:
    (planned,) = (each for each in snippets("docs/from-ddp.md") if "changes=" in each)
    net = "net = torch.nn.Sequential()\nnet.body, net.head = model, torch.nn.Linear(1, 1)\n"
    planned = planned.replace("model =", "before = model.weight.clone()\nwrapped =").replace("1000", "7")
    moved = "print('body moved', not torch.equal(model.weight, before))"
    peer = swarm.start(BEFORE + indented(net + planned + LOOP.replace("schedule.step()", "") + moved))
    assert peer.end() == 0, peer.report()
    assert peer.stdout[-2:] == ["done 16", "body moved True"]


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
