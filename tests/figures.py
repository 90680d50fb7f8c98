"""Tables of figures of the membership in simulation: `python -m tests.figures` (`make figures`).

Virtual time throughout, on links like those of one LAN unless a table says WAN, so the figures do not depend on the
machine; only the speed of the simulation itself does. Part one drives whole peers (views), part two discovery alone
(flocks of up to 2,000).
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from gossip import WAN, CoreConfig
from gossip.swim_config import SwimConfig
from tests.simulated import flock_figures as flocks
from tests.simulated import wide_area
from tests.simulated.network import LinkConditions
from tests.simulated.plan import Plan
from tests.simulation import Simulation

LAN = LinkConditions(delay_s=0.002, data_delay_s=0.002)
"""One-way delays up to 2 ms, one in twenty up to 16 ms."""

DEATH_S = 4.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """Time from the death of one of `size` members until the new view is active at all survivors; quantiles."""

    size: int
    is_proven: bool
    num_deaths: int
    p50_s: float
    p99_s: float
    worst_s: float


def recovery(size: int, *, is_proven: bool, deaths: int, is_wide: bool = False) -> Recovery:
    """Measure recoveries in a quiet swarm: in each run another member dies.

    Args:
        size: number of members.
        is_proven: the kernel tells all survivors immediately, with the acceptor record; otherwise there is no proof.
        deaths: number of runs.
        is_wide: links and timers of a WAN.
    """
    took = []
    for seed in range(deaths):
        death_s, end_s = (40.0, 80.0) if is_wide else (DEATH_S, DEATH_S + 6.0)
        lan = Plan(num_peers=size, most_peers=size, weather=LAN, compute_s=0.1, calm_s=end_s, end_s=end_s)
        plan = replace(lan, weather=wide_area.WEATHER, config=WAN) if is_wide else lan
        simulation = Simulation(seed, replace(plan, founding_size=size))
        moment, name = death_s + 0.037 * (seed % 27), f"p{1 + seed % size}"
        simulation.clock.at(moment, None, "death", _kill, simulation, name, is_proven)
        simulation.run()
        (death,) = simulation.deaths
        assert len(death.activated) == size - 1, f"seed {seed}: {size} members, and only {death.activated} go on"
        took.append(max(death.activated.values()) - death.at)
    return Recovery(size, is_proven, deaths, *_quantiles(took))


def _kill(simulation: Simulation, name: str, is_proven: bool) -> None:
    victim = next(peer for peer in simulation.alive() if peer.member.peer_id == name)
    victim.unproven = True
    simulation.end(victim, "killed")
    for peer in simulation.alive() if is_proven else ():
        peer.declare_dead(victim.member, "its process has ended", simulation.hosts.records.get(victim.member))


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], ordered[-1]


def show_recoveries(console: Console, sizes: Sequence[int], deaths: int, *, is_wide: bool) -> None:
    title = f"Death to new view, active at all, --network {'wan' if is_wide else 'lan'}"
    table = Table("members", "death", "deaths", "p50 ms", "p99 ms", "worst ms", title=title)
    for is_proven in (True, False):
        for size in sizes:
            found = recovery(size, is_proven=is_proven, deaths=deaths, is_wide=is_wide)
            numbers = (found.p50_s, found.p99_s, found.worst_s)
            name = "proven" if is_proven else "silent"
            table.add_row(str(size), name, str(deaths), *(f"{1000 * number:.1f}" for number in numbers))
    console.print(table)


def show_wide_area(console: Console, seeds: Sequence[int]) -> None:
    """Healthy members on bad links: 150 to 250 ms one way, 1 % loss, and links that stall now and then."""
    table = Table("members", "a link stalls for", "lan", "wan", title="Healthy members removed in 180 s, per seed")
    for size in (2, 4, 8):
        for stall_s in (0.0, 1.0, 2.0, 4.0):
            cells = []
            for config in (CoreConfig(), WAN):
                found = [wide_area.removed(size, config, seed=seed, stall_s=stall_s) for seed in seeds]
                cells.append(" / ".join(map(str, found)))
            table.add_row(str(size), f"{stall_s:g} s", *cells)
    console.print(table)


def show_discovery(console: Console, sizes: Sequence[int], seeds: Sequence[int]) -> None:
    """Spread, detection, bad links and partitions, in flocks."""
    table = Table("peers", "what", *(f"seed {seed}" for seed in seeds), title="Discovery alone")
    for size in sizes:
        spreads = [flocks.spread(size, loss=0.1, seed=seed) for seed in seeds]
        table.add_row(str(size), "update at all, 10 % loss, s", *(f"{spread.last_s:.2f}" for spread in spreads))
    for size in (100, sizes[0]):
        found = [flocks.detection(size, seed=seed) for seed in seeds]
        cells = (f"{one.p50_s:.1f}, {one.p99_s:.1f}" for one in found)
        table.add_row(str(size), "silent crash lost at half, at 99 %, s", *cells)
    for size, num_lossy in ((100, 1), (500, 5)):
        lossy = [flocks.lossy(size, num_lossy, seed=seed, for_s=90.0) for seed in seeds]
        cells = (f"{one.removed_after_s:.1f}, {one.healthy_lost}" for one in lossy)
        table.add_row(str(size), f"{num_lossy} with 80 % loss out after s, healthy out", *cells)
    for loss in (0.8, 0.5):
        lossy = [flocks.lossy(8, 1, seed=seed, loss=loss, for_s=300.0, beat_s=0.25) for seed in seeds]
        cells = (f"{one.out_share:.2f}" for one in lossy)
        table.add_row("8", f"1 with {loss:.0%} loss, who beats: share of the time out", *cells)
    healed = [flocks.healing(20, seed=seed) for seed in seeds]
    table.add_row("20", "halves whole again after 60 s apart, s", *(f"{one.healed_after_s:.1f}" for one in healed))
    console.print(table)


def show_false_alarms(console: Console, seeds: Sequence[int]) -> None:
    """False alarms with four of 100 members stalled for random times: they receive nothing, or do nothing at all."""
    modes = {"Lifeguard": SwimConfig(), "suspicion only": flocks.SUSPECTING, "neither": flocks.PLAIN}
    columns = ("the four are", "mode", "healthy ones declared lost", "anybody declared lost")
    table = Table(*columns, title="4 of 100 stalled for 1 to 20 s again and again, 120 s, per seed")
    for is_deaf in (True, False):
        for name, config in modes.items():
            found = [flocks.false_alarms(4, seed=seed, config=config, is_deaf=is_deaf) for seed in seeds]
            healthy, anybody = ([one.healthy_declared for one in found], [one.all_declared for one in found])
            what = "deaf" if is_deaf else "stopped"
            table.add_row(what, name, " / ".join(map(str, healthy)), " / ".join(map(str, anybody)))
    console.print(table)


def show_costs(console: Console, sizes: Sequence[int]) -> None:
    """Traffic and memory of an idle peer, and the time to simulate a minute on one core."""
    columns = ("peers", "sent B/s", "most", "received B/s", "memory per known peer, B", "a simulated minute, s")
    table = Table(*columns, title="Cost of discovery per peer (message sizes by a model of msgpack)")
    for size in sizes:
        idle, memory = flocks.idle(size, seed=1), flocks.memory(size, seed=1)
        traffic = (idle.sent_bytes_per_s, idle.most_sent_bytes_per_s, idle.received_bytes_per_s)
        cells = (*(f"{rate:.0f}" for rate in traffic), f"{memory.bytes_per_peer:.0f}", f"{idle.took_s:.1f}")
        table.add_row(str(size), *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=__doc__.split("\n")[0])
    parser.add_argument("--deaths", type=int, default=60, metavar="N", help="deaths per row")
    parser.add_argument("--quick", action="store_true", help="small flocks, few deaths")
    arguments = parser.parse_args()
    console = Console()
    deaths, seeds = (10, (1,)) if arguments.quick else (arguments.deaths, (1, 2, 3))
    show_recoveries(console, (3, 4, 8) if arguments.quick else (3, 4, 6, 8, 12, 16), deaths, is_wide=False)
    show_recoveries(console, (3, 8), deaths, is_wide=True)
    show_wide_area(console, seeds)
    show_discovery(console, (1000,) if arguments.quick else (1000, 2000), seeds)
    show_false_alarms(console, seeds)
    show_costs(console, (16, 64, 256) if arguments.quick else (16, 64, 256, 1000, 2000))


if __name__ == "__main__":
    main()
