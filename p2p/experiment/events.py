"""The events of an experiment, `[[event]]`, each checked on its own. Pure.

Checks against the other events, and against the peers that exist, are in `run/plan.py`.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from ..errors import ExperimentError, LabError
from ..netlab.settings import parse_net, parse_pair
from .lines import Lines, nearest, read_table

DOS: Final = ("join", "leave", "kill", "pause", "restart_all")
IN_THE_LAB: Final = ("cut", "heal", "link", "kill_host")
ENDS: Final = ("leave", "kill")
HAVE_VICTIMS: Final = (*ENDS, "pause")
MOST_PEERS: Final = 64
"""Peers at the same time."""
AFTER: Final = "previous resumed"
STATE: Final = "state transfer"
DURING: Final = ("backward", "exchange", STATE)
_WHO: Final = re.compile(r"rank (\d+)|random|newest|donor")
_HOST: Final = re.compile(r"host (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """`random = {per_minute = 6, until_s = 60}`: events at random times, drawn with the seed.

    Attributes:
        per_minute: the average rate.
        from_s, until_s: the times between which events are drawn.
    """

    per_minute: float = 0.0
    from_s: float = 0.0
    until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`[[event]]`: an action on peers, hosts or links, its time, and its target.

    Attributes:
        do: the action: one of `DOS`, or of `IN_THE_LAB`.
        at_step: due as soon as any peer has committed this step.
        at_s: due this long after step 1 was committed.
        after: `previous resumed`: due once the event before is over.
        random: many events, at times that are drawn.
        wait_s: delay after the event is due.
        jitter_s: upper limit of a further delay, drawn with the seed.
        who: the target: `rank K`, `newest`, `random`, `donor` (the peer that sends a joiner the state), or the index of
            a peer in the order of starts; `host K` for actions on a host or its links.
        during: act only while the target is in this phase, one of `DURING`; empty: in any. In a state transfer `newest`
            is the peer that receives the state.
        number: of peers for a join; for the other actions, how many times the event is repeated.
        for_s: duration of a pause, cut or change of links, after which links have their former settings; 0: a cut or
            change is permanent.
        to: the other host of a cut, heal or link; empty: all.
        one_way: a cut, heal or link affects only what `who` sends.
        net: settings of a link, as in `shoal lab set`.
        draw: decides which peer `random` is, from 0 up to 1; None: drawn with the seed.
        line: in the file.
    """

    do: str = ""
    at_step: int | None = None
    at_s: float | None = None
    after: str = ""
    random: Random | None = None
    wait_s: float = 0.0
    jitter_s: float = 0.0
    who: str | int = "random"
    during: str = ""
    number: int = 1
    for_s: float = 0.0
    to: str = ""
    one_way: bool = False
    net: str = ""
    draw: float | None = None
    line: int = 0


def read_event(values: Any, lines: Lines, index: int, num_hosts: int) -> Event:
    event: Event = read_table(Event, values, lines, "event", index)
    event = replace(event, line=lines.number("event", index))
    where = lines.where("event", index, "do")
    if event.do not in (*DOS, *IN_THE_LAB):
        raise ExperimentError(f"{where}do is {event.do!r}{nearest(event.do, (*DOS, *IN_THE_LAB))}")
    if event.do in IN_THE_LAB and not num_hosts:
        raise ExperimentError(
            f"{where}{event.do} needs [network], for example with hosts = 3: without it all peers are on one host"
        )
    given = [key for key in ("at_step", "at_s", "after", "random") if getattr(event, key) not in (None, "")]
    if len(given) != 1:
        said = f", and has {' and '.join(given)}" if given else ""
        raise ExperimentError(f"{where}an event needs one of at_step, at_s, after and random{said}")
    if event.after not in ("", AFTER):
        where = lines.where("event", index, "after")
        raise ExperimentError(f'{where}after is "{AFTER}", got {event.after!r}')
    if event.after and not index:
        raise ExperimentError(f"{lines.where('event', index, 'after')}the first event has none before it")
    if event.number != 1 and event.do not in (*HAVE_VICTIMS, "join"):
        where = lines.where("event", index, "number")
        raise ExperimentError(f"{where}number counts peers, and a {event.do} is done once")
    if event.do in IN_THE_LAB:
        _check_hosts(event, lines, index, num_hosts)
    else:
        _check_what(event, lines, index)
        if "who" in values and event.do not in HAVE_VICTIMS:
            whose = "is for new peers" if event.do == "join" else "is done to all"
            where = lines.where("event", index, "who")
            raise ExperimentError(f"{where}who is for events of one peer, and a {event.do} {whose}")
    return event


def _check_hosts(event: Event, lines: Lines, index: int, num_hosts: int) -> None:
    """Check an action on hosts and links."""
    for key, word in (("who", event.who), ("to", event.to)):
        where = lines.where("event", index, key) or lines.where("event", index)
        number = host_number(word)
        if number is None and (key == "who" or word):
            raise ExperimentError(f'{where}{key} is "host 0" and the like for a {event.do}, got {word!r}')
        if number is not None and number >= num_hosts:
            raise ExperimentError(f"{where}there is no {word}: [network] has {num_hosts}, from 0 on")
    if event.during:
        raise ExperimentError(
            f"{lines.where('event', index, 'during')}during is for events of one peer, and this is a {event.do}"
        )
    if bool(event.net) != (event.do == "link"):
        where = lines.where("event", index, "net") or lines.where("event", index)
        raise ExperimentError(f'{where}a link needs net, such as "delay=50ms", and no other event has it')
    if event.do == "kill_host" and (event.for_s or event.to or event.one_way):
        raise ExperimentError(
            f"{lines.where('event', index)}a killed host stays killed: leave out for_s, to and one_way"
        )
    if event.do == "heal" and event.for_s:
        raise ExperimentError(
            f"{lines.where('event', index, 'for_s')}for_s is for a cut, link or pause, and this is a heal"
        )
    if event.do == "link":
        _check_net(event, lines, index)


def _check_net(event: Event, lines: Lines, index: int) -> None:
    """Check `net` as far as possible without the settings of the lab at that time."""
    try:
        if event.to or event.one_way:
            parse_pair(event.net)
        else:
            parse_net(event.net)
    except LabError as error:
        raise ExperimentError(f"{lines.where('event', index, 'net')}net: {error}") from None


def host_number(word: str | int) -> int | None:
    """The number in `host 2`; None: `word` names no host."""
    match = _HOST.fullmatch(word) if isinstance(word, str) else None
    return int(match.group(1)) if match else None


def _check_during(event: Event, lines: Lines, index: int) -> None:
    where = lines.where("event", index, "during")
    if event.during not in DURING:
        raise ExperimentError(f"{where}during is {event.during!r}{nearest(event.during, DURING)}")
    if event.do not in HAVE_VICTIMS:
        raise ExperimentError(f"{where}during is for events of one peer, and this is a {event.do}")
    if event.during == STATE and event.who not in ("donor", "newest"):
        raise ExperimentError(
            f'{where}in a state transfer who is "donor", or "newest", which receives it, got {event.who!r}'
        )


def _check_what(event: Event, lines: Lines, index: int) -> None:
    if isinstance(event.who, str) and not _WHO.fullmatch(event.who):
        where = lines.where("event", index, "who")
        raise ExperimentError(f'{where}who is "rank 0", "newest", "random", "donor" or a number, got {event.who!r}')
    if event.during:
        _check_during(event, lines, index)
    if event.do == "pause" and not event.for_s:
        raise ExperimentError(f"{lines.where('event', index)}a pause needs for_s, in seconds")
    if event.to or event.net or event.one_way:
        raise ExperimentError(
            f"{lines.where('event', index)}to, net and one_way are for links, and this is a {event.do}"
        )
    if event.do != "pause" and event.for_s:
        raise ExperimentError(f"{lines.where('event', index, 'for_s')}for_s is for a pause, and this is a {event.do}")
    if not 1 <= event.number <= MOST_PEERS:
        where = lines.where("event", index, "number")
        raise ExperimentError(f"{where}number is 1 to {MOST_PEERS}, got {event.number}")
    if event.random is not None and not event.random.per_minute:
        raise ExperimentError(f"{lines.where('event', index, 'random')}random needs per_minute, more than 0")
