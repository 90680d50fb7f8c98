"""`shoal run`: starts the peers of one host, passes on their output, and leaves none behind.

The launcher decides nothing for the peers: all get the same environment, and find each other. Each peer leads its own
session, so that Ctrl-C in the terminal reaches only the launcher, which then asks the peers to leave. On Linux the
kernel kills the peers if the launcher itself is killed.

One thread, one selector: it wakes up for output, for the end of a peer (SIGCHLD), of which it notifies peers of other
hosts, for reports of peers, and for signals that end the run. Left out: starting peers on other hosts (Slurm,
Kubernetes or Ray do that).
"""

import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..errors import LaunchError, RegistryError, RemoteProtocolError
from ..host.files import raise_file_limit, why_too_few_files
from ..host.folders import default_home
from ..host.registry import Registry
from ..host.threads import PER_PEER, why_too_few_threads
from ..telemetry.snapshot import Snapshot
from .admission import (
    check_is_new,
    check_runs_the_same,
    name_here,
    others_here,
    reserve_local_indices,
    why_nothing_to_join,
)
from .children import Child, reap_orphans
from .config import NO_PREDECESSOR, LaunchConfig, Predecessor, peer_cores, peer_environment
from .death_notices import DeathNotices
from .devices import describe
from .fence import Fence
from .output import READ_BYTES, UNREAD_S, Output, Sink, Stream
from .peer_slots import FAILED, PeerSlot
from .postmortem import Postmortem
from .progress import Progress
from .report import names, run_exit_code, table, what_became_of
from .signals import catches, signal_name, signals_to_socket
from .traces import Traces

SETTLED_S: Final = 1.5
"""A peer that still waits this long after a death knows of it."""


BASELINE_OPEN_FILES: Final = 5
"""Open files of a peer after its imports."""

NOBODY_JOINED: Final = (
    "no peer has joined a swarm, so each process ran by itself: call `p2p.join()` in the script, or check whether it "
    "ended before that call"
)


class Launcher:
    """Runs `config.num_peers` peers until all have ended. For one run, in the main thread, which receives signals.

    The kernel kills the peers when the thread that started them ends.
    """

    def __init__(self, config: LaunchConfig, *, environ: Mapping[str, str], stdout: int, stderr: int) -> None:
        """Check everything that can fail before the first peer starts.

        Args:
            config: settings of the launch.
            environ: environment that peers inherit; locates the registry if `config` does not.
            stdout: descriptor for the peers' stdout.
            stderr: descriptor for the peers' stderr, and for messages of the launcher.

        Raises:
            LaunchError, NetworkError, SecurityError: the config asks for something impossible.
            RegistryError: the registry folder is unusable.
        """
        config = config.with_readable_key()
        self._tcp = config.check()
        self._of_devices = describe(environ, config.gpus, config.num_peers, is_auto=config.is_auto)
        if why := why_too_few_files(config.num_peers, has_tcp=self._tcp is not None, num_open=BASELINE_OPEN_FILES):
            raise LaunchError(f"nothing was started: {why}")
        if why := why_too_few_threads(PER_PEER * config.num_peers):
            raise LaunchError(f"nothing was started: {why}")
        self._registry = Registry(config.home or default_home(environ), config.swarm_name)
        if config.only == "new":
            check_is_new(self._registry)
        check_runs_the_same(config, self._registry)
        self._why_over = why_nothing_to_join(config, self._registry) if config.only == "join" else ""
        self._death_notices = DeathNotices(self._registry, self._tcp, time.monotonic)
        self._config = replace(config, is_traced=True)
        self._environ = environ
        self._selector = selectors.DefaultSelector()
        self._output = Output(self._selector, stdout, stderr, self._on_broken_output)
        numbers, self._held = reserve_local_indices(self._registry, config.num_peers)
        self._places = [PeerSlot(index, str(number)) for index, number in enumerate(numbers)]
        self._postmortem = Postmortem(self._registry.folder)
        self._progress = Progress(self._places, lambda peer_id: name_here(self._registry, peer_id), time.monotonic())
        self._traces = Traces(self._registry.folder, config.receipts, self._output.say)
        self._fence = Fence(config.fence_s)
        self._streams: dict[Child, tuple[Stream, ...]] = {}
        self._began_ns = time.time_ns()
        self._died_at = -math.inf
        self._cannot_start = False
        self._ended_by: int | None = None
        self._kill_at = math.inf

    def run(self) -> int:
        """Start the peers, wait until the last has ended, and return the exit code of the run."""
        try:
            return self._run()
        finally:
            self._output.finish(None if self._ended_by is None else UNREAD_S)

    def _run(self) -> int:
        if self._why_over:
            self._output.say(self._why_over)
            return 0
        if warning := raise_file_limit(self._config.num_peers):
            self._output.say(warning)
        self._tell([self._of_devices] if self._of_devices else [])
        with self._selector, signals_to_socket() as wake_up:
            self._selector.register(wake_up, selectors.EVENT_READ)
            try:
                for place in self._places:
                    self._start(place)
                while self._streams or self._next_start() < math.inf:
                    self._wait(wake_up)
                self._tell(self._progress.flush())
            finally:
                self._kill_all()
                self._warn(self._death_notices.close())
                os.close(self._held)
        if self._postmortem.is_news and self._ended_by is None:
            self._output.say(self._postmortem.first)
        if self._config.verbosity >= 0 and self._progress.done >= 0:
            self._output.show(table(self._places))
        endings = [place.exit_outcome for place in self._places if place.exit_outcome is not None]
        code = FAILED if self._cannot_start else run_exit_code(endings, self._ended_by)
        if not code and self._ended_by is None and all(place.snapshot is None for place in self._places):
            self._output.say(NOBODY_JOINED)
            return FAILED
        return code

    # Peers.

    def _start(self, place: PeerSlot) -> None:
        config = self._config
        if place.exit_outcome is not None and config.only == "new":
            config = replace(config, only="")  # the run exists now, and this peer belongs to it
        # A peer that failed after its run had ended repeats the run: joining the ended one would only hide its error.
        is_first = place.exit_outcome is None or place.is_through
        predecessor = NO_PREDECESSOR if is_first else Predecessor(self._began_ns, self._death_notices.remote_hosts)
        environ = peer_environment(config, place.index, self._environ, int(place.name), predecessor)
        cores = peer_cores(config, self._environ, int(place.name))
        child = Child.start(config, place.index, environ, cores)
        place.begin(child, time.monotonic())
        self._death_notices.watch(child.pid, child.process_start)
        log = None if config.log_dir is None else config.log_dir / f"peer-{place.name}.log"
        self._streams[child] = self._output.follow(place.name, child.outputs, log)
        self._listen(place, child)

    def _next_start(self) -> float:
        return min(place.restart_at for place in self._places)

    def _start_again(self, now: float) -> None:
        for place in self._places:
            if now < place.restart_at:
                continue
            place.restart_at = math.inf
            has_completed = any(
                other.exit_outcome is not None and other.exit_outcome.has_completed for other in self._places
            )
            if has_completed and all(other.is_through for other in self._living()):
                self._output.say(f"peer {place.name} is not started again: the run is completed")
                continue
            try:
                self._start(place)
            except LaunchError as error:
                self._output.say(str(error))

    def _listen(self, place: PeerSlot, child: Child) -> None:
        for source in child.sources:
            if source not in self._selector.get_map():
                self._selector.register(source, selectors.EVENT_READ, place)

    def _take_report(self, place: PeerSlot, source: socket.socket) -> None:
        """Take one report, if there is one."""
        if (child := place.child) is None:
            return
        packet = child.receive_report(source, place.pid)
        if packet is None:
            self._listen(place, child)
        elif not packet:
            self._selector.unregister(source)
        if not packet:
            return
        self._handle_report(place, packet)
        standing = place.snapshot
        if (
            standing is not None
            and not standing.has_begun
            and self._ended_by is None
            and time.monotonic() > self._died_at + SETTLED_S
        ):
            self._end_if_hopeless()

    def _handle_report(self, place: PeerSlot, packet: bytes) -> None:
        with suppress(RemoteProtocolError, RegistryError):  # it runs another version of shoal
            standing, before = Snapshot.parse(packet), place.snapshot
            if before is not None and standing.identity.swarm not in (before.identity.swarm, self._config.swarm_name):
                return  # the script takes part in another swarm, too
            self._turn_to(standing.identity.swarm, standing.home)
            if before is not None and before.identity.peer_id != standing.identity.peer_id:
                self._postmortem.examine(place)  # what it has done since its last report
            self._tell(self._progress.add_report(place, standing, time.monotonic()))
            self._traces.follow(place)

    def _turn_to(self, swarm: str, home: str) -> None:
        """Look after this swarm, which the script has named, unless a peer is in that of the launch."""
        before = self._registry.folder
        folder = (Path(home) if home else before.parent) / swarm
        known = {place.snapshot.identity.swarm for place in self._places if place.snapshot is not None}
        if folder == before or (swarm != self._config.swarm_name and self._config.swarm_name in known):
            return
        self._registry = Registry(folder.parent, swarm)
        self._postmortem.folder = self._traces.pages = self._registry.folder
        self._warn(self._death_notices.close())
        tcp = None if self._tcp is None else replace(self._tcp, swarm=swarm)
        self._death_notices = DeathNotices(self._registry, tcp, time.monotonic)
        for child in self._streams:
            self._death_notices.watch(child.pid, child.process_start)

    def _end_if_hopeless(self) -> None:
        """End the run if the first step waits for more peers than can still join, since some have died."""
        if self._died_at == -math.inf or self._config.is_open:
            return
        ours = {place.snapshot.identity.peer_id for place in self._places if place.snapshot is not None}
        if why := self._progress.why_no_start(len(others_here(self._registry, ours))):
            self._cannot_start = True
            self._end(signal.SIGTERM, why)

    # Events.

    def _wait(self, wake_up: socket.socket) -> None:
        """Sleep until the next event or deadline, and handle what is due."""
        now = time.monotonic()
        parts = self._death_notices, self._progress, self._fence, self._traces
        wake_at = min(self._kill_at, self._next_start(), *(part.deadline for part in parts))
        for key, _ in self._selector.select(max(0.0, wake_at - now)):
            if isinstance(key.data, Stream | Sink):
                self._output.pass_on(key.data)
            elif isinstance(key.data, PeerSlot) and isinstance(key.fileobj, socket.socket):
                self._take_report(key.data, key.fileobj)
            else:
                for number in wake_up.recv(READ_BYTES):
                    self._receive_signal(number)
        now = time.monotonic()
        if now >= self._death_notices.deadline:
            self._warn(self._death_notices.poll())
        self._start_again(now)
        self._tell(self._progress.tick(now))
        self._traces.poll(now)
        for place in self._fence.poll(self._living(), now):
            assert place.child is not None
            self._output.say(f"peer {place.name} was stopped for {self._fence.limit_s:g} s: killing it (--fence)")
            place.child.kill()
        if self._streams and now >= self._kill_at:
            self._output.say(f"killing {names(self._living())}, still there after {self._config.grace_s:g} s")
            self._kill_all()

    def _living(self) -> list[PeerSlot]:
        return [place for place in self._places if place.child is not None]

    def _ended(self) -> list[PeerSlot]:
        """Places whose processes have ended, in that order as far as their records show it."""
        ended = [place for place in self._living() if place.child is not None and place.child.has_ended()]
        return sorted(ended, key=self._postmortem.last_ns) if len(ended) > 1 else ended

    def _receive_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            for place in self._ended():
                assert place.child is not None
                self._on_exit(place, place.child)
            if os.getpid() == 1:
                reap_orphans({child.pid for child in self._streams})
        elif number == signal.SIGUSR1:
            self._ask_for_stacks()
        elif self._ended_by is None:
            self._end(number, signal_name(number))
        elif self._streams:
            self._output.say(f"{signal_name(number)} again: killing {names(self._living())}")
            self._kill_all()

    def _ask_for_stacks(self) -> None:
        """Pass SIGUSR1 on to peers that have a handler; it would end the others."""
        deaf = []
        for place in self._living():
            assert place.child is not None
            if catches(place.child.process(place.pid), signal.SIGUSR1):
                place.child.signal(signal.SIGUSR1, place.pid)
            else:
                deaf.append(place)
        if deaf:
            self._output.say(f"SIGUSR1 is not passed on to {names(deaf)}, which it would end")

    def _end(self, number: int, why: str) -> None:
        """Ask the peers to leave the swarm, as if signal `number` had arrived."""
        lines = self._progress.flush() if self._config.verbosity >= 0 else []
        self._ended_by = number  # before any output, whose failure calls this again
        self._kill_at = time.monotonic() + self._config.grace_s
        living = self._living()
        for place in self._places:
            place.restart_at = math.inf
        for line in lines:
            self._output.say(line)
        self._output.say(f"{why}: asking {names(living)} to leave")
        for place in living:
            assert place.child is not None
            place.child.signal(signal.SIGTERM, place.pid)

    def _on_broken_output(self, error: OSError) -> None:
        if self._ended_by is None:
            self._end(signal.SIGPIPE, f"the output cannot be written ({error.strerror})")

    def _kill_all(self) -> None:
        children = [(place, place.child) for place in self._living() if place.child is not None]
        for _, child in children:
            child.kill()
        for place, child in children:
            child.wait()
            self._on_exit(place, child, killed=True)

    def _on_exit(self, place: PeerSlot, child: Child, *, killed: bool = False) -> None:
        """Reap a peer that has ended, pass on its last output, and report its end unless this launcher asked for it."""
        # Helpers, such as DataLoader workers, do not outlive their peer. The pid cannot be reused before the peer is
        # reaped.
        child.kill()
        self._warn(self._death_notices.announce(child.pid, child.process_start))
        self._read_last_reports(place, child)
        seen = self._postmortem.examine(place)
        return_code = child.reap()
        streams = self._streams.pop(child, ())  # none if an error right after its start kept them from being opened
        self._output.end(streams)
        now = time.monotonic()
        was_asked = self._ended_by is not None or killed
        has_left = seen is None or was_asked
        what_next = place.end(return_code, now, 0 if was_asked else self._config.num_restarts, has_left=has_left)
        assert place.exit_outcome is not None
        self._died_at = now
        last_words = streams[-1].prefixer.last_line if streams else ""
        self._traces.end(place, round(now * 1e9), last_words, was_asked=was_asked)
        if not (place.exit_outcome.has_completed or was_asked):
            others = [other for other in self._places if other is not place]
            if place.exit_outcome.exit_code:
                words = self._progress.rename(last_words)
                self._postmortem.conclude(place, seen, words, round(now * 1e9), self._living())
            line = what_became_of(place, child.pid, others, what_next)
            for each in self._progress.died(place, line, now) if self._config.verbosity >= 0 else [line]:
                self._output.say(each)

    def _read_last_reports(self, place: PeerSlot, child: Child) -> None:
        heard = list[socket.socket]()
        while rest := [source for source in child.sources if source not in heard]:  # the listener may add one
            heard += rest
            for source in rest:
                while packet := child.receive_report(source, place.pid):
                    self._handle_report(place, packet)
                if source in self._selector.get_map():
                    self._selector.unregister(source)

    def _tell(self, lines: list[str]) -> None:
        """Print events, unless only failures are wanted, or the run is being ended on request."""
        for line in lines if self._config.verbosity >= 0 and self._ended_by is None else ():
            self._output.say(line)

    def _warn(self, text: str) -> None:
        if text and self._ended_by is None:
            self._output.say(text)
