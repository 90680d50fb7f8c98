"""Whether a launch may begin, and in which places: `--new` only founds a run, `--join` joins none that is over."""

from collections.abc import Collection
from itertools import count, islice

from gossip.messages import Difference

from ..errors import LaunchError, RegistryError, RunEnded
from ..host.entry import ProgramTraits, unpack_program
from ..host.folders import lock_byte, open_lock
from ..host.naming import SCRIPT
from ..host.registry import Registry
from ..session.description import describe_program, explain_program
from .config import LaunchConfig


def check_is_new(registry: Registry) -> None:
    """Raise LaunchError if peers of this swarm run on this host."""
    living, _ = registry.read(apart_from="")
    if living:
        pids = ", ".join(str(entry.pid) for entry in living)
        raise LaunchError(
            f"swarm {registry.swarm} is under way here (pid {pids}), and --new only founds one: "
            "pass --join or another --swarm"
        )


def check_runs_the_same(config: LaunchConfig, registry: Registry) -> None:
    """Raise LaunchError if peers of this swarm run something else on this host. Peers elsewhere refuse ours later."""
    target = config.target
    if target.kind == "command":
        return
    unknown = set() if target.program.file else {SCRIPT}
    ours = describe_program(_without(target.program.traits(), unknown), config.may_differ)
    for entry in registry.read(apart_from="")[0]:
        program, may_differ = unpack_program(entry.program)
        theirs = describe_program(_without(program, unknown), may_differ)
        if names := ours.description.differences(theirs.description):
            what = explain_program(ours, [Difference(name, theirs.texts.get(name)) for name in names])
            raise LaunchError(f"nothing was started, since swarm {registry.swarm} runs something else: {what}")


def _without(program: ProgramTraits, names: Collection[str]) -> ProgramTraits:
    return {name: value for name, value in program.items() if name not in names}


def why_nothing_to_join(config: LaunchConfig, registry: Registry) -> str:
    """The message that the run is over, as far as this host knows; empty: it is under way, or may begin elsewhere."""
    if config.tcp.seeds or not registry.run_has_ended():
        return ""
    return f"{RunEnded(registry.swarm)}; nothing was started"


def reserve_local_indices(registry: Registry, number: int) -> tuple[list[int], int]:
    """Reserve the first numbers that neither a living peer of this swarm nor another launcher holds on this host.

    Returns:
        The numbers, and a descriptor that holds them until it is closed, or this process ends.
    """
    held = open_lock(registry.lock)
    living, _ = registry.read(apart_from="")
    taken = {entry.place for entry in living}
    return list(islice((place for place in count() if place not in taken and lock_byte(held, place)), number)), held


def others_here(registry: Registry, ours: Collection[str]) -> dict[str, int]:
    """Places of living peers of this swarm and host, by peer_id, without `ours`; empty if they cannot be read."""
    try:
        living, _ = registry.read(apart_from="")
    except RegistryError:
        return {}
    return {entry.peer_id: entry.place for entry in living if entry.peer_id not in ours}


def name_here(registry: Registry, peer_id: str) -> str | None:
    """The number of a living peer of this swarm on this host; None: there is no such peer, or it has no number."""
    place = others_here(registry, ()).get(peer_id, -1)
    return str(place) if place >= 0 else None
