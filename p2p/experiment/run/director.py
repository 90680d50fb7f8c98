"""Carries a plan out: observes the peers every few milliseconds, and performs the events that are due."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from ...host.processes import stands_still
from ..config import Experiment
from ..events import IN_THE_LAB, STATE, Event, host_number
from ..run_log import EventOutcome
from .plan import Plan, in_words, when
from .swarm import PeerProcess, Swarm, TrackedPeer
from .testbed import LabTestbed

POLL_S: Final = 0.005
LOSSES_EVERY: Final = 20
"""Polls."""
CLOSELY_S: Final = 0.25
"""How long one peer alone is polled, to catch it in the phase that an event asks for."""
CLOSE_POLL_S: Final = 0.0003
LEAVE_S: Final = 20.0
"""Peers that were asked to leave are killed after this."""
SETTLE_S: Final = 30.0
"""The longest wait, at the end, until the last event is over."""
MORE_STEPS: Final = 3
"""Steps after the last event is over, in which samples of dead members are handed out again."""
STANDS_S: Final = 0.5
"""Peers that have committed no step for this long are asked why."""


class Director:
    """Carries out the plan of one run.

    Attributes:
        happened: one per planned event.
        first_step_ns: when step 1 was committed; 0: not yet.
        ended_by: `script`, `until` or `limit`; `interrupt` until the run is over.
    """

    def __init__(
        self,
        experiment: Experiment,
        plan: Plan,
        swarm: Swarm,
        say: Callable[[str], None],
        is_interrupted: Callable[[], bool],
    ) -> None:
        """Start nothing yet. `say`: prints events; `is_interrupted`: whether the run is to end at once."""
        self._run, self._plan, self._swarm, self._say = experiment.run, plan, swarm, say
        self._is_interrupted = is_interrupted
        self._never = threading.Event()
        self._until_ns = self._ends_ns = 0
        self._last_step = -1  # the step to reach before the end; -1: not known yet
        self._newest: dict[int, int] = {}  # by number of an event: the newest step when its pause or change ended
        self._undo: dict[int, Callable[[], None]] = {}  # by number of an event: restores the links as before
        self.first_step_ns = 0
        self.ended_by = "interrupt"
        self.happened = [
            EventOutcome(number=number, do=event.do, planned=when(event), who=in_words(event), for_s=event.for_s)
            for number, event in enumerate(plan.events, 1)
        ]
        self._to_do = [*zip(plan.events, self.happened, strict=True)]
        self._to_end = [pair for pair in self._to_do if pair[0].for_s or pair[0].do == "restart_all"]

    def run(self) -> None:
        """Start the peers, carry out the plan, and wait until all have ended, or the run is interrupted."""
        try:
            self._conduct()
        finally:
            self._set_why_not()

    def _conduct(self) -> None:
        began_ns = time.monotonic_ns()
        self._swarm.start(self._run.peers, began_ns)
        self._say(f"{self._run.peers} peers start")
        looks = 0
        while self._swarm.living() or self._is_restarting():
            self._never.wait(POLL_S)
            if self._is_interrupted():
                return
            now_ns = time.monotonic_ns()
            self._swarm.poll(now_ns)
            looks += 1
            if looks % LOSSES_EVERY == 0:
                self._swarm.poll_snapshots(now_ns)
            if not self.first_step_ns and self._swarm.newest_step() > 0:
                self.first_step_ns = min(each.peer.first_ns or now_ns for each in self._swarm.seated() if each.peer)
                self._say("step 1 is committed")
            self._end_expired(now_ns)
            if not self._ends_ns:
                self._do_due(now_ns)
            self._look_at_end(now_ns, began_ns)
        self._swarm.poll_snapshots(time.monotonic_ns())
        self.ended_by = self.ended_by if self._ends_ns else "script"

    # Events.

    def _do_due(self, now_ns: int) -> None:
        """Perform due events, in order; of events that wait for the same target and phase, only the first is tried."""
        self._to_do = [pair for pair in self._to_do if not pair[1].time_ns]
        awaited: set[tuple[int | str, str]] = set()
        for event, happened in self._to_do:
            if self._until_ns and not event.after and not _seeks(event, happened):
                continue
            if not happened.trigger_ns and self._is_due(event, happened, now_ns):
                happened.trigger_ns = now_ns
            if event.during and (event.who, event.during) in awaited:
                continue
            if happened.trigger_ns and now_ns >= happened.trigger_ns + event.wait_s * 1e9:
                self._do(event, happened)
            if _seeks(event, happened):
                awaited.add((event.who, event.during))

    def _is_due(self, event: Event, happened: EventOutcome, now_ns: int) -> bool:
        if event.at_step is not None:
            return self._swarm.newest_step() >= event.at_step
        if event.at_s is not None:
            return bool(self.first_step_ns) and now_ns >= self.first_step_ns + event.at_s * 1e9
        return self._is_over(self.happened[happened.number - 2])

    def _do(self, event: Event, happened: EventOutcome) -> None:
        """Perform an event if that is possible now; else it is retried at the next poll."""
        happened.at_step = self._swarm.newest_step()
        if event.do == "join":
            happened.time_ns = time.monotonic_ns()
            new = self._swarm.start(event.number, happened.time_ns, joins=True)
            happened.peers = [each.index for each in new]
        elif event.do == "restart_all":
            living = self._swarm.living()
            happened.time_ns = time.monotonic_ns()
            self._swarm.kill_all()
            happened.victims = [each.peer.peer_id for each in living if each.peer is not None]
            happened.peers = [each.index for each in living]
        elif event.do in IN_THE_LAB:
            self._change_network(event, happened)
        else:
            victim = self._choose(event)
            if victim is None or not self._waits_for(event, victim) or not self._hit(event, happened, victim):
                return
        self._say(f"step {max(happened.at_step, 0)}: {happened.who}{self._whom(happened)}")

    def _change_network(self, event: Event, happened: EventOutcome) -> None:
        venue, host = self._swarm.venue, host_number(event.who)
        assert isinstance(venue, LabTestbed) and host is not None, "the file was checked"
        there = [each for each in self._swarm.living() if each.host in (host, host_number(event.to))]
        happened.time_ns = time.monotonic_ns()
        if event.do == "kill_host":
            venue.crash(host)
        else:
            self._undo[happened.number] = venue.change(
                host,
                host_number(event.to),
                event.net or event.do,
                one_way=event.one_way,
                for_a_while=bool(event.for_s),
            )
        if event.do == "link":  # steps that begin after that time have the new delays
            happened.time_ns = time.monotonic_ns()
        if event.do in ("cut", "kill_host"):
            happened.victims = [each.peer.peer_id for each in there if each.peer is not None]
            happened.peers = [each.index for each in there]
        for each in there if event.do == "kill_host" else ():
            each.ended_by_experiment = True

    def _waits_for(self, event: Event, victim: PeerProcess) -> bool:
        """Poll the victim until it is in the phase `during`, and stop it there; False: not within `CLOSELY_S`."""
        until_ns = time.monotonic_ns() + CLOSELY_S * 1e9
        while event.during:
            if self._is_at(event, victim) and self._stop_in_phase(event, victim):
                return True
            if time.monotonic_ns() > until_ns:
                return False
            self._never.wait(CLOSE_POLL_S)
        return True

    def _is_at(self, event: Event, victim: PeerProcess) -> bool:
        """Whether the victim's records say that it is in `during`; for a donor, whether any peer receives a state."""
        is_of_donor = event.who == "donor" and event.during == STATE
        watched = [each.peer for each in (self._swarm.living() if is_of_donor else [victim]) if each.peer is not None]
        for peer in watched:
            peer.read_records()
        return any(peer.phase == event.during for peer in watched)

    def _stop_in_phase(self, event: Event, victim: PeerProcess) -> bool:
        """Stop the victim; False: it has left the phase meanwhile, and continues, so it is not hit in another one."""
        if self._stop(victim) and self._is_at(event, victim):
            return True
        self._swarm.signal(victim, signal.SIGCONT)
        return False

    def _stop(self, victim: PeerProcess) -> bool:
        """Stop the victim, and wait until it runs no code; False: it still runs, so its records may be incomplete.

        In a lab the victim keeps running, since threads on other hosts are not visible here.
        """
        assert victim.peer is not None
        if victim.peer.pidfd < 0:
            return True
        until_ns = time.monotonic_ns() + CLOSELY_S * 1e9
        if not self._swarm.signal(victim, signal.SIGSTOP):
            return False
        while not (is_still := stands_still(victim.peer.tail.identity.pid)) and time.monotonic_ns() < until_ns:
            self._never.wait(CLOSE_POLL_S)
        return is_still

    def _hit(self, event: Event, happened: EventOutcome, victim: PeerProcess) -> bool:
        assert victim.peer is not None
        number = {"kill": signal.SIGKILL, "leave": signal.SIGTERM, "pause": signal.SIGSTOP}[event.do]
        time_ns = time.monotonic_ns()
        if not self._swarm.signal(victim, number):
            return False
        happened.time_ns, happened.victims, happened.peers = time_ns, [victim.peer.peer_id], [victim.index]
        victim.ended_by_experiment = event.do != "pause"
        if event.during and event.do == "leave":  # the victim is stopped
            self._swarm.signal(victim, signal.SIGCONT)
        return True

    def _choose(self, event: Event) -> PeerProcess | None:
        """The target; None: there is none now, or no other peer could continue."""
        able = [each for each in self._swarm.seated() if not each.ended_by_experiment]
        if event.during == STATE and event.who == "newest":
            there = [each for each in self._swarm.living() if not each.stopped]
            takers = [each for each in there if each.peer is not None and not each.peer.first_ns]
            return max(takers, key=lambda each: each.index, default=None) if able else None
        if event.do != "pause" and len(able) < 2:
            return None
        if isinstance(event.who, int):
            return next((each for each in able if each.index == event.who), None)
        if event.who == "newest":
            return max(able, key=lambda each: each.index, default=None)
        if event.who == "donor":
            return self._donor(able)
        members = [each for each in self._swarm.members() if each in able]
        if event.who == "random":
            return members[int((event.draw or 0.0) * len(members))] if members else None
        rank = int(event.who.split()[1])
        return members[rank] if rank < len(members) else None

    def _donor(self, able: list[PeerProcess]) -> PeerProcess | None:
        """The peer that was asked last to send its state, since the last join."""
        since_ns = max((each.time_ns for each in self.happened if each.do == "join"), default=0)
        feeding = [each for each in able if each.peer is not None and each.peer.fed_ns > since_ns]
        return max(feeding, key=lambda each: each.peer.fed_ns if each.peer else 0, default=None)

    def _whom(self, happened: EventOutcome) -> str:
        return f" (peer {', '.join(map(str, happened.peers))})" if happened.peers else ""

    def _end_expired(self, now_ns: int) -> None:
        """End pauses, cuts and changes whose time is over; after a restart killed all peers, start the new ones."""
        self._to_end = [pair for pair in self._to_end if not pair[1].until_ns]
        for event, happened in self._to_end:
            if not happened.time_ns:
                continue
            if happened.for_s and now_ns >= happened.time_ns + happened.for_s * 1e9:
                happened.said = self._reasons(now_ns)
                happened.until_ns = time.monotonic_ns()
                self._end(event, happened)
                self._swarm.poll(now_ns)
                self._newest[happened.number] = self._swarm.newest_step()
            elif happened.do == "restart_all" and not self._swarm.living():
                happened.until_ns = time.monotonic_ns()
                new = self._swarm.start(len(happened.peers), happened.until_ns)
                happened.peers = [each.index for each in new]

    def _end(self, event: Event, happened: EventOutcome) -> None:
        """End a pause, cut or change."""
        if event.do == "pause":
            self._swarm.signal(self._swarm.started[happened.peers[0]], signal.SIGCONT)
        else:
            self._undo[happened.number]()

    def _reasons(self, now_ns: int) -> list[str]:
        """The reasons given by peers that have committed no step for `STANDS_S`."""
        said = []
        for each in self._swarm.seated():
            assert each.peer is not None
            snapshot = each.peer.tail.snapshot()
            if snapshot is not None and each.peer.commit_ns < now_ns - STANDS_S * 1e9:
                words = "; ".join(filter(None, (snapshot.reason, snapshot.waiting.text)))
                said.append(f"peer {each.index}: {words}")
        return said

    def _is_over(self, happened: EventOutcome) -> bool:
        """Whether all peers continue after the event."""
        if not happened.time_ns:
            return False
        if (happened.for_s or happened.do == "restart_all") and not happened.until_ns:
            return False
        if happened.do in ("heal", "link") or (happened.do == "cut" and not happened.victims):
            since_ns = max(happened.time_ns, happened.until_ns)
            return all(each.peer is not None and each.peer.commit_ns > since_ns for each in self._swarm.seated())
        started = [self._swarm.started[index] for index in happened.peers]
        peers = [each.peer for each in started if each.peer is not None]
        if happened.do in ("kill", "leave", "kill_host") or (happened.do == "cut" and not happened.for_s):
            return self._goes_on_without(happened)
        if started and all(each.code is not None for each in started):
            return True  # they have ended since, so no commit of theirs is to come
        is_there = len(peers) == len(started) and all(peer.first_ns for peer in peers)
        if happened.do == "join":
            return is_there
        return is_there and all(self._is_back(peer, happened) for peer in peers)

    def _is_back(self, peer: TrackedPeer, happened: EventOutcome) -> bool:
        """Whether `peer` commits steps again; if it was removed, in a view that seats it again."""
        others = (each.peer for each in self._swarm.living() if each.peer is not None)
        was_out = any(other.out.get(peer.peer_id, 0) > happened.time_ns for other in others)
        since_ns = max(happened.until_ns, peer.seated_ns)
        is_new = peer.step > self._newest.get(happened.number, -1)  # older commits of the others may reach it late
        return is_new and peer.commit_ns > since_ns and (not was_out or peer.seated_ns > happened.time_ns)

    def _goes_on_without(self, happened: EventOutcome) -> bool:
        """Whether all peers that knew the victims have committed a step since they have a view without them.

        Victims without a seat do not count; if none had one, the others need a commit since the event.
        """
        victims = [self._swarm.started[index].peer for index in happened.peers]
        gone = [peer.peer_id for peer in victims if peer is not None and peer.step >= 0]
        peers = [each.peer for each in self._swarm.seated() if each.peer is not None and each.peer.peer_id not in gone]
        if not gone:
            return all(peer.commit_ns > happened.time_ns for peer in peers)
        left = [peer for peer in peers if peer.first_ns < happened.time_ns]  # later joiners never knew them
        return bool(peers) and all(peer.commit_ns > peer.out.get(each, 1 << 63) for peer in left for each in gone)

    # The end.

    def _is_restarting(self) -> bool:
        """Whether all peers were killed, and the new ones are not started yet."""
        return any(each.do == "restart_all" and each.time_ns and not each.until_ns for _, each in self._to_end)

    def _look_at_end(self, now_ns: int, began_ns: int) -> None:
        if self._ends_ns:
            if now_ns > self._ends_ns + LEAVE_S * 1e9:
                self._swarm.kill_all()
            return
        is_until = self._run.until_step is not None and self._swarm.newest_step() >= self._run.until_step
        if self._run.until_s is not None and self.first_step_ns:
            is_until = is_until or now_ns >= self.first_step_ns + self._run.until_s * 1e9
        self._until_ns = self._until_ns or (now_ns if is_until else 0)
        if self._until_ns and self._last_step < 0 and self._is_quiet():
            self._last_step = self._swarm.newest_step() + MORE_STEPS
        is_settled = 0 <= self._last_step <= self._swarm.newest_step()
        is_until = bool(self._until_ns) and (is_settled or now_ns > self._last_ns() + SETTLE_S * 1e9)
        is_late = now_ns > began_ns + self._run.limit_s * 1e9
        if is_until or is_late:
            self._ends_ns, self.ended_by = now_ns, "until" if is_until else "limit"
            limit = f"limit_s = {self._run.limit_s:g} is over: " if is_late and not is_until else ""
            self._say(f"step {max(self._swarm.newest_step(), 0)}: {limit}all are asked to leave")
            self._swarm.ask_to_leave()

    def _last_ns(self) -> int:
        """The time of the last action, or of the end if that is later."""
        return max([self._until_ns, *(max(each.time_ns, each.until_ns) for each in self.happened)])

    def _is_quiet(self) -> bool:
        """Whether all performed events are over, and those that follow or wait for a phase are performed."""
        follows = (
            each.after and before.time_ns for each, before in zip(self._plan.events[1:], self.happened, strict=False)
        )
        waits = [bool(each) and not own.time_ns for each, own in zip(follows, self.happened[1:], strict=True)]
        waits += [_seeks(event, own) for event, own in zip(self._plan.events, self.happened, strict=True)]
        return not any(waits) and all(self._is_over(each) for each in self.happened if each.time_ns)

    def _set_why_not(self) -> None:
        """Set `why_not` of each event that has not happened."""
        end = {"script": "the script ended", "until": "the run was ended", "limit": "limit_s was over"}
        end["interrupt"] = "the run was interrupted"
        for event, happened in zip(self._plan.events, self.happened, strict=True):
            if not happened.time_ns:
                step = self._swarm.newest_step()
                why = f"{end[self.ended_by]} {f'at step {step}, before that' if step >= 0 else 'before its first step'}"
                if happened.trigger_ns:
                    whom = in_words(event).removeprefix(event.do).strip()
                    why = f"there was no {whom} to {event.do}, with another peer left to continue"
                happened.why_not = why


def _seeks(event: Event, happened: EventOutcome) -> bool:
    """Whether the event is due, and waits for its target to be in the phase `during`."""
    return bool(event.during and happened.trigger_ns and not happened.time_ns)
