"""Texts of settings, and their meaning."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import LabError
from p2p.netlab.settings import (
    LineSettings,
    PairSettings,
    as_it_was,
    changed_line,
    changed_pair,
    line_as_it_was,
    parse_net,
    parse_pair,
    show,
)
from p2p.netlab.units import parse_rate, parse_share, parse_time, show_rate, show_time


def says(text: str) -> str:
    return re.escape(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("200mbit", 200_000_000), ("1.5Gbit/s", 1_500_000_000), ("64 kbit", 64_000), ("9bit", 9), ("none", None)],
)
def test_rates_are_bits_per_second(text: str, rate: int | None) -> None:
    assert parse_rate("rate", text) == rate


@pytest.mark.parametrize(("text", "time"), [("20ms", 20_000_000), ("0", 0), ("1.5s", 1_500_000_000), ("50us", 50_000)])
def test_times_are_nanoseconds(text: str, time: int) -> None:
    assert parse_time("delay", text) == time


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("100%", 1.0), ("0", 0.0)])
def test_shares_are_written_in_two_ways(text: str, share: float) -> None:
    assert parse_share("loss", text) == pytest.approx(share)


@given(st.integers(1, 10**12))
def test_what_is_shown_can_be_written(value: int) -> None:
    assert parse_rate("rate", show_rate(value)) == value
    assert parse_time("delay", show_time(value)) == value


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("rate=200mb", "did you mean 200mbit?"),
        ("rate=200", "did you mean 200mbit?"),
        ("rate=2Gb", "did you mean 2gbit?"),
        ("rate=200kbits", "did you mean 200kbit?"),
        ("rate=200mib", "unknown unit 'mib'"),
        ("rate=fast", "write, for example, rate=20mbit"),
        ("rate=0bit", "carries nothing: write cut"),
        ("delay=20", "no unit in delay=20; did you mean 20ms?"),
        ("delay=20msec", "did you mean 20ms?"),
        ("delay=-20ms", "write, for example, delay=20ms"),
        ("delay=20ms,jitter=21ms", "jitter=21ms is above delay=20ms"),
        ("jitter=1ms", "jitter=1ms is above delay=0"),
        ("loss=1.5", "loss=1.5 is not between 0 and 1, nor between 0% and 100%; did you mean loss=1.5%?"),
        ("loss=101%", "loss=101% is not between 0 and 1"),
        ("loss=-0.1", "loss=-0.1 is not between 0 and 1"),
        ("loss=nan", "loss=nan is not between 0 and 1"),
        ("loss=some", "loss=some is not a share: write loss=0.01 or loss=1%"),
        ("mtu=67", "mtu=67 is not a size of a packet: write bytes, 68 or more, such as mtu=1400, or mtu=none"),
        ("mtu=1400b", "mtu=1400b is not a size of a packet"),
        ("speed=20mbit", "speed=20mbit: nothing of that name can be set; known are rate"),
        ("cut=yes", "cut=yes: nothing of that name"),
        ("dlay=20ms", "dlay=20ms: nothing of that name can be set, did you mean delay? known are rate"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_was_probably_meant(text: str, hint: str) -> None:
    with pytest.raises(LabError, match=says(hint)):
        changed_pair(PairSettings(), parse_pair(text))
    with pytest.raises(LabError, match=says(hint)):
        changed_pair(PairSettings(), parse_net(text)[1])


def test_a_rate_of_a_network_is_that_of_every_line_both_ways() -> None:
    line, pair = parse_net("rate=200mbit,delay=20ms, jitter=1ms,loss=0.1%")
    assert changed_line(LineSettings(), line) == LineSettings(up_bit_per_s=200_000_000, down_bit_per_s=200_000_000)
    assert changed_pair(PairSettings(), pair) == PairSettings(delay_ns=20_000_000, jitter_ns=1_000_000, loss=0.001)


def test_a_rate_of_a_pair_is_of_nobody_else() -> None:
    assert parse_pair("rate=50mbit") == {"rate_bit_per_s": 50_000_000}
    with pytest.raises(LabError, match="up belongs to the line of a host, not to a pair"):
        parse_pair("up=50mbit")


def test_only_what_is_named_changes() -> None:
    pair = PairSettings(delay_ns=20_000_000, loss=0.01)
    cut = changed_pair(pair, parse_pair("cut"))
    assert cut == PairSettings(delay_ns=20_000_000, loss=0.01, cut=True)
    assert changed_pair(cut, parse_pair("heal")) == pair


def test_what_is_set_is_shown_as_it_is_written() -> None:
    line = LineSettings(up_bit_per_s=200_000_000)
    assert show(line) == {"up": "200mbit", "queue": "50ms"}
    assert show(PairSettings(delay_ns=1_500_000, loss=0.001, mtu_bytes=1400, cut=True)) == {
        "delay": "1.5ms",
        "loss": "0.001",
        "mtu": "1400",
        "cut": "cut",
    }
    assert show(PairSettings()) == {}


def test_what_was_shown_before_a_change_sets_back_what_it_has_changed_and_no_more() -> None:
    before = changed_pair(PairSettings(), parse_pair("delay=20ms,jitter=1ms,loss=0.1%"))
    changes = parse_pair("delay=50ms,jitter=0,rate=5mbit,mtu=1400,cut")
    back = parse_pair(as_it_was(show(before), changes))
    assert changed_pair(changed_pair(before, changes), back) == before and "loss" not in back
    line = changed_line(LineSettings(), parse_net("up=5mbit")[0])
    changes, _ = parse_net("rate=1mbit,queue=20ms")
    back, _ = parse_net(line_as_it_was(show(line), changes))
    assert changed_line(changed_line(line, changes), back) == line
