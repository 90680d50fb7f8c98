"""Four peers train a small GPT; one is killed in the middle, another joins, and nothing is lost.

    make demo

You will see the steps go by, one peer die by SIGKILL, and another take a seat. At the end the peers' own receipts are
checked, and the last line says what they prove, or what went wrong.
"""

import argparse
import random
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from .stage import KILLED_IN, NUM_PEERS, DemoFailed, Stage
from .verdict import Figures, Verdict, judge, measure

DRAW_EVERY_S = 0.25
DELAY_MAX_S = 0.2
"""Longer than a step, so that a kill can hit any part of one."""
MIN_STEPS, MAX_STEPS = 45, 600
"""A joiner needs time; and the text is finite."""
LAST_LINES = 25
LOSS = re.compile(rb"loss (\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Plan:
    """The times of the demo's events.

    Attributes:
        victim: rank of the peer that is killed.
        kill_step: the victim is killed after this step.
        delay_s: time from `kill_step` to the kill.
        join: another peer's process starts `after` the others have continued, or at the same time, `at-kill`; or it
            starts at `kill_step`, and the kill comes when it is `entering` the registry.
    """

    victim: int
    kill_step: int
    delay_s: float
    join: str


class Screen:
    """Shows the stage, if the output is a terminal; and prints a line for each event."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self._draw_at_s = 0.0

    def draw(self, stage: Stage) -> None:
        """Draw the stage, at most four times a second."""
        if self.console.is_terminal and time.monotonic() >= self._draw_at_s:
            self._draw_at_s = time.monotonic() + DRAW_EVERY_S
            self.live.update(self._picture(stage), refresh=True)

    def say(self, stage: Stage, text: str) -> None:
        """Print `text` with the current step."""
        self.console.print(f"step {max(stage.done, 0):3}: {text}")

    def _picture(self, stage: Stage) -> Group:
        losses = LOSS.findall((stage.folder / "peers.log").read_bytes()[-4096:])
        loss = f", loss {losses[-1].decode()}" if losses else ""
        view = "" if stage.newest is None else f", view {stage.newest.view_number}"
        done = max(stage.done, 0)
        table = Table("rank", "peer", "pid", "", title=f"step {done} of {stage.steps}{view}{loss}")
        for peer_id, entry in stage.entries.items():
            rank = str(stage.members.index(peer_id)) if peer_id in stage.members else ""
            state = "killed" if peer_id == stage.victim else "trains" if rank else "joins"
            table.add_row(rank, peer_id, str(entry.pid), state)
        return Group(table, ProgressBar(total=stage.steps, completed=done, width=60))


def direct(plan: Plan, stage: Stage, screen: Screen) -> None:
    """Start the peers, kill one, let one join, and wait for the end."""
    screen.say(stage, f"{NUM_PEERS} peers start")
    stage.start(KILLED_IN, NUM_PEERS)
    stage.wait(lambda: stage.done >= plan.kill_step, f"step {plan.kill_step}")
    founders = set(stage.members)
    if plan.join == "entering":
        start_joiner(stage, screen)
        stage.wait(lambda: len(stage.entries) > NUM_PEERS, "the other peer's entry in the registry")
    kill_at_s = time.monotonic() + plan.delay_s
    stage.wait(lambda: time.monotonic() >= kill_at_s, "the moment of the kill")
    if plan.join == "at-kill":
        start_joiner(stage, screen)
    screen.say(stage, f"SIGKILL to rank {plan.victim}, {stage.kill(plan.victim)}")
    stage.wait(lambda: stage.victim not in stage.members, "a step without the killed peer")
    screen.say(stage, f"{len(stage.members)} peers go on without it")
    if plan.join == "after":
        start_joiner(stage, screen)
    stage.wait(lambda: not founders.issuperset(stage.members), "a step with the other peer")
    screen.say(stage, f"the other peer has joined, so there are {len(stage.members)}")
    stage.wait_end()


def start_joiner(stage: Stage, screen: Screen) -> None:
    stage.start("joiner", 1)
    screen.say(stage, "another peer starts, to join")


def run_demo(plan: Plan, steps: int, home: Path, folder: Path) -> Verdict:
    """Run one demo and check its receipts; all its processes end, also after failures."""
    screen = Screen()
    stage = Stage(home, folder, steps, screen.draw)
    try:
        with stage, screen.live:
            direct(plan, stage, screen)
        run, records = stage.gather()
    except DemoFailed as failure:
        return Verdict(0, 0, "", (str(failure),))
    show(measure(run, records, stage.killed_at_s), screen.console)
    verdict = judge(run)
    return replace(verdict, failures=verdict.failures + stage.leftovers())


def show(figures: Figures, console: Console) -> None:
    """Print the cost of the kill as a table."""
    rows = {
        "SIGKILL to the next step, committed without the victim": figures.next_commit_s,
        "  until its death was known": figures.detection_s,
        "  from then until the next view was active": figures.view_change_s,
        "median step": figures.median_step_s,
    }
    table = Table("at the slowest survivor", "ms")
    for name, time_s in rows.items():
        table.add_row(name, "unknown" if time_s is None else f"{1000 * time_s:.1f}")
    console.print(table)


def print_output(folder: Path) -> None:
    """Print the last lines of the peers' output, to diagnose a failure."""
    for path in sorted(folder.glob("*.log")):
        print(f"--- the end of {path.name}")
        print("\n".join(path.read_text(errors="replace").splitlines()[-LAST_LINES:]))


def read_options() -> tuple[Plan, argparse.Namespace]:
    """The plan from the command line; the seed chooses what it leaves open."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="chooses the victim and the moment")
    parser.add_argument("--steps", type=int, default=150, help="how many steps to train, up to a few that are redone")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep receipts and output in DIR, which must be empty")
    parser.add_argument("--victim", type=int, choices=range(NUM_PEERS), metavar="RANK", help="who is killed")
    parser.add_argument("--kill-step", type=int, metavar="STEP", help="after which step")
    parser.add_argument("--join", choices=("after", "at-kill", "entering"), default="after", help="when another comes")
    options = parser.parse_args()
    if not MIN_STEPS <= options.steps <= MAX_STEPS:
        parser.error(f"--steps must be {MIN_STEPS} to {MAX_STEPS}: a peer has to join in time, and the text is finite")
    if options.keep is not None and options.keep.exists() and any(options.keep.iterdir()):
        parser.error(f"--keep needs an empty folder, and {options.keep} is not")
    rng = random.Random(options.seed)
    victim = rng.randrange(NUM_PEERS)
    kill_step = rng.randrange(options.steps // 5, options.steps * 2 // 5)
    delay_s = rng.uniform(0.0, DELAY_MAX_S)
    if options.victim is not None:
        victim = options.victim
    if options.kill_step is not None:
        kill_step = options.kill_step
    return Plan(victim, kill_step, delay_s, options.join), options


def end(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an exception, so that the peers are stopped on the way out."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; 0 if nothing was lost."""
    plan, options = read_options()
    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory(prefix="shoal-") as home:
        folder = options.keep or Path(home, "output")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            verdict = run_demo(plan, options.steps, Path(home), folder)
        except KeyboardInterrupt:
            print("demo: FAILED - interrupted")
            return 130
        if verdict.failures:
            print_output(folder)
        print(f"demo: {verdict}")
    return 1 if verdict.failures else 0


if __name__ == "__main__":
    sys.exit(main())
