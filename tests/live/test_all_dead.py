"""All members die, and observers continue with the newest remaining state, if they are configured to."""

from pathlib import Path

import pytest

from p2p.checkpoint.folder import checkpoints
from p2p.checkpoint.manifest import read_manifest
from p2p.checkpoint.tree import from_json
from p2p.data.ranges import union
from p2p.data.track import unpack_samples
from p2p.experiment.evaluation.receipt_check import check
from p2p.experiment.folder import read_run
from p2p.step.receipts import read_continued, read_receipts
from tests.cases import some_of
from tests.live.swarm import Swarm, name

pytestmark = [pytest.mark.torch, pytest.mark.light]

TRAIN = """
import sys
import torch
import p2p

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
with p2p.join(on_all_dead=sys.argv[1]) as peer:
    print("here", peer.peer_id)
    settings = p2p.Checkpoint(sys.argv[3], every=1_000_000)
    parallel = p2p.DataParallel(peer, model, optimizer, checkpoint=settings)
    hold = int(sys.argv[2])
    for x in peer.loader(torch.randn(100_000, 4), global_batch=4):
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        hold -= 1
        if not hold:
            print("holds", peer.done)
            sys.stdin.readline()
        print("step", peer.done, peer.rank, peer.world_size)
        if peer.rank < peer.world_size == int(sys.argv[4]) and peer.done % 20 == 0:
            break  # all members alike
"""
"""A peer that waits in its loop after one step is no member, since it was not compared, and keeps its state."""


@pytest.mark.parametrize("holds", some_of([((1,),), ((1, 1),)], 1), ids=["alone", "two at other steps"])
def test_who_holds_the_newest_state_goes_on_with_it_and_the_others_join(
    swarm: Swarm, tmp_path: Path, holds: tuple[int, ...]
) -> None:
    swarm.leaves_files, folder = True, str(tmp_path / "checkpoints")
    member = swarm.start(TRAIN, "restart", "0", folder, "9")
    member.expect_step(5)
    observers, held = [], []
    for number in holds:
        observers.append(swarm.start(TRAIN, "restart", str(number), folder, str(len(holds))))
        held.append(int(observers[-1].expect("holds").split()[1]))
        member.expect_step(held[-1] + 40)
    member.kill()
    member.end()
    for peer in observers:
        peer.tell("go on")
    assert [peer.end() for peer in observers] == [0] * len(observers), observers[0].report()
    paths = {peer: swarm.receipts / f"{name(peer)}.receipts.jsonl" for peer in observers}
    ((heir, continued),) = [(peer, each) for peer in observers for each in read_continued(paths[peer]).values()]
    before = read_receipts(swarm.receipts / f"{name(member)}.receipts.jsonl")
    after = read_receipts(paths[heir])
    assert continued.lineage == before[0].lineage != after[0].lineage and {each.lineage for each in after} == {
        after[0].lineage
    }
    assert after[0].step == 0 and max(held) <= continued.step <= continued.last_step, (
        "a newer state may have come since"
    )
    assert continued.last_step in (before[-1].step, before[-1].step + 1), "its receipt is written a moment later"
    kept = [part for each in before[: continued.step + 1] for c in each.contributions for part in c.samples]
    new = [part for each in after for c in each.contributions for part in c.samples]
    (whole,) = union([*kept, *new])
    assert whole[0] == 0, "what was lost is counted again, and nothing twice"
    chain = check(read_run(swarm.receipts))
    lost = range(continued.step + 1, continued.last_step + 1)
    assert chain.lost == tuple((continued.lineage, step) for step in lost) and (chain.twice, chain.missing) == (0, 0)
    assert (chain.num_samples, chain.num_samples_lost) == (whole[1], 4 * len([r for r in before if r.step in lost]))
    assert any(f"from step {continued.step} of lineage" in line for line in heir.stderr)
    (checkpoint,) = [read_manifest(path) for path in checkpoints(Path(folder))]
    assert (checkpoint.lineage, checkpoint.ancestry.start) == (after[0].lineage, 2)
    assert unpack_samples(from_json(checkpoint.tree["samples"], {})).run.hex() == continued.lineage, (
        "it is the same run"
    )


def test_by_default_they_stop(swarm: Swarm, tmp_path: Path) -> None:
    swarm.leaves_files, folder = True, str(tmp_path / "checkpoints")
    member = swarm.start(TRAIN, "stop", "0", folder, "9")
    member.expect_step(5)
    observer = swarm.start(TRAIN, "stop", "1", folder, "9")
    held = int(observer.expect("holds").split()[1])
    member.expect_step(held + 40)
    member.kill()
    member.end()
    observer.tell("go on")
    assert observer.end() == 1
    assert "all members of swarm 'default' are gone" in observer.stderr[-1]


ALONE = """
import sys
import torch
import p2p
from p2p.loop.seat_request import AllMembersDead

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with p2p.join() as peer:
    parallel = p2p.DataParallel(peer, model, optimizer, checkpoint=p2p.Checkpoint(sys.argv[1], every=5))
    keeper, share = peer._session.membership.keeper, peer._session.share
    while (newest := keeper._newest()) is None:
        optimizer.zero_grad()
        parallel(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    done, share.num_trained = share.num_trained, newest.step - 1
    print(newest.step)
    try:
        keeper.check_is_newest(AllMembersDead("all are dead"))
    except AllMembersDead as error:
        print(error)
    share.num_trained = done
    keeper.check_is_newest(AllMembersDead("all are dead"))
"""


def test_nobody_goes_on_with_a_state_that_is_older_than_a_checkpoint(swarm: Swarm, tmp_path: Path) -> None:
    peer = swarm.start(ALONE, str(tmp_path / "checkpoints"))
    assert peer.end() == 0, peer.report()
    step, error = peer.stdout
    assert error == (
        f"all members have died; this peer holds the state after {int(step) - 1} steps of training, but there is a "
        f"checkpoint after {step}: start all peers again to resume it"
    )
