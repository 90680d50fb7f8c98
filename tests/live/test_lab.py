"""The network lab: properties of hosts, effects of links on packets, and clean-up at the end."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner

from p2p.cli import app
from p2p.errors import LabError
from p2p.netlab.control import ask, running
from p2p.netlab.lab import NetworkLab
from tests.live.labs import NewLab, program
from tests.live.swarm import HANG_S, ROOT, Process

pytestmark = [pytest.mark.light, pytest.mark.usefixtures("namespaces")]

SEND = """
import random, socket, sys
data = random.Random(int(sys.argv[2])).randbytes(int(sys.argv[3]))
with socket.create_connection((sys.argv[1], 5001)) as connection:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    print("answer", connection.recv(1).decode())
"""
RECEIVE = """
import random, socket, sys
data = random.Random(int(sys.argv[1])).randbytes(int(sys.argv[2]))
with socket.create_server(("", 5001)) as server:
    print("here")
    connection, _ = server.accept()
    with connection:
        received = b"".join(iter(lambda: connection.recv(1 << 20), b""))
        connection.sendall(b"y" if received == data else b"n")
"""
DATAGRAMS = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
    ours.bind(("", 5002))
    print("here", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "receive":
            print("got", ours.recv(100).decode(), flush=True)
        else:
            host, text = word.split()
            ours.sendto(text.encode(), (host, 5002))
            print("sent", text, flush=True)
"""


def python(lab: NetworkLab, host: int, source: str, *arguments: str) -> Process:
    return program(lab, host, sys.executable, "-u", "-c", source, *arguments)


def output(lab: NetworkLab, host: int, script: str) -> list[str]:
    """The output of a shell script on a host."""
    process = program(lab, host, "sh", "-c", script)
    assert process.end() == 0, process.report()
    return process.stdout


def test_a_host_has_nothing_in_common_with_the_machine_but_files_and_kernel(new_lab: NewLab) -> None:
    lab = new_lab(2)
    names = output(lab, 0, "hostname; cat /etc/hosts; ls /proc | grep -c '^[0-9]'; ls /dev/shm; ls /proc/self/fd")
    assert names[:4] == ["host0", "127.0.0.1 localhost", "10.77.0.1 host0", "10.77.0.2 host1"]
    assert int(names[4]) < 8, "only its own processes"
    assert names[5:] == ["lab", "0", "1", "2", "3"], "memory of its own, and no descriptor of the lab"
    first, second = (
        output(lab, host, "readlink /proc/self/ns/net /proc/self/ns/pid /proc/self/ns/mnt") for host in (0, 1)
    )
    ours = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "mnt")]
    assert not set(first) & set(second) and not {*first, *second} & set(ours)
    modes = output(lab, 1, "stat -c '%a %n' /dev/shm/lab /dev/shm/lab/home /dev/shm/lab/swarm.key")
    assert modes == ["700 /dev/shm/lab", "700 /dev/shm/lab/home", "600 /dev/shm/lab/swarm.key"]


def test_hosts_are_told_who_they_are_and_share_a_key_made_for_them(new_lab: NewLab) -> None:
    lab, other = new_lab(2), new_lab(1)
    told = [line.split("=", 1) for line in output(lab, 1, "env | grep -E '^(LAB|SHOAL|MASTER|RANK|WORLD)'")]
    assert {key: value for key, value in told} == {
        "LAB_HOST": "1",
        "LAB_ADDRESS": "10.77.0.2",
        "LAB_ADDRESSES": "10.77.0.1,10.77.0.2",
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29500",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "SHOAL_HOME": "/dev/shm/lab/home",
        "SHOAL_KEY": "/dev/shm/lab/swarm.key",
        "SHOAL_BIND": "10.77.0.2:7400",
        "SHOAL_SEEDS": "10.77.0.1:7400,10.77.0.2:7400",
    }
    keys = [output(of, host, "cat $SHOAL_KEY")[0] for of, host in ((lab, 0), (lab, 1), (other, 0))]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("net", ["", "rate=400mbit,delay=2ms,jitter=1ms,loss=0.5%"])
def test_bytes_arrive_as_they_were_sent(new_lab: NewLab, net: str) -> None:
    lab, size = new_lab(2, net), str(4 << 20)
    receiver = python(lab, 1, RECEIVE, "7", size)
    receiver.expect("here")
    sender = python(lab, 0, SEND, "10.77.0.2", "7", size)
    assert sender.end() == 0 == receiver.end(), sender.report() + receiver.report()
    assert sender.stdout == ["answer y"]
    shown, counters = lab.show(), lab.counters()
    num_packets = sum(pair["packets"] for pair in counters.values())
    assert counters[0, 1]["num_bytes"] > 4 << 20 > counters[1, 0]["num_bytes"]
    if net:
        assert counters[0, 1]["dropped_loss"] > 0
        assert shown["num_frames"] == num_packets, "each packet is a frame of its own, so that each is lost by itself"
    else:
        assert shown["num_frames"] < num_packets / 4, "frames of many packets"
        assert not any(pair[f"dropped_{why}"] for pair in counters.values() for why in ("loss", "queue", "mtu", "cut"))
    assert shown["lateness_us"]["p50"] <= shown["lateness_us"]["p99"] <= shown["lateness_us"]["max"]


def test_links_are_cut_and_healed_while_they_are_used(new_lab: NewLab) -> None:
    lab = new_lab(3, "delay=1ms")
    hosts = [python(lab, host, DATAGRAMS) for host in range(3)]
    for host in hosts:
        host.expect("here")

    def say(source: int, target: int, text: str) -> None:
        hosts[source].tell(f"10.77.0.{target + 1} {text}")
        hosts[source].expect(f"sent {text}")

    def hear(target: int, text: str) -> None:
        hosts[target].tell("receive")
        hosts[target].expect(f"got {text}")

    lab.set(2, "*", "cut")
    say(2, 0, "lost")
    say(0, 2, "lost-too")
    say(1, 0, "others")
    hear(0, "others")
    lab.set("all", "heal")
    say(2, 0, "again")
    hear(0, "again")
    say(0, 2, "back")
    hear(2, "back")
    lab.set(0, 1, "cut", one_way=True)
    say(0, 1, "one-way")
    say(1, 0, "other-way")
    hear(0, "other-way")
    counted = {ends: (pair["packets"], pair["dropped_cut"]) for ends, pair in lab.counters().items()}
    assert counted == {(0, 1): (0, 1), (1, 0): (2, 0), (0, 2): (1, 1), (2, 0): (1, 1), (1, 2): (0, 0), (2, 1): (0, 0)}
    for host in hosts:
        host.kill()
        assert host.end() == -signal.SIGKILL


def test_a_change_that_cannot_be_changes_nothing(new_lab: NewLab) -> None:
    lab = new_lab(2, "delay=20ms")
    before = lab.show()
    for words in ((0, 1, "delay=1ms,jitter=2ms"), (0, 1, "delay=1"), (5, "cut"), (0, "up=1mbit,jitter=1s"), ("cut",)):
        with pytest.raises(LabError):
            lab.set(*words)
    assert lab.show() == before
    lab.set(0, 1, "delay=80ms,jitter=1ms")
    lab.set(0, "up=5mbit,queue=10ms")
    after = lab.show()
    assert after["hosts"][0] == before["hosts"][0] | {"up": "5mbit", "queue": "10ms"}
    assert after["hosts"][1] == before["hosts"][1]
    assert {(pair["delay"], pair["jitter"]) for pair in after["pairs"]} == {("80ms", "1ms")}


def test_one_way_of_a_host_is_what_it_sends_and_a_line_has_no_way(new_lab: NewLab) -> None:
    lab = new_lab(3, "delay=10ms")
    lab.set(1, "delay=80ms", one_way=True)
    changed = [ends for ends, pair in lab.counters().items() if pair["delay"] == "80ms"]
    assert sorted(changed) == [(1, 0), (1, 2)]
    with pytest.raises(LabError, match="line, which has no --one-way"):
        lab.set(1, "up=5mbit,delay=5ms", one_way=True)
    assert {pair["delay"] for pair in lab.counters().values()} == {"10ms", "80ms"}


def test_a_host_that_crashes_takes_all_its_processes_along_and_nobody_elses(new_lab: NewLab) -> None:
    lab = new_lab(2)
    first, second = (program(lab, host, "sh", "-c", "sleep 1000 & echo here; wait") for host in (0, 1))
    first.expect("here")
    second.expect("here")
    lab.crash(0)
    assert first.end() == -signal.SIGKILL and not second.has_ended()
    with pytest.raises(LabError, match="this host is gone"):
        lab.start(0, ["true"])
    assert [host["is_gone"] for host in lab.show()["hosts"]] == [True, False]
    assert output(lab, 1, "echo lives") == ["lives"]
    second.kill()
    assert second.end() == -signal.SIGKILL


def test_what_cannot_be_started_is_named(new_lab: NewLab) -> None:
    with pytest.raises(LabError, match="cannot start no-such-program: No such file or directory"):
        new_lab(1).start(0, ["no-such-program"])


# Command line


def shoal_lab(*arguments: str, environ: Mapping[str, str] | None = None) -> Process:
    command = [sys.executable, "-m", "p2p.cli", "lab", *arguments]
    whole = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(environ or {})}

    def start(stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=whole)

    return Process(start)


def asked(*arguments: str) -> list[str]:
    """Run `shoal lab ARGUMENTS` in this process; returns its lines. Its exceptions are passed on."""
    result = CliRunner().invoke(app, ["lab", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output.splitlines()


def test_a_command_runs_in_each_host_with_its_output_and_its_code() -> None:
    process = shoal_lab("--hosts", "3", "--net", "delay=1ms", "--", "sh", "-c", "echo {host} at {address}; exit {host}")
    assert process.end() == 1, "of the first host that failed"
    assert sorted(process.stdout) == [f"[{host}] {host} at 10.77.0.{host + 1}" for host in range(3)]
    summary, *failures = sorted(process.stderr)
    assert failures == [f"shoal: the command of host {host} has ended with exit code {host}" for host in (1, 2)]
    assert re.fullmatch(r"shoal: [\d,]+ packets, dropped none; lateness p50 [\d.]+ ms, p99 [\d.]+ ms", summary)
    process = shoal_lab("--hosts", "1", "--", "sh", "-c", "kill -9 $$")
    assert process.end() == 128 + 9, process.report()


def test_a_lab_is_shown_and_changed_from_outside_until_it_is_told_to_end() -> None:
    name = f"test-{os.getpid()}"
    process = shoal_lab(
        "--hosts", "2", "--name", name, "--net", "delay=5ms", "--", "sh", "-c", "echo here; exec sleep 1000"
    )
    process.expect("[0] here")
    process.expect("[1] here")
    assert name in running()
    assert asked("set", "--name", name, "0", "1", "delay=80ms,jitter=1ms") == []
    shown = json.loads(asked("show", "--name", name, "--json")[0])
    assert {pair["delay"] for pair in shown["pairs"]} == {"80ms"} and shown["version"] == 1
    lines = asked("show", "--name", name)
    assert any(re.search(r"0 +│ 1 +│ delay=80ms,jitter=1ms", line) for line in lines), lines
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(f"\0shoal-lab/{os.getuid()}/{name}")
        stranger.send(b"junk")
        assert stranger.recv(1) == b"", "it hangs up"
    for message in ({"do": "dance"}, {"do": "set"}, {"do": "start", "host": 9}, {}):
        with pytest.raises(LabError, match="the lab "):
            ask(name, message)
    more = ["lab", "exec", "--name", name, "1", "--", "sh", "-c", "exit $((LAB_HOST + 6))"]
    assert CliRunner().invoke(app, more, catch_exceptions=False).exit_code == 7
    with pytest.raises(LabError, match="there is no host 2: numbers are 0 to 1"):
        asked("exec", "--name", name, "2", "--", "true")
    with pytest.raises(
        LabError, match=re.escape("no host is '7': numbers are 0 to 1, names host0, host1, and '*' is all")
    ):
        asked("set", "--name", name, "7", "cut")
    with pytest.raises(LabError, match=f"a lab with the name {name} is running: give this one another --name"):
        asked("--hosts", "1", "--name", name, "--", "true")
    process.send_signal(signal.SIGINT)
    assert process.end() == 130, process.report()
    assert name not in running()


FORBIDDEN = """
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def test_where_there_are_no_user_namespaces_the_setting_is_named() -> None:
    lab = [sys.executable, "-m", "p2p.cli", "lab", "--hosts", "1", "--", "true"]
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", FORBIDDEN, "sh", *lab]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S, env=environ)
    assert done.returncode == 2
    assert "No space left on device; user.max_user_namespaces is 0: an administrator may allow it" in done.stderr


def namespaces_of(pids: list[int]) -> set[str]:
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in ("net", "pid", "mnt", "uts", "ipc")}


def all_namespaces() -> set[str]:
    found = set()
    for pid in psutil.pids():
        try:
            found |= namespaces_of([pid])
        except OSError:
            continue  # the process has ended, or is another user's
    return found


def test_nothing_is_left_of_a_lab_that_is_killed() -> None:
    name = f"killed-{os.getpid()}"
    script = "setsid sleep 1000 & trap '' TERM INT HUP; echo here; wait"
    process = shoal_lab("--hosts", "3", "--name", name, "--", "sh", "-c", script)
    for host in range(3):
        process.expect(f"[{host}] here")
    pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(pids) >= 2 + 3 * 3, "two of the lab, and the first one, the shell and its child of each host"
    theirs = namespaces_of(pids) - namespaces_of([os.getpid()])
    assert len(theirs) == 3 + 3 * 5, theirs
    handles = [os.pidfd_open(pid) for pid in pids]
    files = set(Path("/tmp").iterdir()) | set(Path("/dev/shm").iterdir())
    assert not [path for path in files if "shoal-lab" in path.name or path.name == "lab"], "no folder to begin with"
    process.kill()
    for handle in handles:
        assert select.select([handle], [], [], HANG_S)[0], "it outlives the lab"
        os.close(handle)
    assert process.end() == -signal.SIGKILL
    assert name not in running()
    assert not theirs & all_namespaces()
