"""Labs from the command line, and from a file."""

import re
from pathlib import Path

import pytest

from p2p.errors import LabError
from p2p.netlab.config import HostSettings, LabConfig, check_number, hosts_of, pairs_between
from p2p.netlab.run import words_of
from p2p.netlab.settings import LineSettings, PairSettings

FILE = """
command = "shoal run -n {peers} train.py"
net = "rate=1gbit,delay=0.2ms"

[[host]]
name = "paris"
region = "eu"
peers = 2

[[host]]
name = "rome"
region = "eu"
net = "up=50mbit,queue=20ms"

[[host]]
name = "tokyo"
command = ["python", "watch.py", "a b"]

[[link]]
from = "eu"
to = "tokyo"
net = "delay=120ms,jitter=5ms,loss=0.1%"

[[link]]
from = "tokyo"
to = "paris"
net = "cut"
one_way = true
"""


def read(tmp_path: Path, text: str) -> LabConfig:
    path = tmp_path / "lab.toml"
    path.write_text(text)
    return LabConfig.read(path)


def test_a_file_says_how_hosts_and_links_differ(tmp_path: Path) -> None:
    config = read(tmp_path, FILE)
    gbit, near = LineSettings(up_bit_per_s=10**9, down_bit_per_s=10**9), PairSettings(delay_ns=200_000)
    far = PairSettings(delay_ns=120_000_000, jitter_ns=5_000_000, loss=0.001)
    rome = LineSettings(up_bit_per_s=50 * 10**6, down_bit_per_s=10**9, queue_ns=20_000_000)
    assert config.hosts == (
        HostSettings(name="paris", region="eu", line=gbit, num_peers=2),
        HostSettings(name="rome", region="eu", line=rome),
        HostSettings(name="tokyo", line=gbit, command=("python", "watch.py", "a b")),
    )
    cut = PairSettings(delay_ns=far.delay_ns, jitter_ns=far.jitter_ns, loss=far.loss, cut=True)
    assert config.pairs == {(0, 1): near, (1, 0): near, (0, 2): far, (1, 2): far, (2, 1): far, (2, 0): cut}
    words = [words_of(host, index, config.command) for index, host in enumerate(config.hosts)]
    assert words[0] == ["shoal", "run", "-n", "2", "train.py"]
    assert words[1] == ["shoal", "run", "-n", "1", "train.py"]
    assert words[2] == ["python", "watch.py", "a b"]


def test_a_lab_is_the_same_behind_a_message(tmp_path: Path) -> None:
    config = read(tmp_path, FILE)
    assert LabConfig.from_message(config.to_message()) == LabConfig(hosts=config.hosts, pairs=config.pairs)


def test_words_in_braces_are_those_of_the_host() -> None:
    host = HostSettings(name="host1", num_peers=3)
    command = ["awk", "{print $1}", "--me={host}@{address}", "{peers}"]
    assert words_of(host, 1, command) == ["awk", "{print $1}", "--me=1@10.77.0.2", "3"]


def test_equal_hosts_need_no_file() -> None:
    config = LabConfig.uniform(3, "rate=10mbit,delay=5ms")
    assert [host.name for host in config.hosts] == ["host0", "host1", "host2"]
    assert len(config.pairs) == 6 and set(config.pairs.values()) == {PairSettings(delay_ns=5_000_000)}


def test_some_hosts_and_pairs_differ_in_what_is_said_of_them() -> None:
    config = LabConfig.uniform(3, "rate=10mbit,delay=5ms; 0: up=1mbit; 0-2: delay=9ms,loss=1%")
    assert [host.line.up_bit_per_s for host in config.hosts] == [1_000_000, 10_000_000, 10_000_000]
    assert {host.line.down_bit_per_s for host in config.hosts} == {10_000_000}
    odd = PairSettings(delay_ns=9_000_000, loss=0.01)
    assert {ends for ends, pair in config.pairs.items() if pair == odd} == {(0, 2), (2, 0)}
    assert {pair for ends, pair in config.pairs.items() if 1 in ends} == {PairSettings(delay_ns=5_000_000)}


@pytest.mark.parametrize(
    ("net", "error"),
    [
        ("rate=10mbit;0 up=1mbit", "'0 up=1mbit': after a ; write a host or a pair, and a colon"),
        ("rate=10mbit;5: up=1mbit", "no host is '5': numbers are 0 to 2"),
        ("rate=10mbit;0: delay=1ms", "a host has rate, up, down and queue; the rest belongs to a pair"),
        ("rate=10mbit;0-1: up=1mbit", "up belongs to the line of a host"),
        ("rate=10mbit;1-1: delay=1ms", "1 and 1 are one host"),
        ("rate=10mbit;", "after a ; write a host or a pair"),
    ],
)
def test_what_cannot_be_said_of_one_host_is_refused(net: str, error: str) -> None:
    with pytest.raises(LabError) as caught:
        LabConfig.uniform(3, net)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("hosts = ", "is not TOML"),
        ("hosts = 2\nspeed = 3", "the file has speed; known are hosts, net, command, host, link"),
        ("hosts = 0", "a lab has at least 1 host, got 0"),
        ("hosts = 65535", "addresses of one /16, for 65,534 hosts, got 65,535"),
        ("hosts = 3\n[[host]]\n[[host]]", "hosts is 3, and there are 2 tables [[host]]"),
        ("hosts = 2\nnet = 'rate=5mb'", "did you mean 5mbit?"),
        ("hosts = 2\nnet = 5.5", "net is a text in quotes, got 5.5"),
        ("[host]\nname = 'a'", "host is written as [[host]]"),
        ("[[host]]\nnet = 'delay=5ms'", "[[host]] 0: net here sets its line"),
        ("[[host]]\nnet = 'rate=5mb'", "did you mean 5mbit?"),
        ("[[host]]\npeers = 0", "[[host]] 0: peers is at least 1, got 0"),
        ("[[host]]\nname = 'a'\n[[host]]\nname = 'a'", "or used twice: a"),
        ("[[host]]\nname = '1'", "names of hosts and regions must not be numbers or used twice: 1"),
        ("[[host]]\nname = 'a'\nregion = 'a'", "or used twice: a"),
        ("hosts = 2\n[[link]]\nfrom = 'x'\nto = 1", "no host is 'x': numbers are 0 to 1, names host0, host1"),
        ("hosts = 2\n[[link]]\nfrom = 1", "no host is ''"),
        ("hosts = 2\n[[link]]\nfrom = 1\nto = 1", "1 and 1 are one host"),
        ("hosts = 2\n[[link]]\nfrom = 0\nto = 1\nnet = 'jitter=1ms'", "jitter=1ms is above delay=0"),
        ("hosts = 2\n[[link]]\nfrom = 0\nto = 1\nnet = 'up=1mbit'", "up belongs to the line of a host"),
        ("hosts = 2\ncommand = [1]", "command is a text, or a list of words, got [1]"),
        ('hosts = 2\ncommand = "it\'s"', "No closing quotation"),
        ("hosts = 2\ncommand = 7", "command is a text, or a list of words, got 7"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_where(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(LabError, match=re.escape(error)) as caught:
        read(tmp_path, text)
    assert "lab.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=re.escape(f"cannot read {tmp_path / 'no.toml'}: No such file")):
        LabConfig.read(tmp_path / "no.toml")


def test_there_are_no_more_hosts_than_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9999999 kB\nMemAvailable:    327680 kB\n")
    check_number(10, meminfo)
    error = "11 hosts need at least 352 MiB, 32 each, and 320 MiB of memory are free: at most 10 hosts fit here"
    with pytest.raises(LabError, match=error):
        check_number(11, meminfo)


HOSTS = (HostSettings(name="a", region="eu"), HostSettings(name="b", region="eu"), HostSettings(name="c"))


def test_hosts_have_numbers_names_and_regions() -> None:
    assert [hosts_of(HOSTS, each) for each in ("1", "c", "eu", "*", "all")] == [[1], [2], [0, 1], [0, 1, 2], [0, 1, 2]]
    with pytest.raises(LabError, match=re.escape("no host is '3': numbers are 0 to 2, names a, b, c, regions eu")):
        hosts_of(HOSTS, "3")


def test_a_link_is_two_pairs_unless_one_way() -> None:
    assert pairs_between(HOSTS, "0", "2") == [(0, 2), (2, 0)]
    assert pairs_between(HOSTS, "0", "2", one_way=True) == [(0, 2)]
    assert set(pairs_between(HOSTS, "2", "*")) == {(2, 0), (2, 1), (0, 2), (1, 2)}
    assert set(pairs_between(HOSTS, "eu", "eu")) == {(0, 1), (1, 0)}
