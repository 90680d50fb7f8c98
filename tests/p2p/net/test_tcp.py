"""TCP options of a user: their meaning, and refused ones."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from gossip import WAN, CoreConfig
from p2p.config import LoopConfig, PeerConfig
from p2p.errors import NetworkError, SecurityError
from p2p.host.keys import read_key, write_key
from p2p.net.addresses import ANY, Endpoint
from p2p.net.listener import Credentials
from p2p.net.tcp import TcpConfig, TcpOptions, share_cores


@pytest.mark.parametrize(
    ("num_cores", "num_peers", "io_threads"), [(1, 2, 1), (2, 2, 1), (5, 2, 2), (8, 2, 4), (64, 1, 4)]
)
def test_who_encrypts_takes_a_thread_per_core_of_its_own_up_to_four(
    num_cores: int, num_peers: int, io_threads: int
) -> None:
    config = TcpConfig(swarm="pond", bind=Endpoint(ANY, 0), secret=b"hush")
    assert share_cores(config, num_cores, num_peers).io_threads == io_threads
    assert share_cores(replace(config, secret=None), num_cores, num_peers).io_threads == 1


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "swarm.key"
    write_key(path)
    return path


def test_nothing_said_is_no_tcp_at_all(key: Path) -> None:
    assert TcpOptions().check("pond") is None
    assert TcpOptions(key=key).check("pond") is None


def test_what_is_said_amounts_to_this(key: Path) -> None:
    options = TcpOptions(seeds="10.0.0.5:7700, [::1]:7702", bind="*:7700", advertise="node1", key=key)
    assert options.check("pond") == TcpConfig(
        swarm="pond",
        bind=Endpoint(ANY, 7700),
        advertise=Endpoint("node1", 0),
        seeds=(Endpoint("10.0.0.5", 7700), Endpoint("::1", 7702)),
        secret=read_key(key),
    )


def test_seeds_alone_are_enough() -> None:
    config = TcpOptions(seeds="10.0.0.5:1", insecure=True).check("pond")
    assert config == TcpConfig(swarm="pond", bind=Endpoint(ANY, 0), seeds=(Endpoint("10.0.0.5", 1),))


def test_a_seed_whose_name_nobody_knows_is_remembered() -> None:
    config = TcpOptions(seeds="nobody.invalid:1,10.0.0.5:1", insecure=True).check("pond")
    assert config is not None and config.unknown_seeds == {"tcp://nobody.invalid:1"}


def test_seeds_with_an_ipv4_address_are_called_at_it() -> None:
    config = TcpOptions(seeds="localhost:1,nobody.invalid:1,[::1]:1", insecure=True).check("pond")
    assert config is not None and config.ipv4_names == {"localhost"}
    credentials = Credentials(config.realm, "", None, config.ipv4_names)
    with zmq.Context() as context:
        for host, is_either in (("localhost", True), ("localhost", False), ("nobody.invalid", True), ("[::1]", True)):
            with context.socket(zmq.DEALER) as dealer:
                credentials.introduce(dealer, "", "" if host == "localhost" and is_either else f"tcp://{host}:1")
                assert dealer.ipv6 == is_either


@pytest.mark.parametrize(
    ("options", "num_peers", "says"),
    [
        (
            TcpOptions(bind="127.0.0.1:65535"),
            1,
            "--bind 127.0.0.1:65535: each peer takes two ports from there on, 1 of them up to 65536, and the last one "
            "is 65535; give one up to 65534",
        ),
        (TcpOptions(bind="*:65533"), 2, "2 of them up to 65536, .* give one up to 65532"),
        (TcpOptions(bind="*:7700", advertise="node1:65535"), 1, "--advertise node1:65535: .* up to 65534"),
        (
            TcpOptions(bind="nobody.invalid:7700"),
            1,
            "--bind nobody.invalid:7700: the host nobody.invalid is unknown; give an address of this machine",
        ),
    ],
)
def test_where_nobody_can_listen_is_said_before_anybody_tries(options: TcpOptions, num_peers: int, says: str) -> None:
    with pytest.raises(NetworkError, match=says):
        replace(options, insecure=True).check("pond", num_peers)


def test_a_seed_that_is_given_twice_is_named_in_both_spellings() -> None:
    said = r"--seeds: localhost:1 and LOCALHOST:1 are the same peer, at .*:1: give it once"
    with pytest.raises(NetworkError, match=said):
        TcpOptions(seeds="localhost:1,LOCALHOST:1", insecure=True).check("pond")
    for seeds in ("localhost:1,LOCALHOST:3", "a.invalid:1,b.invalid:1"):
        assert TcpOptions(seeds=seeds, insecure=True).check("pond") is not None


@pytest.mark.parametrize("seeds", ["127.0.0.1:7,127.0.0.1:8", "127.0.0.1:8,127.0.0.1:7"])
def test_seeds_of_which_one_has_the_second_port_of_another_are_named(seeds: str) -> None:
    said = r"--seeds: 127\.0\.0\.1:7 and 127\.0\.0\.1:8 cannot both be peers, .* 2 ports apart"
    with pytest.raises(NetworkError, match=said):
        TcpOptions(seeds=seeds, insecure=True).check("pond")
    assert TcpOptions(seeds="127.0.0.1:7,127.0.0.2:8", insecure=True).check("pond") is not None


def test_the_last_ports_and_the_name_of_an_interface_can_be_listened_at() -> None:
    _, interface = socket.if_nameindex()[0]
    assert TcpOptions(bind="*:65532", insecure=True).check("pond", 2) is not None
    assert TcpOptions(bind=f"{interface}:7700", insecure=True).check("pond") is not None


@pytest.mark.parametrize("options", [TcpOptions(bind="*:7700"), TcpOptions(seeds="a:1")])
def test_tcp_without_a_key_is_refused_unless_it_is_asked_for(options: TcpOptions) -> None:
    with pytest.raises(SecurityError, match=r"TCP needs a key: make one with `shoal key new --out swarm.key`"):
        options.check("pond")


def test_a_key_and_insecure_contradict_each_other(key: Path) -> None:
    with pytest.raises(SecurityError, match="contradict"):
        TcpOptions(bind="*:1", key=key, insecure=True).check("pond")


def test_a_key_that_others_may_read_is_refused(key: Path) -> None:
    key.chmod(0o644)
    with pytest.raises(SecurityError, match="chmod 600"):
        TcpOptions(bind="*:1", key=key).check("pond")


@pytest.mark.parametrize(
    "options",
    [
        TcpOptions(advertise="node1"),
        TcpOptions(insecure=True),
        TcpOptions(bind="7700", insecure=True),
        TcpOptions(bind="*:1", advertise="0.0.0.0", insecure=True),
        TcpOptions(bind="*:1", advertise="a b", insecure=True),
        TcpOptions(seeds="a:1,", insecure=True),
        TcpOptions(seeds="a:1,a:1", insecure=True),
        TcpOptions(seeds="a:0", insecure=True),
        TcpOptions(seeds="*:1", insecure=True),
        TcpOptions(bind="*:1", insecure=True, network="moon"),
        TcpOptions(network="moon"),
        TcpOptions(network="wan"),
    ],
)
def test_what_cannot_be_is_named(options: TcpOptions) -> None:
    with pytest.raises(NetworkError, match="--"):
        options.check("pond")


def test_a_secret_is_not_shown() -> None:
    config = TcpConfig(swarm="pond", bind=Endpoint(ANY, 0), secret=b"hush")
    assert "hush" not in repr(config)


def test_each_of_several_peers_on_a_host_gets_two_ports_of_its_own(key: Path) -> None:
    options = TcpOptions(seeds="a:1", bind="[::]:7700", advertise="node1:8800", key=key)
    assert options.to_environment(2) == {
        "SHOAL_SEEDS": "a:1",
        "SHOAL_BIND": "[::]:7704",
        "SHOAL_ADVERTISE": "node1:8804",
        "SHOAL_KEY": str(key),
        "SHOAL_NETWORK": "lan",
    }
    assert TcpOptions(bind="*:0", advertise="node1", insecure=True, network="wan").to_environment(2) == {
        "SHOAL_BIND": "*:0",
        "SHOAL_ADVERTISE": "node1",
        "SHOAL_INSECURE": "1",
        "SHOAL_NETWORK": "wan",
    }


def test_a_peer_reads_what_the_launcher_has_set_and_its_script_has_the_last_word(key: Path, tmp_path: Path) -> None:
    options = TcpOptions(seeds="a:1", bind="*:7700", advertise="node1", key=key, network="wan")
    environ = {"SHOAL_HOME": str(tmp_path), "SHOAL_SWARM": "lake", **options.to_environment()}
    assert PeerConfig.from_environment(environ).tcp == options
    config = PeerConfig.from_environment(environ, bind="*:1", swarm="pond")
    assert (config.tcp.bind, config.tcp.seeds, config.swarm) == ("*:1", "a:1", "pond")
    for no in ("0", "false", "no", "nonsense"):
        assert PeerConfig.from_environment({"SHOAL_INSECURE": no}, home=tmp_path, swarm="lake").tcp == TcpOptions()


def test_the_network_decides_the_timers_and_who_is_let_in(key: Path, tmp_path: Path) -> None:
    timers = CoreConfig(beat_s=0.3)
    for network, core, realm in (("lan", timers, "pond"), ("wan", WAN, "pond wan")):
        tcp = TcpOptions(bind="*:7700", key=key, network=network)
        config = PeerConfig(home=tmp_path, swarm="pond", tcp=tcp, loop=LoopConfig(core=timers)).for_loop()
        assert config.core == core
        assert config.tcp is not None and config.tcp.realm == realm
    assert PeerConfig(swarm="pond", home=tmp_path, loop=LoopConfig(core=timers)).for_loop().core == timers


@pytest.mark.parametrize("name", ["SHOAL_MIN_PEERS", "SHOAL_ARENA"])
def test_a_number_in_the_environment_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number, is 'two'"):
        PeerConfig.from_environment({"SHOAL_HOME": "/x", name: "two"})


def test_a_swarm_that_nothing_names_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"name the swarm, p2p\.join\(swarm=\.\.\.\)"):
        PeerConfig.from_environment({"SHOAL_HOME": "/x", "SHOAL_SWARM": ""})


def test_names_of_what_may_differ_come_from_the_environment_and_are_short() -> None:
    config = PeerConfig.from_environment({"SHOAL_HOME": "/x", "SHOAL_MAY_DIFFER": "lr,1"}, swarm="pond")
    assert config.may_differ == ("lr", "1")
    for name in ("", "x" * 65):
        with pytest.raises(ValueError, match="may_differ has names of at most 64 characters"):
            PeerConfig(swarm="pond", home=Path("/x"), may_differ=(name,))
