"""What is done in an experiment, when, and to whom: `[[event]]`, checked by itself. Pure."""

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
"""At a time."""
AFTER: Final = "previous resumed"
STATE: Final = "state transfer"
DURING: Final = ("backward", "exchange", STATE)
_WHO: Final = re.compile(r"rank (\d+)|random|newest|donor")
_HOST: Final = re.compile(r"host (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """`random = {per_minute = 6, until_s = 60}`: at moments that a seed draws.

    Attributes:
        per_minute: so often on average.
        from_s, until_s: between these times.
    """

    per_minute: float = 0.0
    from_s: float = 0.0
    until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`[[event]]`: what is done, when, and to whom.

    Attributes:
        do: one of `DOS`, or of `IN_THE_LAB`.
        at_step: as soon as anybody has committed this step.
        at_s: so long after the first committed step.
        after: `previous resumed`: once the event before it has been dealt with.
        random: many events, at moments that are drawn.
        wait_s: so much later than that.
        jitter_s: and later still, by up to so much, as the seed draws it.
        who: `rank K`, `newest`, `random`, `donor` (who feeds a joiner), or the number of a peer in the order of starts;
            `host K` of what is done to a host, or its links.
        during: only while that peer is at it, one of `DURING`; empty: at any moment. Of a state transfer `newest` is
            the one that takes it.
        number: of peers that join; of equal events for the others.
        for_s: how long a pause takes, a cut, or a change of links, which are then what they were before; 0: these stay.
        to: of a cut, heal or link: another host; empty: all.
        one_way: of a cut, heal or link: only of what `who` sends.
        net: of a link, as of `shoal lab set`.
        draw: decides who is `random`, from 0 up to 1; None: the seed draws it.
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
            f"{where}{event.do} needs [network], with hosts = 3, say: peers live on one host without it"
        )
    given = [key for key in ("at_step", "at_s", "after", "random") if getattr(event, key) not in (None, "")]
    if len(given) != 1:
        said = f", and has {' and '.join(given)}" if given else ""
        raise ExperimentError(f"{where}an event needs one of at_step, at_s, after and random{said}")
    if event.after not in ("", AFTER):
        where = lines.where("event", index, "after")
        raise ExperimentError(f'{where}after is "{AFTER}", got {event.after!r}')
    if event.after and not index:
        raise ExperimentError(f"{lines.where('event', index, 'after')}the first event comes after none")
    if event.number != 1 and event.do not in (*HAVE_VICTIMS, "join"):
        where = lines.where("event", index, "number")
        raise ExperimentError(f"{where}number is of peers, and this is a {event.do}, which is done once")
    if event.do in IN_THE_LAB:
        _check_hosts(event, lines, index, num_hosts)
    else:
        _check_what(event, lines, index)
        if "who" in values and event.do not in HAVE_VICTIMS:
            whose = "of new peers" if event.do == "join" else "done to all"
            where = lines.where("event", index, "who")
            raise ExperimentError(f"{where}who is of what is done to one peer, and this is a {event.do}, {whose}")
    return event


def _check_hosts(event: Event, lines: Lines, index: int, num_hosts: int) -> None:
    """Of what is done to hosts and links."""
    for key, word in (("who", event.who), ("to", event.to)):
        where = lines.where("event", index, key) or lines.where("event", index)
        number = host_number(word)
        if number is None and (key == "who" or word):
            raise ExperimentError(f'{where}{key} is "host 0" and the like for a {event.do}, got {word!r}')
        if number is not None and number >= num_hosts:
            raise ExperimentError(f"{where}there is no {word}: [network] has {num_hosts}, from 0 on")
    if event.during:
        raise ExperimentError(
            f"{lines.where('event', index, 'during')}during is of what is done to one peer, and this is a {event.do}"
        )
    if bool(event.net) != (event.do == "link"):
        where = lines.where("event", index, "net") or lines.where("event", index)
        raise ExperimentError(f'{where}a link has net, "delay=50ms" say, and nothing else has')
    if event.do == "kill_host" and (event.for_s or event.to or event.one_way):
        raise ExperimentError(
            f"{lines.where('event', index)}a host that is killed stays so, and has no for_s, no to and no one_way"
        )
    if event.do == "heal" and event.for_s:
        raise ExperimentError(
            f"{lines.where('event', index, 'for_s')}for_s is of a cut, link or pause, and this is a heal"
        )
    if event.do == "link":
        _check_net(event, lines, index)


def _check_net(event: Event, lines: Lines, index: int) -> None:
    """Whether a lab takes it, as far as that is known without what is set then."""
    try:
        if event.to or event.one_way:
            parse_pair(event.net)
        else:
            parse_net(event.net)
    except LabError as error:
        raise ExperimentError(f"{lines.where('event', index, 'net')}net: {error}") from None


def host_number(word: str | int) -> int | None:
    """Of `host 2`; None: it is no host."""
    match = _HOST.fullmatch(word) if isinstance(word, str) else None
    return int(match.group(1)) if match else None


def _check_during(event: Event, lines: Lines, index: int) -> None:
    where = lines.where("event", index, "during")
    if event.during not in DURING:
        raise ExperimentError(f"{where}during is {event.during!r}{nearest(event.during, DURING)}")
    if event.do not in HAVE_VICTIMS:
        raise ExperimentError(f"{where}during is of what is done to one peer, and this is a {event.do}")
    if event.during == STATE and event.who not in ("donor", "newest"):
        raise ExperimentError(
            f'{where}in a state transfer who is "donor" or "newest", who takes it, and not {event.who!r}'
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
            f"{lines.where('event', index)}to, net and one_way are of links, and this is a {event.do}"
        )
    if event.do != "pause" and event.for_s:
        raise ExperimentError(f"{lines.where('event', index, 'for_s')}for_s is of a pause, and this is a {event.do}")
    if not 1 <= event.number <= MOST_PEERS:
        where = lines.where("event", index, "number")
        raise ExperimentError(f"{where}number is 1 to {MOST_PEERS}, got {event.number}")
    if event.random is not None and not event.random.per_minute:
        raise ExperimentError(f"{lines.where('event', index, 'random')}random needs per_minute, more than 0")
