"""A world of open steps, the machines that commit them (gossip.commit), and scripts with all permitted actions.

Views are drawn, and so are the times at which they reach each peer; no message is lost, all else happens in any order.
Either one peer observes at first, and is fed the others' commits; or some results are used before the commit. The
simulation has the whole protocol; this has only the open step and the barrier, so that a walk takes milliseconds.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

import numpy as np

from gossip import Member, Phase, View
from gossip import effects as fx
from gossip.commit import StepMachine
from gossip.messages import Body
from gossip.progress import Abort, Beat, Finish, Progress, Ready
from p2p.errors import OperationMismatch, ShoalError
from p2p.net.frames import Segment
from p2p.net.parcels import StepRecord
from p2p.step import effects as sx
from p2p.step.notices import Admitted, Commit, Notice, Uncommitted, Withdrawn
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.receipts import counts_of
from p2p.step.runner import MessageRunner
from p2p.step.transitions import Event, Stage
from tests.gossip.cores import after, first_view, genesis
from tests.p2p.step.group import MEMBERS, SEGMENT_BYTES, Array, all_reduce, counts, weighted

Effect = fx.Effect | sx.StepEffect

NUM_FOUNDERS = 3


class Watched(OpenStep):
    """An open step that records its transitions."""

    def __init__(self, me: Member, seen: set[tuple[Stage, Event]]) -> None:
        super().__init__(me, segment_bytes=SEGMENT_BYTES)
        self._seen = seen

    def _move(self, event: Event) -> None:
        self._seen.add((self.stage, event))
        super()._move(event)


class Script:
    """A training thread: it receives notices only when it waits for them.

    Attributes:
        inbox: notices that it has not received yet.
        done: the last step that it knows to be committed.
    """

    def __init__(self, host: "Host", rng: Random) -> None:
        self.inbox: deque[Notice] = deque()
        self.done = -1
        self._host = host
        self._rng = rng
        self._attempt = 0
        self._calls: list[Operation] | None = None
        self._awaited: type[Notice] | None = Commit
        self._skips = False

    def can_act(self) -> bool:
        return self._awaited is None or bool(self.inbox)

    def act(self, *, is_calm: bool) -> None:
        """Make one call, or receive one notice. If `is_calm`, calls are the common ones, and none is withdrawn."""
        host, step = self._host, self.done + 1
        is_odd = not is_calm and self._rng.random() < 0.1
        if self._awaited is not None:
            self._hear(self.inbox.popleft())
        elif self._calls is None:
            self._calls = self._program(is_wrong=is_odd and host.has_contributed())
            if self._skips:
                self._skips = False
                host.carry_out(host.open_step.void(step, "the script goes on"))
        elif is_odd:
            host.carry_out(host.open_step.withdraw(step, self._attempt))
            self._end(Withdrawn)
        elif self._calls:
            operation = self._calls.pop(0)
            host.carry_out(host.open_step.submit(step, self._attempt, operation))
            self._awaited = Uncommitted if operation.is_uncommitted else None
        else:
            host.carry_out(host.open_step.close(self._attempt, b"state"))
            self._end(Commit)

    def can_take_back(self) -> bool:
        """Whether it observes, and waits for the commit of its calls."""
        return self._host.view is None and self._host.open_step.stage is Stage.CLOSED and not self.inbox

    def take_back(self) -> None:
        """Withdraw, since a state has arrived, which is not loaded in the middle of a round."""
        self._host.carry_out(self._host.open_step.withdraw(self.done + 1, self._attempt - 1))
        self._awaited = Withdrawn

    def _end(self, awaited: type[Notice] | None) -> None:
        self._calls, self._awaited, self._attempt = None, awaited, self._attempt + 1

    def _hear(self, notice: Notice) -> None:
        if isinstance(notice, ShoalError):
            if self._awaited is Uncommitted:
                self._end(None)
            self._awaited = None
        elif isinstance(notice, Admitted):
            return
        else:
            assert isinstance(notice, self._awaited or ()), f"{notice} for who waits for {self._awaited}"
            self._awaited = None
        if isinstance(notice, Commit):
            assert notice.receipt.step == self.done + 1
            self.done = notice.receipt.step
        elif isinstance(notice, Withdrawn):
            self._skips = self._host.view is not None and self._rng.random() < 0.5

    def _program(self, *, is_wrong: bool) -> list[Operation]:
        """The common calls of the next step. Without an observer, every other step has some early results."""
        value = float(self._rng.randrange(100))
        calls = [counts(1 + int(value) % 3), weighted(np.full(3, value)), all_reduce(np.full(9, value))]
        if self.done % 2 == 0 and not self._host.is_observed:
            calls = [all_reduce(np.full(size, value), early=True) for size in (5, 2)]
        if is_wrong:
            calls[self._rng.randrange(1, len(calls)) :] = [all_reduce(np.full(4, value))] * self._rng.randrange(2)
        return calls


class Host:
    """One peer, which carries out the effects of its machines in order.

    Attributes:
        fed: committed steps that it observes.
        commits: of all steps.
        is_observed: whether there is an observer.
    """

    def __init__(self, world: "World", me: Member) -> None:
        self.me = me
        self.machine = StepMachine(me)
        self.machine.loaded(-1, genesis())
        self.open_step = Watched(me, world.seen)
        self.open_step.loaded(-1, None)
        self.script = Script(self, world.rng)
        self.view: View | None = None
        self.is_alive, self.is_observed = True, world.is_observed
        self.fed: deque[tuple[StepRecord, list[bytes]]] = deque()
        self.commits: list[Commit] = []
        self._used: list[tuple[Operation, Array]] = []
        self._world = world
        self._effects: deque[Effect] = deque()

    def has_contributed(self) -> bool:
        return bool(self.commits) and self.commits[-1].view.since(self.me) is not None

    def carry_out(self, effects: Iterable[Effect]) -> None:
        is_under_way = bool(self._effects)
        self._effects.extend(effects)
        while self._effects and not is_under_way:
            self._do(self._effects[0])
            self._effects.popleft()

    def _do(self, effect: Effect) -> None:
        machine, step = self.machine, self.open_step
        match effect:
            case sx.SendSegment(number, sequence, fingerprint, (rank, transfer, segment, payload)):
                assert self.view is not None and number == self.view.number
                source = self.view.members.index(self.me)
                sent = Segment(sequence, source, transfer, segment, fingerprint, payload.tobytes())
                self._world.send(self, self.view.members[rank], sent)
            case fx.Send(target, body):
                self._world.send(self, target, body)
            case sx.Tell(notice):
                self._tell(notice)
            case sx.Finish(number, digest, state_digest, num_operations, view_number):
                assert self.view is not None and machine.phase is Phase.ACTIVE and view_number == self.view.number
                machine.submitted = machine.complete = num_operations
                self.carry_out(machine.finished(number, digest, state_digest))
            case sx.DeliverEarly(index):
                machine.mark_in_use()
                self.carry_out(step.deliver_early(index))
            case sx.GiveUp(number, cause, reason, is_told):
                if machine.seated:
                    machine.give_up(number, cause, reason, is_told=is_told)
                self._world.restarts = True
            case sx.Disagree(abort):
                self.carry_out(machine.send_abort(abort))
            case sx.Leave(outvoted):
                self._world.part(self, outvoted)
            case fx.Installed(view):
                self.view = view
                self.carry_out(step.installed(view))
            case fx.Activated(view, done, _, founded_in):
                self.carry_out(step.activated(view, done, MessageRunner(SEGMENT_BYTES), founded_in))
                if done == -1 and len(view.members) == NUM_FOUNDERS:
                    self.carry_out(machine.finished(0, b"", b""))
            case fx.Committed(finish, view):
                commit = step.committed(finish, view)
                self._world.feed(machine, finish, commit)
                self._tell(commit)
            case fx.Aborted(given_up):
                self.carry_out(step.aborted(given_up))
            case fx.Explain():
                return
            case fx.AbortReceived(source, abort):
                self.carry_out(step.receive_abort(source, abort))
            case _:
                raise AssertionError(f"{effect} at {self.me}")

    def _tell(self, notice: Notice) -> None:
        self.script.inbox.append(notice)
        if isinstance(notice, Uncommitted):
            self._used.append((notice.operation, notice.outcome.result.copy()))
            return
        if isinstance(notice, Commit):
            self.commits.append(notice)
            for operation, result in self._used:
                assert operation in notice.operations and (operation.result == result).all(), "used, and not committed"
        if not isinstance(notice, Admitted):
            self._used = []

    def beat(self) -> None:
        """Report its progress again."""
        if (progress := self.open_step.progress()) is not None:
            _, self.machine.submitted, self.machine.complete = progress
        self.carry_out(self.machine.beat())

    def receive(self, source: Member, body: Segment | Body) -> None:
        """Receive a message of the installed view."""
        match body:
            case Segment():
                self.carry_out(self.open_step.receive(body))
            case Abort():
                self.carry_out(self.open_step.receive_abort(source, body))
            case Ready() | Progress() | Beat():
                self.carry_out(self.machine.receive(source, body))
            case _:
                raise AssertionError(f"{body} from {source}")

    def take_over(self) -> None:
        """Take over the next fed step, if all its operations are called, and the peer has no seat yet."""
        record, parts = self.fed[0]
        if self.machine.seated or record.finish.step <= self.machine.done:
            self.fed.popleft()
            return
        try:
            commit = self.open_step.adopt(record, parts)
        except OperationMismatch:  # more members made the same wrong call than the right one
            self._world.end(self)
            return
        if commit is not None:
            self.fed.popleft()
            self._tell(commit)
            self.carry_out(self.machine.loaded(record.finish.step, record.digest))


class World:
    """Three members, and in every other world an observer.

    Attributes:
        seen: the transitions that were made.
        restarts: whether a peer has asked for another view.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.seen: set[tuple[Stage, Event]] = set()
        self.restarts = False
        self.is_observed = self.rng.random() < 0.5
        self._in_flight: list[tuple[Host, View, Member, Segment | Body]] = []
        self.hosts = [Host(self, member) for member in MEMBERS[: NUM_FOUNDERS + 1]]
        founder, *_, self._observer = self.hosts
        self._observer.is_alive = self.is_observed
        founder.carry_out(founder.machine.found(first_view()))
        self._view = after(first_view(), *MEMBERS[:NUM_FOUNDERS])

    @property
    def living(self) -> list[Host]:
        return [host for host in self.hosts if host.is_alive]

    def send(self, sender: Host, target: Member, body: Segment | Body) -> None:
        assert sender.view is not None
        self._in_flight.append((self.hosts[MEMBERS.index(target)], sender.view, sender.me, body))

    def feed(self, machine: StepMachine, finish: Finish, commit: Commit) -> None:
        """Feed the observer a step when the first member commits it."""
        observer, receipt = self._observer, commit.receipt
        if any(record.finish.step == finish.step for record, _ in observer.fed) or observer.machine.done >= finish.step:
            return
        told = finish, commit.view, counts_of(receipt), receipt.algorithms, commit.fingerprints
        results = [operation.result.tobytes() for operation in commit.operations]
        observer.fed.append((StepRecord(machine.previous, machine.digest, *told), results))

    def end(self, host: Host) -> None:
        """Let a peer die or leave: the others continue without it."""
        host.is_alive, self.restarts = False, True

    def part(self, host: Host, outvoted: int) -> None:
        """Let a peer leave, since it differs in this step; all members of its view are told."""
        for other in self.living:
            if other.view == host.view:
                other.carry_out(other.machine.part_from(host.me, outvoted))
        self.end(host)

    def turn(self, *, is_calm: bool) -> None:
        """One possible event; if there is none, the beat of a random peer."""
        chosen = self._choices(is_calm=is_calm)
        self.rng.choice(chosen or [host.beat for host in self.living])()

    def _choices(self, *, is_calm: bool) -> list[Callable[[], object]]:
        found: list[Callable[[], object]] = []
        for host in self.living:
            found += [partial(host.script.act, is_calm=is_calm)] if host.script.can_act() else []
            found += [host.take_over] if host.fed else []
            found += [host.script.take_back] if host.script.can_take_back() and not is_calm else []
            found += [host.beat] if self.rng.random() < 0.02 else []
            if host.view != self._view and self._view.since(host.me) is not None:
                found.append(lambda host=host: host.carry_out(host.machine.install(self._view)))  # type: ignore[misc]
        members = [host for host in self.living if self._view.since(host.me) is not None]
        is_settled = all(host.view == self._view for host in members)
        is_founded = all(host.machine.done >= 0 for host in members)
        if is_settled and (self.restarts or (is_founded and not is_calm and self.rng.random() < 0.05)):
            found.append(self._decide)
        if is_founded and not is_calm and len(members) > 2 and self.rng.random() < 0.005:
            found.append(partial(self.end, self.rng.choice(members)))
        self._in_flight = [entry for entry in self._in_flight if not self._is_lost(*entry[:2])]
        found += [partial(self._deliver, entry) for entry in self._in_flight if entry[0].view == entry[1]]
        return found

    @staticmethod
    def _is_lost(target: Host, view: View) -> bool:
        return not target.is_alive or (target.view is not None and target.view.number > view.number)

    def _deliver(self, entry: tuple[Host, View, Member, Segment | Body]) -> None:
        self._in_flight.remove(entry)
        target, _, source, body = entry
        target.receive(source, body)

    def _decide(self) -> None:
        """Decide another view: of the remaining members, and possibly the observer."""
        members = [host.me for host in self.living if self._view.since(host.me) is not None]
        if self._observer.is_alive and self._observer.me not in members and self.rng.random() < 0.5:
            members.append(self._observer.me)
        self._view, self.restarts = after(self._view, *members), False
