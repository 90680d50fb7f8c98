"""Addresses: valid and invalid ones, and the one of several that a peer announces."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import NetworkError
from p2p.net.addresses import ANY, Endpoint, advertised, check_address, resolve, to_listen_at, why_ambiguous


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.5:7700", "10.0.0.5", 7700),
        ("node-1.lab:0", "node-1.lab", 0),
        ("[fd77::1]:65535", "fd77::1", 65535),
        ("[::]:1", "::", 1),
        ("*:7700", ANY, 7700),
    ],
)
def test_an_endpoint_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    endpoint = Endpoint.parse(text)
    assert endpoint == Endpoint(host, port)
    assert str(endpoint) == text
    assert endpoint.address == f"tcp://{text}"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("[FD00:0::5]:1", "[fd00::5]:1"),
        ("[::ffff:10.0.0.5]:1", "10.0.0.5:1"),
        ("127.1:1", "127.0.0.1:1"),
        ("[::0]:1", "[::]:1"),
        ("[::ffff:0.0.0.0]:1", "0.0.0.0:1"),
        ("0:1", "0.0.0.0:1"),
    ],
)
def test_an_address_has_one_spelling_and_that_of_all_addresses_is_known_in_each(text: str, same: str) -> None:
    assert str(Endpoint.parse(text)) == same
    assert Endpoint.parse(text).is_wildcard == same.startswith(("[::]", "0.0.0.0"))


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "a", "a:", ":1", "a:b", "a:65536", "a:-1", "a:1:2", "::1:7", "[1.2.3.4]:7", "[::1]", "a b:1", "-a:1",
        "_a:1", ".a:1", "[fe80::1%a b]:1", "a/b:1", "a\0:1", "a:\u0661",
    ],
)  # fmt: skip
def test_anything_else_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        Endpoint.parse(text)


@pytest.mark.parametrize("text", ["[fe80::1]:7700", "[fe80::1%eth0]:7700"])
def test_an_address_that_is_another_one_on_each_interface_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is link-local"):
        Endpoint.parse(text)


@given(st.text(max_size=40))
def test_whatever_is_read_is_written_alike(text: str) -> None:
    try:
        endpoint = Endpoint.parse(text)
    except ValueError:
        return
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize("address", ["ipc:///run/x", "tcp://10.0.0.5:1", "tcp://[::1]:7700", "tcp://node:7700"])
def test_one_can_connect_to_these(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "", "ipc://", "ipc://@abstract", "inproc://x", "udp://1.2.3.4:5", "tcp://", "tcp://x", "tcp://x:0", "tcp://*:5",
        "tcp://0.0.0.0:5", "tcp://[::]:5", "tcp://224.0.0.1:5", "tcp://eth0;1.2.3.4:5", "tcp://1.2.3.4:5;6",
        "ipc:///" + "x" * 107, "tcp://" + "x" * 254 + ":1",
    ],
)  # fmt: skip
def test_one_cannot_connect_to_these(address: str) -> None:
    with pytest.raises(ValueError, match=r"an address is|expected host:port|no peer can be reached|has at most"):
        check_address(address)


def test_what_is_bound_to_one_address_tells_that_one() -> None:
    assert advertised(Endpoint("127.0.0.1", 7700), []) == Endpoint("127.0.0.1", 7700)
    assert advertised(Endpoint("127.0.0.1", 7700), [Endpoint("10.9.8.7", 7700)]) == Endpoint("127.0.0.1", 7700)


def test_a_seed_tells_others_its_own_spelling() -> None:
    seeds = [Endpoint("192.0.2.77", 7700), Endpoint("localhost", 7700), Endpoint("localhost", 7702)]
    assert advertised(Endpoint("127.0.0.1", 7700), seeds) == seeds[1]
    assert advertised(Endpoint(ANY, 7702), seeds) == seeds[2]
    assert advertised(Endpoint("127.0.0.1", 7701), seeds) == Endpoint("127.0.0.1", 7701)


def test_who_listens_everywhere_tells_where_packets_to_the_first_seed_leave_from() -> None:
    assert advertised(Endpoint("0.0.0.0", 7700), [Endpoint("127.0.0.1", 1)]) == Endpoint("127.0.0.1", 7700)


def test_who_listens_everywhere_and_knows_nobody_tells_an_address_of_this_machine() -> None:
    told = advertised(Endpoint(ANY, 7700), [])
    assert not told.is_wildcard and told.port == 7700
    with socket.socket(socket.AF_INET6 if told.is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((told.host, 0))


def test_who_has_no_route_to_any_seed_has_no_address_to_tell_and_says_so() -> None:
    seeds = [Endpoint("192.0.2.77", 7700), Endpoint("192.0.2.78", 7700)]
    with pytest.raises(NetworkError, match=r"no route to 192\.0\.2\.77:7700, 192\.0\.2\.78:7700, and so no address"):
        advertised(Endpoint(ANY, 7702), seeds, lambda target: None)
    told = advertised(Endpoint(ANY, 7702), seeds, {"192.0.2.78": "192.0.2.5"}.get)
    assert told == Endpoint("192.0.2.5", 7702)
    alone = advertised(Endpoint(ANY, 7702), [Endpoint("nobody.invalid", 7700)], lambda target: None)
    assert alone == Endpoint("127.0.0.1", 7702), "its seed may be itself, and its name be known later"


def test_a_name_that_nobody_knows_has_no_address() -> None:
    assert resolve("nobody.invalid") == frozenset()
    assert resolve("127.0.0.1") == {"127.0.0.1"}


@pytest.mark.parametrize(
    "addresses",
    [(), ("10.0.0.1",), ("10.0.0.2",), ("10.0.0.1", "10.0.0.5", "::1"), ("10.0.0.2", "10.0.0.3")],
    ids=["unknown", "here", "elsewhere", "all-here", "all-elsewhere"],
)
def test_a_name_may_have_several_addresses_of_this_machine_or_none(addresses: tuple[str, ...]) -> None:
    assert why_ambiguous(Endpoint("pods", 7700), addresses, {"10.0.0.1", "10.0.0.5", "::1"}.__contains__) == ""


def test_a_loopback_address_that_this_machine_lacks_is_of_no_other_one() -> None:
    assert why_ambiguous(Endpoint("localhost", 7700), ("127.0.0.1", "::1"), {"127.0.0.1"}.__contains__) == ""


def test_a_name_is_listened_for_at_each_address_that_is_here() -> None:
    addresses = {"::1", "127.0.0.1", "192.0.2.77"}
    assert to_listen_at("pods", addresses, {"127.0.0.1", "::1"}.__contains__) == ["127.0.0.1", "::1"]
    assert to_listen_at("pods", addresses, {"::1"}.__contains__) == ["::1"]
    assert to_listen_at("pods", ["192.0.2.77"]) == ["192.0.2.77"] and to_listen_at("eth0", ()) == ["eth0"]


def test_a_name_of_this_machine_and_of_others_is_no_seed() -> None:
    why = why_ambiguous(Endpoint("pods", 7700), ("10.0.0.2", "10.0.0.1", "fd00::3"), {"10.0.0.1"}.__contains__)
    assert why.startswith("pods:7700 has 3 addresses, 10.0.0.1 of this machine and 10.0.0.2 of another, so each ")
    assert "--seeds 10.0.0.1:7700,10.0.0.2:7700,[fd00::3]:7700, the same" in why


def test_what_is_here_is_known() -> None:
    seed = Endpoint("pods", 7700)
    assert why_ambiguous(seed, ("127.0.0.1",)) == "" == why_ambiguous(seed, ("192.0.2.77",))
    assert why_ambiguous(seed, ("127.0.0.1", "192.0.2.77")) != ""
