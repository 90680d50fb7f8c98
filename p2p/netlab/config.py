"""Configuration of a lab: its hosts and pairs, from `--hosts` and `--net`, or from a file."""

import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from ..errors import LabError
from .settings import LineSettings, PairSettings, changed_line, changed_pair, parse_net, parse_pair

Ends = tuple[int, int]
"""Numbers of two hosts, in the direction of the frames."""

ALL: Final = ("*", "all")
MOST_HOSTS: Final = (1 << 16) - 2
"""The addresses of a /16 network, except the first and the last."""
HOST_BYTES: Final = 32 << 20
"""The least memory that a host with one small program takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings of one host.

    Attributes:
        name: the host name, as in /etc/hosts; commands select the host by this name or by its number.
        region: a name that several hosts share.
        line: its connection to all other hosts.
        num_peers: the value of `{peers}` in its command.
        command: replaces the command of the lab; empty: the host runs that one.
    """

    name: str
    region: str = ""
    line: LineSettings = field(default_factory=LineSettings)
    num_peers: int = 1
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabConfig:
    """All hosts and every ordered pair of hosts. `command`: for the hosts without a command of their own."""

    hosts: tuple[HostSettings, ...]
    pairs: Mapping[Ends, PairSettings]
    command: tuple[str, ...] = ()

    @classmethod
    def uniform(cls, num_hosts: int, net: str = "") -> Self:
        """Equal hosts and equal pairs, apart from the exceptions that `net` lists.

        Args:
            num_hosts: how many.
            net: as `--net`, then the exceptions for single hosts or pairs, each after a `;`:
                `rate=200mbit,delay=20ms; 0: rate=50mbit; 1-2: delay=60ms`.

        Raises:
            LabError: as `parse_net`; or no such host exists; or the number of hosts is out of range.
        """
        check_number(num_hosts)
        of_all, *parts = net.split(";")
        line, pair = parse_net(of_all)
        host = HostSettings(name="", line=changed_line(LineSettings(), line))
        hosts = [replace(host, name=f"host{index}") for index in range(num_hosts)]
        pairs = dict.fromkeys(ordered_pairs(num_hosts), changed_pair(PairSettings(), pair))
        for part in parts:
            where, colon, text = part.strip().partition(":")
            if not colon:
                raise LabError(f"{part.strip()!r}: after a ; write a host or a pair, and a colon, as in 0: rate=50mbit")
            one, dash, other = where.strip().partition("-")
            if dash:
                changes = parse_pair(text)
                ends = pairs_between(hosts, one, other, one_way=False)
                pairs |= {each: changed_pair(pairs[each], changes) for each in ends}
                continue
            changes, of_pairs = parse_net(text)
            if of_pairs:
                raise LabError(
                    f"{part.strip()!r}: a host has rate, up, down and queue; the rest belongs to a pair, as in 0-1"
                )
            for index in hosts_of(hosts, one):
                hosts[index] = replace(hosts[index], line=changed_line(hosts[index].line, changes))
        return cls(hosts=tuple(hosts), pairs=pairs)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a TOML file, whose format is in docs/lab.md. LabError says what is wrong, and where."""
        try:
            table = tomllib.loads(path.read_text())
        except OSError as error:
            raise LabError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise LabError(f"{path} is not TOML: {error}") from error
        try:
            return cls.from_table(table)
        except LabError as error:
            raise LabError(f"{path}: {error}") from None

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """The configuration that a parsed TOML file describes."""
        _check_keys(table, "the file", ("hosts", "net", "command", "host", "link"))
        line, pair = parse_net(_text(table, "net"))
        hosts = _hosts(table, changed_line(LineSettings(), line))
        settings = changed_pair(PairSettings(), pair)
        pairs = dict.fromkeys(ordered_pairs(len(hosts)), settings)
        for link in _tables(table, "link"):
            _check_keys(link, "[[link]]", ("from", "to", "net", "one_way"))
            changes = parse_pair(_text(link, "net"))
            ends = pairs_between(hosts, _text(link, "from"), _text(link, "to"), one_way=bool(link.get("one_way")))
            pairs |= {end: changed_pair(pairs[end], changes) for end in ends}
        return cls(hosts=hosts, pairs=pairs, command=_words(table))

    def to_message(self) -> dict[str, Any]:
        """Hosts and pairs as JSON values, for another process. Leaves out `command`."""
        return {
            "hosts": [asdict(host) for host in self.hosts],
            "pairs": [(*ends, asdict(pair)) for ends, pair in self.pairs.items()],
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        """The inverse of `to_message`."""
        hosts = (HostSettings(**{**host, "line": LineSettings(**host["line"])}) for host in message["hosts"])
        pairs = {(source, target): PairSettings(**pair) for source, target, pair in message["pairs"]}
        return cls(hosts=tuple(hosts), pairs=pairs)


def check_number(num_hosts: int, meminfo: Path = Path("/proc/meminfo")) -> None:
    """LabError if `num_hosts` is below 1, or exceeds the addresses or the free memory."""
    if num_hosts < 1:
        raise LabError(f"a lab has at least 1 host, got {num_hosts}")
    if num_hosts > MOST_HOSTS:
        raise LabError(f"a lab has addresses of one /16, for {MOST_HOSTS:,} hosts, got {num_hosts:,}")
    available = next(
        (int(line.split()[1]) << 10 for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:")),
        None,
    )
    if available is not None and num_hosts * HOST_BYTES > available:
        raise LabError(
            f"{num_hosts:,} hosts need at least {num_hosts * HOST_BYTES >> 20:,} MiB, {HOST_BYTES >> 20} each, "
            f"and {available >> 20:,} MiB of memory are free: at most {available // HOST_BYTES:,} hosts fit here"
        )


def ordered_pairs(num_hosts: int) -> Iterator[Ends]:
    return ((source, target) for source in range(num_hosts) for target in range(num_hosts) if source != target)


def hosts_of(hosts: Sequence[HostSettings], selector: str) -> list[int]:
    """Numbers of the hosts that `selector` names: a number, a name, a region, `*` or `all`. LabError if none match."""
    if selector in ALL:
        return list(range(len(hosts)))
    if selector.isdecimal() and int(selector) < len(hosts):
        return [int(selector)]
    found = [index for index, host in enumerate(hosts) if selector in (host.name, host.region)]
    if not found or not selector:
        names = [host.name for host in hosts if host.name]
        regions = sorted({host.region for host in hosts if host.region})
        known = f"numbers are 0 to {len(hosts) - 1}, names {', '.join(names)}"
        known += f", regions {', '.join(regions)}" if regions else ""
        raise LabError(f"no host is {selector!r}: {known}, and '*' is all")
    return found


def pairs_between(hosts: Sequence[HostSettings], first: str, second: str, *, one_way: bool = False) -> list[Ends]:
    """Pairs from hosts of `first` to hosts of `second`, and back unless `one_way`."""
    sources, targets = hosts_of(hosts, first), hosts_of(hosts, second)
    ends = dict.fromkeys((source, target) for source in sources for target in targets if source != target)
    if not ends:
        raise LabError(f"{first} and {second} are one host, and there is no link from it to itself")
    return list(ends if one_way else ends | {(target, source): None for source, target in ends})


def _hosts(table: Mapping[str, Any], line: LineSettings) -> tuple[HostSettings, ...]:
    tables = _tables(table, "host")
    given = table.get("hosts", len(tables))
    if not isinstance(given, int) or (tables and given != len(tables)):
        raise LabError(f"hosts is {given!r}, and there are {len(tables)} tables [[host]]: leave one of them out")
    check_number(given)
    hosts = []
    for index, host in enumerate(tables or [{}] * given):
        _check_keys(host, f"[[host]] {index}", ("name", "region", "net", "peers", "command"))
        changes, of_pairs = parse_net(_text(host, "net"))
        if of_pairs:
            raise LabError(
                f"[[host]] {index}: net here sets its line (rate, up, down, queue); write the rest into a [[link]]"
            )
        peers = host.get("peers", 1)
        if not isinstance(peers, int) or peers < 1:
            raise LabError(f"[[host]] {index}: peers is at least 1, got {peers!r}")
        settings = HostSettings(
            name=_text(host, "name") or f"host{index}",
            region=_text(host, "region"),
            line=changed_line(line, changes),
            num_peers=peers,
            command=_words(host),
        )
        hosts.append(settings)
    names = [host.name for host in hosts] + sorted({host.region for host in hosts if host.region})
    if twice := sorted({name for name in names if names.count(name) > 1 or name.isdecimal() or name in ALL}):
        raise LabError(f"names of hosts and regions must not be numbers or used twice: {', '.join(twice)}")
    return tuple(hosts)


def _check_keys(table: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
    if unknown := sorted(set(table) - set(known)):
        raise LabError(f"{where} has {', '.join(unknown)}; known are {', '.join(known)}")


def _tables(table: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise LabError(f"{key} is written as [[{key}]], once for each")
    return found


def _text(table: Mapping[str, Any], key: str) -> str:
    found = table.get(key, "")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    if not isinstance(found, str):
        raise LabError(f"{key} is a text in quotes, got {found!r}")
    return found


def _words(table: Mapping[str, Any]) -> tuple[str, ...]:
    found = table.get("command", ())
    if isinstance(found, str):
        try:
            return tuple(shlex.split(found))
        except ValueError as error:
            raise LabError(f"command is {found!r}: {error}") from None
    if not isinstance(found, list | tuple) or not all(isinstance(word, str) for word in found):
        raise LabError(f"command is a text, or a list of words, got {found!r}")
    return tuple(found)
