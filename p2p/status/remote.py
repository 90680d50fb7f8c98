"""Status of a swarm without a peer on this host: asks one of its peers, by address and key."""

from collections.abc import Callable

from ..errors import NetworkError
from ..net.asking import ask_status
from ..net.tcp import TcpOptions
from ..telemetry.page import PageContent
from ..telemetry.snapshot import Snapshot
from .local import Condition, PeerStatus


def ask(options: TcpOptions, swarm: str, clock: Callable[[], float]) -> dict[str, list[PeerStatus]]:
    """Ask a peer at one of the seeds about itself and all others. `clock`: monotonic seconds.

    Raises:
        NetworkError, SecurityError: there is no such address, or no key, or no peer answers.
        RemoteProtocolError: a peer of another version answers.
    """
    if not swarm:
        raise NetworkError("name the swarm: the peers at --seeds answer only for their own")
    config = options.check(swarm)
    assert config is not None, "there are seeds"
    answer = ask_status(config, clock)
    snapshot = Snapshot.parse(answer.snapshot)
    age_s = max(0, answer.now_ns - snapshot.time_ns) / 1e9
    return {
        swarm: [PeerStatus(PageContent(snapshot.identity, snapshot, ()), Condition.ELSEWHERE, age_s, answer.now_ns)]
    }
