"""Operations as they are drawn, among peers that die, join and are stopped meanwhile.

What must hold: each result is what plain numpy makes of the inputs of those on the receipt, bit by bit, wherever
tensors lie and whatever is set in the thread that calls; inputs and what lies beside them are untouched; all receipts
are alike.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Final

from p2p.forking.zygote import Zygote
from p2p.step.receipts import Receipt, read_receipts
from tests.live.swarm import Process, Swarm

SCRIPT: Final = Path(__file__).with_name("scripts") / "exchanged.py"
LAST_STEP: Final = 60
ARENAS: Final = (0, 1 << 30, 1 << 30, 64 << 20, 16 << 20)
"""The last one has room for slots, and for little else."""
STOPPED_S: Final = (0.05, 0.3, 4.0)


class Exchanged:
    """One run.

    Attributes:
        events: what has happened, in words.
    """

    def __init__(self, zygote: Zygote, seed: int) -> None:
        self._rng, self._seed, self._zygote = Random(seed), seed, zygote
        self.events: list[str] = []
        self._killed: set[Process] = set()

    def run(self) -> None:
        """From its start to its end.

        Raises:
            AssertionError: something does not hold; names what has happened.
        """
        with TemporaryDirectory(prefix="shoal-", dir="/tmp") as home, TemporaryDirectory(prefix="shoal-") as folder:
            swarm = Swarm(Path(home), Path(folder), self._zygote)
            swarm.leaves_files = True  # a joiner may be killed before it has a seat
            try:
                self._exchange(swarm)
                self._check(swarm)
            except AssertionError as error:
                raise AssertionError(f"{self.events}\n{error}") from error
            finally:
                for each in swarm.started:
                    each.kill()
            swarm.close()

    def _exchange(self, swarm: Swarm) -> None:
        rng, step = self._rng, 0
        number, arguments = rng.choice((1, 2, 3, 3, 4)), (self._seed, LAST_STEP, rng.choice(ARENAS))
        script, given = SCRIPT.read_text(), tuple(map(str, arguments))
        peers = swarm.start_all(number, script, *given)
        for _ in range(rng.choice((0, 1, 2, 3))):
            step += rng.randrange(2, 16)
            peers[0].reaches(step)
            members = [each for each in peers[:number] if each not in self._killed]
            kind = rng.choice(("join", "kill", "stop"))
            if kind == "join":
                peers.append(swarm.start(script, *given))
            elif len(members) > 1:
                self._hit(kind, rng.choice(members[1:]))
            self.events.append(f"{kind} at {step}")

    def _hit(self, kind: str, peer: Process) -> None:
        with suppress(ProcessLookupError):
            if kind == "kill":
                self._killed.add(peer)
                peer.kill()
                return
            os.kill(peer.pid, signal.SIGSTOP)
            Event().wait(self._rng.choice(STOPPED_S))
            os.kill(peer.pid, signal.SIGCONT)

    def _check(self, swarm: Swarm) -> None:
        for peer in swarm.started:
            code = peer.end()
            assert peer in self._killed or code == 0, peer.report()
        runs: dict[str, dict[int, Receipt]] = {}
        for path in swarm.receipts.glob("*.receipts.jsonl"):
            for receipt in read_receipts(path):
                known = runs.setdefault(receipt.lineage, {})
                assert known.setdefault(receipt.step, receipt) == receipt, "all have the same receipts"
