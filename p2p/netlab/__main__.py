"""The process of a lab, started by `NetworkLab`: `python -m p2p.netlab CHANNEL LISTENER PARENT`.

This process creates the namespaces and their first process, which is the lab. If that first process is killed, the
kernel ends all others.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
import traceback
from random import Random
from typing import NoReturn

from ..errors import LabError
from . import namespaces
from .config import LabConfig
from .devices import Devices, find
from .emulator import Emulator
from .host import run as run_host
from .link import Links
from .messages import Message, receive, send
from .packets import Port
from .places import address, names, network
from .server import HostProcess, Server


def main(channel_fd: int, listener_fd: int, parent: int) -> None:
    """Run a lab until it ends, or until the owner of the other end of the channel closes it or dies."""
    channel = socket.socket(fileno=channel_fd)
    namespaces.die_with_parent(parent)
    try:
        message, _ = receive(channel)
        devices = find()
        namespaces.enter()
    except EOFError:
        return
    except LabError as error:
        send(channel, {"error": str(error)})
        return
    pid = os.fork()
    if pid:
        channel.close()
        os.close(listener_fd)
        os.waitpid(pid, 0)
        return
    _run(channel, socket.socket(fileno=listener_fd), message, devices)


def _run(channel: socket.socket, listener: socket.socket, message: Message, devices: Devices) -> NoReturn:
    """The first process of the new namespaces, from its fork to its end."""
    code = 1
    try:
        namespaces.die_with_parent(0)  # the pid of a process of another pid namespace, as seen from here
        _be_lab(channel, listener, message, devices)
        code = 0
    except LabError as error:
        with contextlib.suppress(OSError):
            send(channel, {"error": str(error)})
    except EOFError:
        pass
    except BaseException:  # no caller would report it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _be_lab(channel: socket.socket, listener: socket.socket, message: Message, devices: Devices) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = LabConfig.from_message(message["config"])
    with open("/proc/self/ns/pid") as own:
        processes = [_fork_host(devices, own.fileno()) for _ in config.hosts]
    for process in processes:
        _ask(process)
    try:
        devices.create_veth_pairs([process.pid for process in processes])
        ports = [Port(f"veth{index}") for index in range(len(processes))]
    except OSError as error:
        raise LabError(f"cannot read packets here: {error.strerror}") from error
    for index, process in enumerate(processes):
        host = config.hosts[index]
        begin = {"do": "begin", "address": network(index), "name": host.name, "names": names(config.hosts)}
        send(process.channel, {**begin, "key": message["key"]})
    for process in processes:
        _ask(process)
    lines = [host.line for host in config.hosts]
    links = Links(lines, config.pairs, Random(message["seed"]))
    by_address = {socket.inet_aton(address(index)): index for index in range(len(processes))}
    emulator = Emulator(links, ports, by_address)
    server = Server(config, emulator, processes, channel, listener)
    server.limit_frames(lambda said: send(channel, said))
    namespaces.wake_on_time()
    gc.disable()  # no frame is part of a reference cycle
    emulator.run()


def _fork_host(devices: Devices, own_processes: int) -> HostProcess:
    """Start the first process of a host."""
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        namespaces.unshare(namespaces.NEWPID)  # of the next child
    except OSError as error:
        raise LabError(f"cannot make a pid namespace: {error.strerror}") from error
    pid = os.fork()
    if not pid:
        try:
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor > 2 and descriptor != theirs.fileno():
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
            run_host(theirs, devices)
        finally:
            os._exit(0)
    theirs.close()
    namespaces.set_namespace(own_processes, namespaces.NEWPID)
    return HostProcess(pid, channel)


def _ask(process: HostProcess) -> None:
    """Wait for the answer of `process`; LabError if the answer is an error, or the process has ended."""
    try:
        message, _ = receive(process.channel)
    except (EOFError, OSError):
        raise LabError("a host ended before it began; is there memory for all of them?") from None
    if "error" in message:
        raise LabError(message["error"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
