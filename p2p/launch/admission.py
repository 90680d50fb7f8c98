"""Whether a run may begin: `--new` joins nothing, and `--join` has nothing to join where the run is over."""

from ..errors import LaunchError
from ..host import last_run
from ..host.registry import Registry
from .config import LaunchConfig


def check_is_new(registry: Registry) -> None:
    """Raise LaunchError if there is a run of this swarm on this host."""
    living, _ = registry.read(apart_from="")
    if living:
        pids = ", ".join(str(entry.pid) for entry in living)
        raise LaunchError(
            f"swarm {registry.swarm} is under way here (pid {pids}), and --new only founds: "
            "say --join, or give another --swarm"
        )


def why_nothing_to_join(config: LaunchConfig, registry: Registry) -> str:
    """That the run is over, as far as this host can know; empty: it is under way, or may begin elsewhere, or soon."""
    living, _ = registry.read(apart_from="")
    if living or config.tcp.seeds or last_run.ended_at_ns(registry.lock) is None:
        return ""
    return f"the run of swarm {registry.swarm} is over, so there is nothing to join; nothing was started"
