"""Drawn scripts, whose peers die, join, leave, are stopped, and resume from checkpoints.

Invariants: each sample of each loader is on one receipt, and `peer.samples` agrees; peers that complete a run have the
same parameters; only peers that were killed, or stopped until the run was over, end in another way.
"""

import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

from p2p.data.ranges import each as positions
from p2p.forking.zygote import Zygote
from p2p.step.receipts import Receipt, read_receipts
from tests.live.swarm import Process, Swarm, name

SCRIPT: Final = Path(__file__).with_name("scripts") / "drawn.py"
MOST: Final = 4
OPERATIONS: Final = ("sum", "evaluate", "gather", "barrier")
STEPS_BETWEEN: Final = (1, 3, 10, 20)
STOPPED_S: Final = (0.1, 0.5, 2.0, 5.0)
IS_OVER: Final = "no member of the swarm is left"
"""Message of a joiner that came when the run was just ending."""
IS_OVER_NOW: Final = "is over, so there is nothing to join", "this peer does not join it: start it again to take part"
"""Messages of a stopped peer that continued after the end of the run: to no swarm, or to one that a joiner founded."""


def draw(rng: Random) -> dict[str, Any]:
    """Draw the plan of a script."""
    how = rng.choice(("dense", "dense", "inner steps", "by time"))
    is_dense = how == "dense"
    loader: dict[str, Any] = rng.choice(({"global_batch": 12}, {"batch_per_peer": 4}))
    lengths: dict[str, dict[str, Any]] = {
        "inner steps": {"inner_steps": rng.choice((1, 3))},
        "by time": {"round_s": 0.02},
    }
    accumulates = is_dense and rng.random() < 0.3
    return {
        "wrap": None if is_dense else rng.choice(({}, {"codec": "sparse16"}, {"dense_steps": 5})),
        "loader": loader | lengths.get(how, {}),
        "norm": not accumulates and rng.random() < 0.4,
        "size": rng.choice((97, 200)),
        "epochs": rng.choice(((2,), (4,), (2, 1))),
        "top": (rng.choice(OPERATIONS), rng.choice((0, 1, 3, 10))),
        "bottom": (rng.choice(OPERATIONS), rng.choice((0, 0, 1, 5))),
        "behind": rng.choice(("", *OPERATIONS)),
        "looks_on": rng.random() < 0.5,
        "updates": rng.choice((1, 1, 2)) if is_dense and not accumulates else 1,
        "accumulates": accumulates,
        "pause_s": rng.choice((0.001, 0.004, 0.01)),
        "every": rng.choice((1, 3, 7)),
    }


def draw_changes(rng: Random) -> dict[int, str]:
    """Draw the changes of a model, by training step."""
    kinds = ("unfreeze", "grow")[: rng.choice((0, 1, 2, 2))]
    return dict(zip(sorted(rng.sample(range(1, 40), len(kinds))), kinds, strict=True))


class Drawn:
    """One run.

    Attributes:
        plan: of the script.
        events: the events so far, in words.
    """

    def __init__(self, zygote: Zygote, seed: int) -> None:
        self._rng = Random(seed)
        self.plan = draw(self._rng)
        self.plan["changes"] = {} if self.plan["wrap"] is not None else draw_changes(Random(f"changes {seed}"))
        self.events: list[str] = []
        self._zygote = zygote
        self._expected = self.plan["size"] * sum(self.plan["epochs"])
        self._ended: set[Process] = set()
        self._stopped: set[Process] = set()

    def run(self) -> None:
        """Run it from start to end.

        Raises:
            AssertionError: an invariant does not hold; names the plan and the events.
        """
        with TemporaryDirectory(prefix="shoal-", dir="/tmp") as home, TemporaryDirectory(prefix="shoal-") as folder:
            swarm = Swarm(Path(home), Path(folder), self._zygote)
            swarm.leaves_files = True  # a joiner that came too late founds another run, and may be killed there alone
            arguments = [json.dumps(self.plan)]
            if self._rng.random() < 0.5:
                arguments.append(str(Path(folder) / "kept"))
            try:
                peers = self._train(swarm, arguments)
                self._check_receipts(swarm)
                self._check_ends(swarm, peers)
            except AssertionError as error:
                raise AssertionError(f"{self.plan}\n{self.events}\n{error}") from error
            finally:
                for each in swarm.started:
                    each.kill()
            swarm.close()

    def _train(self, swarm: Swarm, arguments: list[str]) -> list[Process]:
        """Train, with all events; returns all peers."""
        script, number = SCRIPT.read_text(), self._rng.choice((2, 3))
        peers = [swarm.start(script, *arguments, min_peers=number)]
        if self._rng.random() < 0.5:
            swarm.environ["DIES_AT"] = str(self._rng.choice(STEPS_BETWEEN))
        peers += [swarm.start(script, *arguments, min_peers=number) for _ in range(number - 1)]
        if swarm.environ.pop("DIES_AT", None):
            self._ended.update(peers[1:])
            self.events.append("some are killed in a call")
        for _ in range(self._rng.choice((1, 2, 3, 4))):
            self._wait(peers[0])
            living = [peer for peer in peers if peer not in self._ended and not peer.has_ended()]
            kind = self._rng.choice(("join", "join", "kill", "leave", "stop"))
            if kind == "join" and len(living) < MOST:
                peers.append(swarm.start(script, *arguments))
            elif kind == "stop" and len(living) > 1:
                self._stop(self._rng.choice(living))
            elif kind in ("kill", "leave") and len(living) > 1:
                self._end(self._rng.choice(living[1:]), kind)
            self.events.append(kind)
        if len(arguments) == 1:
            return peers
        self._wait(peers[0])
        for peer in peers:
            peer.kill()
        self._ended.update(peers)
        assert all(peer.end() is not None for peer in peers)
        self.events.append("all are killed")
        again = swarm.start_all(self._rng.choice((1, 2, 3)), script, *arguments)
        return [*peers, *again]

    def _wait(self, peer: Process) -> None:
        """Wait until `peer` has made some more steps, or has ended."""
        steps = [int(line.split()[1]) for line in peer.stdout if line.startswith("step ")]
        peer.reaches(max(steps, default=-1) + self._rng.choice(STEPS_BETWEEN))

    def _stop(self, peer: Process) -> None:
        with suppress(ProcessLookupError):
            os.kill(peer.pid, signal.SIGSTOP)
            Event().wait(self._rng.choice(STOPPED_S))
            os.kill(peer.pid, signal.SIGCONT)
        self._stopped.add(peer)

    def _end(self, peer: Process, how: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(peer.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)
        self._ended.add(peer)

    def _check_ends(self, swarm: Swarm, peers: list[Process]) -> None:
        """Check how peers have ended. A joiner that comes after a run's end founds another, with other parameters."""
        ends: dict[str, set[str]] = {}
        for peer in peers:
            code = peer.end()
            is_late = any(reason in line for line in peer.stderr for reason in IS_OVER_NOW)
            if peer in self._ended or (peer in self._stopped and is_late and not code):
                continue
            assert not code or any(IS_OVER in line for line in peer.stderr), peer.report()
            receipts = read_receipts(swarm.receipts / f"{name(peer)}.receipts.jsonl")
            if not code and receipts:  # otherwise it reached the end of the run without a seat
                ends.setdefault(receipts[-1].lineage, set()).add(peer.stdout[-1])
        assert ends, "somebody comes to the end"
        for lines in ends.values():
            assert len(lines) == 1 and min(lines).split()[:2] == ["end", str(self._expected)], ends

    def _check_receipts(self, swarm: Swarm) -> None:
        runs: dict[str, dict[int, Receipt]] = {}
        for path in swarm.receipts.glob("*.receipts.jsonl"):
            for receipt in read_receipts(path):
                known = runs.setdefault(receipt.lineage, {})
                assert known.setdefault(receipt.step, receipt) == receipt, "all have the same receipts"
        for run in runs.values():
            used = Counter(
                (receipt.loader, position)
                for receipt in run.values()
                for each in receipt.contributions
                for position in positions(each.samples)
            )
            assert not used or max(used.values()) == 1, f"{used.most_common(3)} in a run of {len(run)} steps"
            assert used.total() == sum(receipt.num_samples for receipt in run.values())
