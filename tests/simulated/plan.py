"""The plan of one run: its peers, links and faults; drawn from a seed, or given by a script."""

from dataclasses import dataclass, field, replace
from random import Random

from gossip import CoreConfig
from gossip.admission import AdmissionConfig
from gossip.reports import ReportsConfig
from gossip.swim_config import SwimConfig
from gossip.view import HARDWARE_BYTES, NO_NUMERICS, Policy

from .network import LinkConditions

FAULTS: dict[str, float] = {
    "crash": 3,
    "two crashes": 1,
    "crash between two effects": 2,
    "quick restart": 2,
    "mass restart": 0.5,
    "host crash": 0.5,
    "full restart": 0.15,
    "pause": 2,
    "join": 2,
    "join storm": 0.5,
    "leave": 1,
    "leave and join": 0.7,
    "all leave": 0.1,
    "false evidence": 1,
    "abort": 1,
    "withdraw": 1,
    "partition": 3,
    "flapping": 1,
    "flip-flop": 0.5,
    "swizzle": 1,
    "link reset": 1.5,
    "bad peer": 0.5,
    "silent launcher": 0.7,
    "aimed": 5,
}
"""Weights of the faults in runs that have them. faults.py describes each."""

FIRST_MIXED = 5_000_000
"""From this seed on, runs have several kinds of hardware; earlier seeds are unchanged."""

FIRST_MEASURED = 20_000_000
"""From this seed on, peers also measure their links."""

FIRST_MOVED = 40_000_000
"""From this seed on, steps also have a broadcast."""

FIRST_SHARED = 60_000_000
"""From this seed on, each peer also has a line of its own, and states come from several donors."""

FIRST_HELD = 70_000_000
"""From this seed on, also steps of the model are alike, so that scripts of slow observers are held. There may be room
for only few steps that observers are fed."""

FIRST_CALLED = 80_000_000
"""From this seed on, peers also call their seeds, of which the first founds, also when it restarts."""

PLOTS: dict[str, float] = {
    "": 70,
    "turnover": 4,
    "deciders die": 5,
    "acceptors die": 4,
    "late sleeper": 4,
    "admission massacre": 4,
    "slow readers": 5,
    "silent joiner": 4,
}
"""Weights of the plots, which need several faults in one order (fault_stories.py); most runs have none."""


PACE = 0.3
"""Duration of a step at an observer that is not slow, relative to a member's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A fault of the named peer at a fixed time. A `silent crash` has no proof."""

    at: float
    fault: str
    peer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All properties of a run that its seed would draw. Defaults: a quiet LAN, one host, no faults.

    Attributes:
        founding: `one`: one peer founds and the others join; `seeds`: peers found by a list of seeds; `two`: two peers
            that do not know each other found.
        arrival_s: all peers are launched within this time, the founder immediately.
        compute_s: mean time of a backward pass.
        two_phase: an operation is a reduce-scatter and an all-gather; otherwise each member sums everything.
        lends: on one host data frames carry references, and are read up to `late_read_s` later, with a tail.
        follows: share of the joiners that observe before they ask for a seat.
        own_every: one in this many steps is an operation of the script's own; 0: none.
        slowness: factor of an observer's step time, until the faults end.
        has_phases: steps of the model differ, so that a slow observer has to run the steps that it is fed.
        drift: greatest relative drift of clocks.
        num_damages: number of times that a member's parameters change in its memory.
        num_kinds: number of kinds of hardware, each a numerics class.
        measured_s: approximate interval at which a peer's measurements of its links change; 0: none are made.
        broadcasts: each step of the model has one, from p1, p2 and p3 in turn.
        shares: each peer has a host of its own, so that several donors give a state to a joiner.
        calls: peers know those on their host, and call this many seeds, p1 first (G15); 0: they find some otherwise.
        restarts: after the death of all members, on several hosts, an observer continues (R29).
        places: hosts of the first peers, in the order of their launches; those of the others are drawn.
        kinds: a digit for each of p1, p2 and so on: the kind of its hardware; that of the others is drawn.
        unlike: peers that train another model than the others.
        changes_in: step in which all agree on another model; 0: none.
        calm_s: time at which all faults end.
    """

    num_peers: int = 3
    num_hosts: int = 1
    most_peers: int = 6
    policy: Policy = Policy.LIVE
    founding: str = "one"
    founding_size: int = 1
    arrival_s: float = 0.0
    weather: LinkConditions = field(default_factory=LinkConditions)
    config: CoreConfig = field(default_factory=CoreConfig)
    compute_s: float = 0.2
    two_phase: bool = False
    lends: bool = False
    late_read_s: float = 0.0
    follows: float = 1.0
    own_every: int = 0
    slowness: float = 1.0
    has_phases: bool = False
    drift: float = 0.0
    faults: tuple[tuple[str, float], ...] = ()
    fault_interval_s: float = 1.0
    plot: str = ""
    script: tuple[Scripted, ...] = ()
    num_damages: int = 0
    num_kinds: int = 1
    kinds: str = ""
    unlike: tuple[str, ...] = ()
    changes_in: int = 0
    measured_s: float = 0.0
    broadcasts: bool = False
    shares: bool = False
    restarts: bool = False
    calls: int = 0
    places: tuple[int, ...] = ()
    calm_s: float = 25.0
    end_s: float = 45.0

    @property
    def is_quiet(self) -> bool:
        """Whether the run has no faults: the links are good, and no process ends or stops."""
        return not self.faults and not self.plot and not self.script and self.weather.loss <= 0.02

    def hardware_of(self, peer_id: str) -> bytes:
        """The hardware of a peer, the same after each restart."""
        if self.num_kinds == 1:
            return NO_NUMERICS
        known = {f"p{place}": int(kind) for place, kind in enumerate(self.kinds, 1)}
        kind = known.get(peer_id, Random(peer_id).randrange(self.num_kinds))
        return bytes([kind + 1]) * HARDWARE_BYTES + NO_NUMERICS[HARDWARE_BYTES:]

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """The plan of this seed; from `FIRST_MIXED` on hardware differs."""
        plan = replace(cls.draw(Random(f"{seed}/plan")), has_phases=seed < FIRST_HELD)
        if seed < FIRST_MIXED:
            return plan
        rng = Random(f"{seed}/kinds")
        num_kinds = rng.choice((2, 2, 3))
        kinds = "".join(str(rng.randrange(num_kinds)) for _ in range(8))
        num_damages = plan.num_damages or rng.choice((0, 0, 1))
        measured_s = rng.choice((0.1, 1.0, 3.0)) if seed >= FIRST_MEASURED else 0.0
        plan = replace(plan, num_damages=num_damages, measured_s=measured_s, broadcasts=seed >= FIRST_MOVED)
        if seed >= FIRST_SHARED:
            num_kinds, plan = rng.choice((1, 1, num_kinds)), replace(plan, shares=True)
        if seed >= FIRST_HELD:
            config = replace(plan.config, most_fed=rng.choice((3, 6, 1024)))
            plan = replace(plan, slowness=rng.choice((1.0, 8.0, 30.0)), config=config)
        if seed >= FIRST_CALLED:
            plan = replace(plan, founding="seeds", calls=rng.choice((1, 1, 2)))
        return replace(plan, num_kinds=num_kinds, kinds=kinds)

    @classmethod
    def draw(cls, rng: Random) -> "Plan":
        """Draw a plan by swarm testing: each run has its own selection of faults, so that none always hides another."""
        weather = LinkConditions.draw(rng)
        plot = rng.choices(list(PLOTS), list(PLOTS.values()))[0]
        faults = tuple((name, weight) for name, weight in FAULTS.items() if rng.random() < 0.6)
        plan = cls(
            num_peers=rng.randint(2, 5),
            num_hosts=rng.choice((1, 1, 2, 3)),
            policy=rng.choice((Policy.LIVE, Policy.LIVE, Policy.MAJORITY)),
            founding=rng.choices(("one", "seeds", "two"), (12, 3, 1))[0],
            founding_size=rng.choice((1, 2)),
            arrival_s=rng.choice((0.0, 2.0)),
            weather=weather,
            config=config_for(weather),
            compute_s=rng.choice((0.1, 0.3, 0.6)),
            two_phase=rng.random() < 0.3,
            lends=rng.random() < 0.6,
            late_read_s=rng.choice((0.0, 0.05, 0.5)),
            follows=rng.choice((0.0, 0.8, 0.8, 1.0)),
            drift=rng.choice((0.0, 0.02)),
            faults=faults or tuple(FAULTS.items()),
            fault_interval_s=rng.choice((0.5, 1.0, 2.0, 4.0)),
            plot=plot,
        )
        plan = plan._fit(rng)
        num_damages = rng.choice((0, 0, 0, 0, 0, 1, 2))
        if plan.plot != "silent joiner" and num_damages:
            founding_size = rng.choice(
                (plan.founding_size, plan.num_peers)
            )  # more founders, which may not outvote each other
            plan = replace(plan, num_damages=num_damages, founding_size=founding_size)
        return replace(plan, own_every=rng.choice((0, 0, 3)), slowness=rng.choice((1.0, 1.0, 8.0)))

    def _fit(self, rng: Random) -> "Plan":
        """Adapt the plan to the needs of its plot."""
        if self.plot in ("turnover", "late sleeper"):
            return replace(self, num_peers=rng.randint(3, 5), policy=Policy.LIVE, founding="one", fault_interval_s=4.0)
        if self.plot in ("deciders die", "acceptors die"):
            return replace(self, num_peers=rng.randint(3, 5))
        if self.plot == "slow readers":
            return replace(self, num_hosts=1, lends=True, late_read_s=0.5, compute_s=0.1, num_peers=rng.randint(3, 5))
        if self.plot == "silent joiner":
            quiet = LinkConditions(delay_s=0.002, data_delay_s=0.002)
            quiet_plan = replace(self, faults=(), weather=quiet, config=config_for(quiet), founding="one")
            return replace(quiet_plan, late_read_s=0.0, compute_s=0.1, num_peers=rng.randint(2, 4))
        return self


def config_for(weather: LinkConditions) -> CoreConfig:
    """Timers that fit these links; returning members are held back for seconds, not minutes."""
    admission = AdmissionConfig(hold_down_s=0.5, hold_down_max_s=4.0)
    if weather.delay_s < 0.1 and weather.loss < 0.3:
        return CoreConfig(admission=admission)
    reports = ReportsConfig(silent_s=3.0, lease_s=3.0, stable_s=0.6, force_cut_s=6.0)
    return CoreConfig(
        swim=SwimConfig(probe_interval_s=2.0, probe_timeout_s=1.0, gap_s=1.5, gaps_window_s=20.0),
        reports=reports,
        admission=replace(admission, lease_s=3.0),
        beat_s=0.4,
        stale_s=3.0,
        pause_s=1.5,
    )
