"""The stage of a scenario: a run in which the scenario controls messages, cuts, deaths and their times."""

from collections.abc import Callable
from itertools import permutations

from gossip import Envelope, Member, View
from gossip.messages import Body
from p2p.net.parcels import ShareRequest
from tests.simulation import Failure, Simulation

from .catchup import Fed, Snapshot
from .liveness import judge
from .network import Cut, Network, Process
from .peer import Peer
from .plan import Plan, Scripted
from .report import describe
from .shares import Piece, Query
from .token_runner import Part

LINK_CHECK_S = 0.1
STALLED_S = 15.0
Action = Callable[..., None]
Frame = Body | Part | Snapshot | Fed | Piece | Query | ShareRequest


Scenario = Callable[[], None]


class Scenarios(dict[str, Scenario]):
    """Scenarios by the name of the property at stake."""

    def named(self, name: str) -> Callable[[Scenario], Scenario]:
        def add(play: Scenario) -> Scenario:
            self[name] = play
            return play

        return add


class ControlledNetwork(Network):
    """The network of a scenario: held messages stay on the table until they are released; `kept`: copies of some."""

    holds: Callable[[Member, Member, Frame], bool] = staticmethod(lambda source, target, frame: False)
    keeps: Callable[[Member, Member, Frame], bool] = staticmethod(lambda source, target, frame: False)
    kept: list[tuple[Process, Process, Action, object]]
    on_table: list[tuple[Process, Process, Action, object]]

    def send(self, source: Process, target: Process, action: Action, message: object) -> None:
        if self._is_free(source, target, action, message):
            super().send(source, target, action, message)

    def send_data(self, source: Process, target: Process, action: Action, frame: object) -> None:
        if self._is_free(source, target, action, frame):
            super().send_data(source, target, action, frame)

    def _is_free(self, source: Process, target: Process, action: Action, message: object) -> bool:
        frame = message.body if isinstance(message, Envelope) else message
        assert isinstance(frame, Frame)
        item = source, target, action, message
        if self.keeps(source.member, target.member, frame):
            self.kept.append(item)
        if not self.holds(source.member, target.member, frame):
            return True
        self.on_table.append(item)
        return False

    def release(self, but: Callable[[Member, Member, Frame], bool] = lambda source, target, frame: False) -> None:
        """Send the held messages; from now on hold only messages for which `but` is true."""
        self.holds = but
        held, self.on_table = self.on_table, []
        for source, target, action, message in held:
            if isinstance(message, Envelope):
                self.send(source, target, action, message)
            else:
                self.send_data(source, target, action, message)


class ScriptedSimulation(Simulation):
    """One scenario, on a quiet LAN unless its plan says otherwise. Every invariant is checked throughout.

    Raises:
        Failure: an invariant breaks, or an awaited event does not happen (L1).
    """

    def __init__(self, **plan: object) -> None:
        seed = plan.pop("seed", 0)
        assert isinstance(seed, int)
        script = (Scripted(at=1e6, fault="pause", peer_id="nobody"),)  # so that removals are permitted
        super().__init__(seed, Plan(calm_s=1e6, end_s=1e6, script=script, **{"follows": 0.0, **plan}))  # type: ignore[arg-type]
        self.table = ControlledNetwork(self.clock, self.rng, self.plan.weather, self.invariants.seen)
        self.table.kept, self.table.on_table = [], []
        self.network = self.table
        self.flaps = False
        self._begin()

    # Time

    def until(self, what: Callable[[], object], within_s: float = 30.0) -> None:
        """Run until `what` is true."""
        end_s = self.clock.now + within_s
        while not what():
            event = self.clock.advance(end_s)
            if event is None:
                raise Failure("L1", describe(self, TimeoutError(f"what was waited for did not happen in {within_s} s")))
            self._carry_out(event)

    def wait(self, duration_s: float) -> None:
        end_s = self.clock.now + duration_s
        while event := self.clock.advance(end_s):
            self._carry_out(event)

    def _carry_out(self, event: tuple[object, ...]) -> None:
        _, _, who, what, action, args = event
        self.recent.append((self.clock.now, who and getattr(who, "member", None), str(what), args))
        self.act(action, *args)  # type: ignore[arg-type, misc]

    def act(self, action: Action, *args: object) -> None:
        """Carry out an action now; an error in it fails the scenario."""
        try:
            action(*args)
        except Exception as error:
            raise Failure(getattr(error, "invariant", type(error).__name__), describe(self, error)) from error

    def until_trained(self, num_steps: int, *names: str) -> None:
        """Run until the named peers, or all, are active in one view, and have committed `num_steps` more steps."""
        first = tuple(f"p{index + 1}" for index in range(self.plan.num_peers))
        chosen = names or (tuple(self._alive) if self.clock.now else first)
        alive = {name: self.named(name) for name in chosen}
        goal = {name: num_steps + (-1 if peer is None else peer.done) for name, peer in alive.items()}
        self.until(lambda: all(self._is_at(name, step, list(goal)) for name, step in goal.items()))

    def _is_at(self, name: str, step: int, others: list[str]) -> bool:
        peer = self.named(name)
        if peer is None or not peer.active or peer.done < step or peer.view is None:
            return False
        members = [self.named(other) for other in others]
        return all(other is not None and other.view == peer.view for other in members)

    def end_well(self) -> None:
        """End all faults, and check that all living peers take part in the end."""
        self.table.release()
        self._calm()
        self.wait(20.0)
        self.act(judge, self)

    # Peers and faults

    def peer(self, name: str) -> Peer:
        found = self.named(name)
        assert found is not None, f"{name} is not alive"
        return found

    def view_of(self, name: str) -> View:
        view = self.peer(name).view
        assert view is not None, f"{name} has no view"
        return view

    def done_by(self, *names: str) -> int:
        """The last step that all named peers have committed; -1 until they are in one view."""
        peers = [self.named(name) for name in names]
        views = {peer.view for peer in peers if peer is not None and peer.active}
        return min(peer.done for peer in peers if peer is not None) if len(views) == 1 else -1

    def kill(self, *names: str) -> None:
        for peer in [self.peer(name) for name in names]:
            self.end(peer, "is killed")

    def cut_off(self, name: str) -> Cut:
        """Cut `name` off from all others; messages are lost."""
        return self.cut(self.links_of(name))

    def cut(self, pairs: set[tuple[str, str]]) -> Cut:
        cut = Cut(pairs, holds_control=False, holds_data=False)
        self.network.add(cut)
        return cut

    def flap(self, pairs: set[tuple[str, str]], down_s: float, up_s: float) -> None:
        """Hold all messages on these links for `down_s`, then release them for `up_s`, repeatedly while `flaps`."""
        self.flaps = True
        cut = Cut(pairs, holds_control=True, holds_data=True)
        self.network.add(cut)
        self.clock.after(down_s, None, "flows", self.network.remove, cut)
        self.clock.after(down_s + up_s, None, "flaps", self._flap_again, pairs, down_s, up_s)

    def _flap_again(self, pairs: set[tuple[str, str]], down_s: float, up_s: float) -> None:
        if self.flaps and not self.is_calm:
            self.flap(pairs, down_s, up_s)

    def links_of(self, name: str) -> set[tuple[str, str]]:
        """Links of `name` in both directions, to the peers that are alive now."""
        others = [peer.member.peer_id for peer in self.alive()]
        return {pair for pair in permutations([*others, name], 2) if name in pair}

    def shut(self, source: str, target: str) -> None:
        """Let no connection from `source` to `target` open until the calm; those in the other direction work."""
        self.cut({(source, target)})
        self._look_at_shut(source, target)

    def swallow(self, source: str, target: str) -> None:
        """Lose all data from `source` to `target` until the calm, over each connection, and nothing else."""
        self.network.swallowed.add((source, target))
        self._look_at_swallowed(source, target, -1, 0.0)

    def _look_at_swallowed(self, source: str, target: str, step: int, since: float) -> None:
        """Report swallowed data as the host of `source` does: here, once a step has stalled for a few attempts."""
        one, other = self.named(source), self.named(target)
        if one is not None and other is not None and (source, target) in self.network.swallowed:
            if one.done != step or one.view is None or len(one.view.members) == 1:
                step, since = one.done, one.now()
            elif one.now() - since >= STALLED_S:
                one.core.undelivered(one.now(), other.member)
        self.clock.after(LINK_CHECK_S, None, "links", self._look_at_swallowed, source, target, step, since)

    def answer(self, name: str) -> None:
        """Report the links of `name` as answered at both ends until the calm, whatever they carry."""
        one = self.peer(name)
        for other in [peer for peer in self.alive() if peer is not one]:
            one.core.link_answered(one.now(), other.member)
            other.core.link_answered(other.now(), one.member)
        if not self.is_calm:
            self.clock.after(LINK_CHECK_S, None, "links", self.answer, name)

    def _look_at_shut(self, source: str, target: str) -> None:
        """Report shut links, as hosts do a few times a second."""
        one, other = self.named(source), self.named(target)
        if one is not None and other is not None and other.member in one.watched and one.member in other.watched:
            unopened = {} if self.is_calm else {other.member: "no connection opens"}
            one.perform(one.core.unopened(one.now(), unopened))
            other.core.link_answered(other.now(), one.member)
        self.clock.after(LINK_CHECK_S, None, "links", self._look_at_shut, source, target)

    def excluded(self, member: Member, *names: str) -> bool:
        """Whether the named peers are active in views without `member`."""
        return all(self.peer(n).active and self.view_of(n).since(member) is None for n in names)
