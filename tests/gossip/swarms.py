"""Step machines that talk to each other, with arbitrary decisions, steps, losses and give-ups, in any order."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from gossip import Member, Seat, View
from gossip.commit import StepMachine
from gossip.effects import Aborted, Activated, Committed, Diverged, Effect, Removed, Send
from gossip.given_up import Cause, GivenUp
from gossip.messages import Leave, Report, ReportKind
from gossip.progress import Beat, Finish, Progress, Ready

from .machines import FOUNDING, founder
from .members import LINEAGE, A

History = list[tuple[str, int]]


def histories(*events: str) -> st.SearchStrategy[History]:
    """Events of a swarm, each with a choice."""
    return st.lists(st.tuples(st.sampled_from(events), st.integers(0, 999)), min_size=20, max_size=80)


@dataclass
class Swarm:
    """Machines, decided views, and messages in flight, which may arrive in any order or never.

    Attributes:
        given_up: members that have given up a step, with the step and the view.
        told: members whose scripts were told that a step is given up.
        in_use: per member, a step whose results it has handed out, and the members of the view then.
        ready: the first READY of each member in each view.
        commits: commits, with the member, the finish, and the view that the member had installed.
    """

    machines: dict[Member, StepMachine] = field(default_factory=lambda: {A: founder()})
    views: list[View] = field(default_factory=lambda: [FOUNDING])
    under_way: list[tuple[View, Member, Send]] = field(default_factory=list)
    committed: dict[Member, list[Finish]] = field(default_factory=dict)
    activated: dict[tuple[int, Member], tuple[int, bytes]] = field(default_factory=dict)
    given_up: set[tuple[Member, int, int]] = field(default_factory=set)
    told: list[tuple[Member, GivenUp]] = field(default_factory=list)
    in_use: dict[Member, tuple[int, tuple[Member, ...]]] = field(default_factory=dict)
    ready: dict[tuple[int, Member], Ready] = field(default_factory=dict)
    commits: list[tuple[Member, Finish, View]] = field(default_factory=list)
    is_lost: bool = False

    def carry_out(self, source: Member, effects: list[Effect]) -> None:
        machine = self.machines[source]
        for effect in effects:
            assert not isinstance(effect, Diverged), effect
            match effect:
                case Send():
                    assert machine.view is not None
                    self.under_way.append((machine.view, source, effect))
                case Committed(finish, view):
                    assert machine.view is not None
                    self.committed.setdefault(source, []).append(finish)
                    self.commits.append((source, finish, machine.view))
                    step, members = self.in_use.pop(source, (finish.step, view.members))
                    assert (step, members) == (finish.step, view.members), "what was used of it is void, and unsaid"
                case Aborted(given_up):
                    self.told.append((source, given_up))
                    self.in_use.pop(source, None)
                case Activated(view, done):
                    self.activated[view.number, source] = done, machine.digest
                case Removed():
                    self.is_lost = True

    def decide(self, choice: int) -> None:
        """Decide a view that follows the last one, without one of the members, or with a new one, or both."""
        last = self.views[-1]
        gone = choice % 5 if len(last.seats) > 2 else None
        kept = tuple(seat for rank, seat in enumerate(last.seats) if rank != gone)
        number = last.number + 1
        if len(kept) < 3 or (choice % 3 and len(kept) < 4):
            joiner = Member(f"j{number}", 1)
            self.machines[joiner] = StepMachine(joiner)
            kept = (*kept, Seat(joiner, number))
        self.views.append(View(LINEAGE, number, 1, kept, last.hash))

    def install(self, member: Member, view: View) -> None:
        known = self.machines[member].view
        since = view.since(member)
        if since is not None and (known is None or since <= known.number < view.number):
            effects = self.machines[member].install(view)
            said = [e.body for e in effects if isinstance(e, Send) and isinstance(e.body, Ready)]
            self.ready[view.number, member] = said[0]
            self.carry_out(member, effects)

    def deliver(self, index: int) -> None:
        view, source, send = self.under_way.pop(index)
        machine = self.machines[send.target]
        match send.body:
            case Leave(_, given_up) if machine.view is not None and machine.view.since(source) is not None:
                machine.hear(given_up)
            case Report() if machine.view == view:
                machine.hear(send.body.given_up)
            case Ready() | Progress() | Beat() if machine.view == view:
                self.carry_out(send.target, machine.receive(source, send.body))

    def load(self, member: Member) -> None:
        wanted = self.machines[member].wanted_state()
        if wanted is not None and self.machines[wanted[2]].done == wanted[0]:
            self.carry_out(member, self.machines[member].loaded(wanted[0], self.machines[wanted[2]].digest))

    # Hosts

    def is_open(self, member: Member) -> bool:
        """Whether `member` works on a step in its view."""
        machine = self.machines[member]
        if machine.view is None or not machine.seated or machine.finish is not None:
            return False
        return (member, machine.done + 1, machine.view.number) not in self.given_up

    def may_be_complete(self, member: Member) -> bool:
        """Whether all members of its view may have added to the step that `member` works on."""
        view = self.machines[member].view
        return view is not None and all((view.number, each) in self.activated for each in view.members)

    def finish(self, member: Member) -> None:
        machine = self.machines[member]
        if self.is_open(member) and self.may_be_complete(member):
            assert machine.view is not None
            digest = b"%d in %d" % (machine.done + 1, machine.view.number)  # other members, other bits
            self.carry_out(member, machine.finished(machine.done + 1, digest, b"state"))

    def hand_out(self, member: Member) -> None:
        """Hand out results of every second step before its commit."""
        machine = self.machines[member]
        if self.is_open(member) and self.may_be_complete(member) and machine.done % 2 == 0:
            assert machine.view is not None
            self.in_use.setdefault(member, (machine.done + 1, machine.view.members))
            machine.mark_in_use()

    def give_up(self, member: Member, choice: int) -> None:
        machine = self.machines[member]
        if not self.is_open(member):
            return
        assert machine.view is not None
        step = machine.done + 1
        withdrawn = Cause.WITHDRAWN if step % 2 == 0 else Cause.VOIDED  # others may use what is handed out
        cause = (Cause.MISMATCH, Cause.VOIDED, withdrawn)[choice % 3]
        machine.give_up(step, cause, "", is_told=choice % 3 < 2)
        self.given_up.add((member, step, machine.view.number))
        self.in_use.pop(member, None)
        report = Report(ReportKind.ABORTED, member, step, given_up=machine.given_up)
        self.carry_out(member, [Send(other, report) for other in machine.view.members if other != member])

    def leave(self, member: Member) -> None:
        machine = self.machines[member]
        if machine.view is not None:
            leave = Leave(given_up=machine.given_up)
            self.carry_out(member, [Send(other, leave) for other in machine.view.members if other != member])

    # Events

    def is_void(self, finish: Finish, view: View) -> bool:
        """Whether `finish` is void, as a member of `view` knew when it installed that, or has said itself."""
        void = [(step, number) for member, step, number in self.given_up if member in view.members]
        void += [(told.step, told.void_until) for member, told in self.told if member in view.members]
        said = [
            self.ready[view.number, member].given_up for member in view.members if (view.number, member) in self.ready
        ]
        void += [(given_up.step, given_up.void_until) for given_up in said if given_up is not None]
        return any(finish.step == step and finish.view_number <= until for step, until in void)

    def live_through(self, events: History) -> None:
        for _ in range(2):
            self.decide(0)
            self.come_to_rest()
        for event, choice in events:
            members = [*self.machines]
            member = members[choice % len(members)]
            match event:
                case "view" if len(self.views) < 8:
                    self.decide(choice)
                case "install":
                    self.install(member, self.views[choice % len(self.views)])
                case "deliver" if self.under_way:
                    self.deliver(choice % len(self.under_way))
                case "load":
                    self.load(member)
                case "finish":
                    self.finish(member)
                case "hand out":
                    self.hand_out(member)
                case "give up":
                    self.give_up(member, choice)
                case "leave":
                    self.leave(member)
                case "beat":
                    self.carry_out(member, self.machines[member].beat())

    def come_to_rest(self) -> None:
        last = self.views[-1]
        for member in last.members:
            self.install(member, last)
        for _ in range(3):
            for member in last.members:
                self.carry_out(member, self.machines[member].beat())
            while self.under_way:
                self.deliver(0)
            for member in last.members:
                self.load(member)

    def go_on(self) -> None:
        """Continue in one more view of the same members, which all take part."""
        last = self.views[-1]
        self.views.append(View(LINEAGE, last.number + 1, 1, last.seats, last.hash))
        self.come_to_rest()
        for member in last.members:
            self.finish(member)
        self.come_to_rest()
