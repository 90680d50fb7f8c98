"""Status query to a peer on another host, by a process that has the swarm key but is no peer."""

from collections.abc import Callable
from typing import Final

import zmq

from ..errors import NetworkError
from .frames import ANSWER_CODEC, CONTROL_TYPES, StatusAnswer, StatusQuery
from .links import SeedCall, Verdict
from .listener import Credentials
from .one_way import PATIENCE_S
from .tcp import TcpConfig
from .wire import Codec

_LOOK_S: Final = 0.1


def ask_status(config: TcpConfig, clock: Callable[[], float]) -> StatusAnswer:
    """The status of the first peer that answers at a seed of `config`, tried in turn. `clock`: monotonic seconds.

    Raises:
        NetworkError: no seed answered; names the outcome for each.
        RemoteProtocolError: the answer has another protocol version.
    """
    credentials = Credentials(config.realm, "", config.secret, config.ipv4_names)
    query = Codec(CONTROL_TYPES).encode(StatusQuery())
    told = []
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        for seed in config.seeds:
            call = SeedCall(context, seed.address, credentials.introduce)
            try:
                answer, verdict = _ask(call, query, clock, clock() + PATIENCE_S[config.network])
            finally:
                call.close()
            if answer is not None:
                message = ANSWER_CODEC.decode(answer)
                assert isinstance(message, StatusAnswer)
                return message
            told.append(f"{seed} {verdict.value}")
    finally:
        context.term()
    raise NetworkError(f"no seed says how swarm {config.swarm} stands: {'; '.join(told)}")


def _ask(call: SeedCall, query: bytes, clock: Callable[[], float], until: float) -> tuple[bytes | None, Verdict]:
    """The answer, if any, and the outcome of the call."""
    verdict, is_asked = Verdict.SILENT, False
    while (left_s := until - clock()) > 0:
        if (answer := call.wait(min(left_s, _LOOK_S))) is not None:
            return answer, verdict
        verdict = call.look() or verdict
        if verdict is Verdict.ANSWERS and not is_asked:
            call.send(query)
            is_asked = True
        elif verdict in (Verdict.OTHER_KEY, Verdict.OTHER_SWARM):
            break
    return None, verdict
