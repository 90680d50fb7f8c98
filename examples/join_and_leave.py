"""An elastic experiment from one command: peers come and go while they train, and their receipts prove the rest.

    python -m examples.join_and_leave

You will see two peers train examples/custom_loop.py, a third join them, the one of rank 0 die by SIGKILL, and the third
leave as it is asked to. Then, from the receipts: how many steps were committed with how many members, on how
many samples, and what that proves, or what went wrong.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("custom_loop.py")
NUM_SAMPLES, NUM_ROUNDS = 4096, 20
LOOK_EVERY_S, LIMIT_S = 0.05, 120.0


class Experiment:
    """Launches of one script in one swarm, watched through the receipts that their peers write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.swarm = f"join-and-leave-{os.getpid()}"
        self.launches: list[subprocess.Popen[bytes]] = []
        self._end_at_s = time.monotonic() + LIMIT_S

    def start(self, num_peers: int, *options: str) -> subprocess.Popen[bytes]:
        """Start `num_peers` peers with `shoal run`."""
        command = [sys.executable, "-m", "p2p", "run", "-n", str(num_peers), "--swarm", self.swarm, *options]
        command += ["--receipts", str(self.folder), str(SCRIPT), "--samples", str(NUM_SAMPLES), "--epochs", "1000000"]
        with (self.folder / "output.log").open("ab") as log:
            self.launches.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        return self.launches[-1]

    def pids(self) -> dict[str, int]:
        """Process ids of the running peers, by peer_id, from `shoal status`."""
        command = [sys.executable, "-m", "p2p", "status", self.swarm, "--json"]
        (swarm,) = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["swarms"].values()
        return {peer["peer_id"]: peer["pid"] for peer in swarm["peers"]}

    def members(self) -> tuple[int, list[str]]:
        """The last committed step, and the members on its receipt, in rank order."""
        whole = (path.read_bytes().split(b"\n")[:-1] for path in self.folder.glob("*.receipts.jsonl"))
        last = [json.loads(lines[-1]) for lines in whole if lines]
        receipt: dict[str, Any] = max(last, key=lambda each: each["step"], default={"step": -1, "contributions": ()})
        return receipt["step"], [each["peer_id"] for each in receipt["contributions"]]

    def watch(self, number: int, what: str) -> list[str]:
        """Wait until `number` members have trained for some rounds; returns their peer_ids."""
        first = -1
        while True:
            step, members = self.members()
            if len(members) != number:
                first = -1
            elif first < 0:
                first = step
                print(f"step {step:4}: {what}, world size {number}", flush=True)
            elif step >= first + NUM_ROUNDS:
                return members
            with suppress(subprocess.TimeoutExpired):
                self.launches[0].wait(LOOK_EVERY_S)
            if self.launches[0].returncode is not None or time.monotonic() > self._end_at_s:
                raise SystemExit(f"{(self.folder / 'output.log').read_text()}\nit did not happen: {what}")


def check(versions: list[list[dict[str, Any]]]) -> str:
    """Check the receipts of each step; returns what they prove. Raises AssertionError if they prove a mistake."""
    receipts = [receipt for receipt, *_ in versions]
    assert [receipt["step"] for receipt in receipts] == list(range(len(receipts))), "steps are missing"
    different = [same[0]["step"] for same in versions if len(same) > 1]
    assert not different, f"peers have different receipts of step {different[0]}"
    parts = [part for receipt in receipts for each in receipt["contributions"] for part in each["samples"]]
    used = Counter(position for first, number in parts for position in range(first, first + number))
    num_epochs = max(used) // NUM_SAMPLES  # the last one was not over
    assert max(used.values()) == 1, "a sample counts twice"
    assert all(position in used for position in range(num_epochs * NUM_SAMPLES)), "a sample is lost"
    return f"{len(receipts) - 1} steps, 0 lost, the same bits at all; {num_epochs} epochs, each sample once in each"


def main() -> None:
    """Run the experiment, then check its receipts."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(Path(folder))
        try:
            experiment.start(2)
            founders = experiment.watch(2, "two peers have founded a swarm")
            joined = experiment.start(1, "--join")
            experiment.watch(3, "a third has joined")
            os.kill(experiment.pids()[founders[0]], signal.SIGKILL)
            experiment.watch(2, "the one of rank 0 was killed")
            joined.send_signal(signal.SIGTERM)
            experiment.watch(1, "the one that had joined has left")
        finally:
            for launch in experiment.launches:
                launch.send_signal(signal.SIGTERM)  # the remaining peers leave
            for launch in experiment.launches:
                launch.wait()
        lines = {line for path in Path(folder).glob("*.receipts.jsonl") for line in path.read_text().splitlines(True)}
    receipts = sorted((json.loads(line) for line in lines if line.endswith("\n")), key=lambda each: each["step"])
    versions = [list(group) for _, group in groupby(receipts, key=lambda each: each["step"])]
    print("members  steps  samples")
    for number, group in groupby((each[0] for each in versions[1:]), key=lambda each: len(each["contributions"])):
        samples = [sum(each["num_samples"] for each in receipt["contributions"]) for receipt in group]
        print(f"{number:7}  {len(samples):5}  {sum(samples):7}")
    print(f"join_and_leave: OK - {check(versions)}")


if __name__ == "__main__":
    main()
