"""A peer's request for its first seat: answers of the registry and the seeds, their order, and dead swarms."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gossip import (
    NO_VIEW,
    Claim,
    Contact,
    Core,
    Envelope,
    Member,
    Phase,
    Policy,
    Run,
    RunDescription,
    Seat,
    Stamp,
    State,
    View,
)
from gossip import effects as fx
from gossip import messages as m
from gossip.founding import NO_HOSTS
from p2p.config import LoopConfig
from p2p.errors import RegistryError, RemovedFromView, RunEnded
from p2p.host.entry import Entry, Role
from p2p.loop.neighbours import claim_of
from p2p.loop.seat_request import RUN_IS_OVER, AllMembersDead, SeatRequest
from p2p.loop.seeds import Seeds
from p2p.net.addresses import Endpoint
from p2p.net.frames import Frames
from p2p.net.tcp import TcpConfig
from p2p.net.transport import Transport
from tests.p2p.host.entries import enter_and_die, registry

MODEL, NO_MODEL = Run(RunDescription(True), {}), Run(RunDescription(), {})
ONE, OTHER = "a" * 16, "b" * 16
ADDRESS, ELSEWHERE = "tcp://127.0.0.1:7000", "tcp://127.0.0.1:7100"
LOOK_S = 2.0


class Applicant:
    """A registered peer with all that its request for a seat needs, and a simulated clock."""

    def __init__(
        self,
        home: Path,
        stack: ExitStack,
        peer_id: str,
        *,
        is_back: bool = False,
        founds: bool = True,
        seeds: tuple[str, ...] = (),
        wait_s: float = 0.0,
        restarts: bool = False,
        several_hosts: bool = False,
        since_ns: int = 0,
        elsewhere: Mapping[str, str] = NO_HOSTS,
    ) -> None:
        self.now = 100.0
        self.registry = registry(home)
        remote = (ADDRESS, ADDRESS) if seeds or several_hosts else ("", "")
        tcp = TcpConfig(swarm="pond", bind=Endpoint("127.0.0.1", 7000)) if several_hosts else None
        census = self.registry.enter(peer_id, 1, remote=remote, founds=founds and not seeds)
        stack.callback(self.registry.leave)
        given: Any = {"may_found": founds, "restarts": restarts, "tcp": tcp, "since_ns": since_ns}
        given["other_hosts"] = elsewhere
        config = LoopConfig(member_check_s=LOOK_S, policy=Policy.MAJORITY, **given)
        self.core_config = config.core
        self.core = Core(claim_of(census.own), rng=random.Random(1), config=config.core, now=self.now)
        for entry in census.others:
            self.core.meet(self.now, claim_of(entry))
        transport = Transport(census.own.control_address, census.own.data_address)
        stack.callback(transport.close)
        self.seeds = Seeds(
            seeds, transport.seed_calls, Frames(self.core.me, transport), founds=True, elsewhere=elsewhere
        )
        self.request = SeatRequest(
            self.registry,
            config,
            census.own,
            SeatRequest(self.registry, config, census.own) if is_back else None,
            not_before=self.now + wait_s,
        )

    def ask(self, run: Run = MODEL, founding_size: int = 3) -> list[fx.Effect]:
        return self.request.ask(self.now, self.core, self.seeds, run, founding_size)

    def look(self) -> list[fx.Effect]:
        return self.request.look_again(self.now, self.core, self.seeds)

    def wait(self) -> None:
        """Wait longer than a seed waits for others before it founds."""
        end = self.now + 2 * self.core_config.founding_s
        while self.now < end:
            self.now += 0.1
            self.core.tick(self.now)

    def lives_on(self, until: float) -> None:
        """Let time pass without messages."""
        while self.now < until:
            self.now += 0.25
            self.core.tick(self.now)

    def hears_of_deaths(self, view: View) -> None:
        """Deliver a launcher's notices that all members of `view` are dead."""
        for member in view.members:
            died = m.Died(m.AcceptorRecord(view, m.Ballot(0, -1), None))
            self.core.receive(self.now, Envelope(member, NO_VIEW, died))

    def has_founded(self) -> bool:
        return self.core.view is not None and self.core.view.members == (self.core.me,)


Enter = Callable[..., Applicant]


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(prefix="shoal-") as folder:  # tmp_path can be too long for a socket
        yield Path(folder) / "home"


@pytest.fixture
def enter(home: Path) -> Iterator[Enter]:
    with ExitStack() as stack:
        yield lambda peer_id, **given: Applicant(home, stack, peer_id, **given)


def joins(effects: list[fx.Effect]) -> list[tuple[Member, m.Join]]:
    """Targets and contents of all JOIN messages."""
    return [(each.target, each.body) for each in effects if isinstance(each, fx.Send) and isinstance(each.body, m.Join)]


# Asking


def test_a_founder_founds_with_what_it_was_given(enter: Enter) -> None:
    one = enter(ONE)
    assert one.ask(MODEL, 3) and one.has_founded()
    view = one.core.view
    assert view is not None and (view.founding_size, view.policy) == (3, Policy.MAJORITY)


def test_two_founders_begin_two_lineages(enter: Enter, tmp_path: Path) -> None:
    with ExitStack() as stack, TemporaryDirectory(prefix="shoal-") as folder:
        peers = enter(ONE), Applicant(Path(folder) / "home", stack, ONE)
        for peer in peers:
            peer.ask()
        one, other = (peer.core.stamp.lineage for peer in peers)
        assert len(one) == 16 and one != other


@pytest.mark.parametrize(("run", "follows"), [(MODEL, True), (NO_MODEL, False)])
def test_a_joiner_asks_who_is_there_and_follows_if_it_trains_a_model(enter: Enter, run: Run, follows: bool) -> None:
    one, other = enter(ONE), enter(OTHER)
    ((asked, join),) = joins(other.ask(run))
    assert (asked, join.run, join.follows) == (one.core.me, run.description, follows)
    assert other.core.view is None and other.core.phase is Phase.JOINING


def test_only_the_first_request_counts(enter: Enter) -> None:
    one, other = enter(ONE), enter(OTHER)
    for peer in (one, other):
        assert peer.ask(MODEL, 3) and peer.ask(NO_MODEL, 5) == []
    assert one.core.view is not None and one.core.view.founding_size == 3


# Seeds


def test_the_first_seed_founds_if_the_registry_leaves_it_to_the_seeds(enter: Enter) -> None:
    one = enter(ONE, seeds=(ADDRESS,))
    assert one.request.role is Role.JOINER
    one.ask(MODEL, 3)
    one.wait()
    assert one.has_founded()


def test_another_than_the_first_seed_waits(enter: Enter) -> None:
    one = enter(ONE, seeds=(ELSEWHERE, ADDRESS))
    one.ask()
    one.wait()
    assert one.core.view is None


def test_a_peer_that_is_back_founds_nothing_even_as_the_first_seed(enter: Enter) -> None:
    one = enter(ONE, seeds=(ADDRESS,), is_back=True)
    one.ask()
    one.wait()
    assert one.core.view is None


def test_a_peer_that_is_back_and_finds_nobody_is_told_that_the_run_is_over(enter: Enter) -> None:
    one = enter(ONE, is_back=True)
    with pytest.raises(RegistryError, match="start all peers again") as raised:
        one.ask()
    assert str(raised.value) == RUN_IS_OVER and one.core.view is None


def test_who_waits_before_it_returns_asks_once_then_and_looks_from_then_on(enter: Enter) -> None:
    one, other = enter(ONE), enter(OTHER, is_back=True, wait_s=10.0)
    assert other.look() == [] and other.ask() == []
    other.now += 9.9
    assert other.look() == [] and joins(other.core.tick(other.now)) == []
    other.now += 0.1
    ((asked, _),) = joins(other.look())
    assert asked == one.core.me
    assert joins(other.look()) == []


@pytest.mark.parametrize("seeds", [(ADDRESS,), (ADDRESS, ELSEWHERE), ()])
def test_who_replaces_a_member_of_a_run_on_several_hosts_does_not_found_on_silence(
    enter: Enter, seeds: tuple[str, ...]
) -> None:
    """In the case without seeds the registry has chosen the peer as founder."""
    one = enter(ONE, seeds=seeds, several_hosts=True, elsewhere={"another": ELSEWHERE})
    one.ask()
    one.wait()
    assert not one.has_founded() and f"a run with others at {ELSEWHERE}, and no peer there answers" in one.core.reason
    other = Claim(Member(OTHER, 1), State.ALIVE, Contact("", "", 1, 1, "another", ELSEWHERE, ELSEWHERE))
    one.core.meet(one.now, other)
    one.core.receive(one.now, Envelope(other.member, NO_VIEW, m.LineageAnswer(b"")))
    one.lives_on(one.now + 1.0)
    assert one.has_founded()


# Looking again


def dead(home: Path, role: Role) -> Entry:
    """The entry of a peer with `ONE`'s name that was killed after others had entered."""
    return enter_and_die(home, ONE, 1, role=role)


def waiting(enter: Enter, home: Path) -> Applicant:
    """A joiner that has asked for a seat before its founder died."""
    founder = enter(ONE)
    other = enter(OTHER)
    assert other.request.role is Role.JOINER
    other.ask()
    founder.registry.leave()
    dead(home, Role.FOUNDER)
    return other


def test_who_has_not_asked_does_not_look(enter: Enter) -> None:
    founder, other = enter(ONE), enter(OTHER)
    founder.registry.leave()
    assert other.look() == [] and other.request.role is Role.JOINER
    other.ask()
    assert other.look() and other.has_founded()


def test_a_joiner_founds_when_nobody_is_left_to_join(enter: Enter, home: Path) -> None:
    other = waiting(enter, home)
    assert other.look() and other.has_founded() and other.request.role is Role.FOUNDER
    assert other.look() == []


def test_a_joiner_waits_as_long_as_the_founder_lives(enter: Enter) -> None:
    _, other = enter(ONE), enter(OTHER)
    other.ask()
    assert other.look() == [] and other.request.role is Role.JOINER and other.core.view is None


def test_a_look_at_the_registry_is_rare_unless_somebody_is_gone(enter: Enter) -> None:
    founder, other = enter(ONE), enter(OTHER)
    other.ask()
    other.look()
    founder.registry.leave()
    other.now += LOOK_S / 2
    assert other.look() == [] and other.request.role is Role.JOINER
    other.request.look_soon()
    assert other.look() and other.has_founded()


def test_a_look_is_due_again_after_a_while(enter: Enter) -> None:
    founder, other = enter(ONE), enter(OTHER)
    other.ask()
    other.look()
    founder.registry.leave()
    other.now += LOOK_S
    assert other.look() and other.has_founded()


def test_a_founder_does_not_look(enter: Enter) -> None:
    one = enter(ONE)
    one.ask()
    one.registry.leave()  # a look would find that its entry is gone
    assert one.look() == []


def test_who_has_a_view_does_not_look(enter: Enter) -> None:
    founder, other = enter(ONE), enter(OTHER)
    other.ask()
    founder.registry.leave()
    other.core.found(other.now, bytes(16), 1, MODEL, Policy.MAJORITY)
    assert other.look() == [] and other.request.role is Role.JOINER


def test_a_joiner_whose_members_have_died_is_told_that_their_state_is_lost(enter: Enter, home: Path) -> None:
    other = waiting(enter, home)
    dead(home, Role.MEMBER)
    with pytest.raises(RegistryError, match=f"all members of swarm 'pond' are gone.*{ONE}"):
        other.look()
    assert other.core.view is None and other.request.role is Role.JOINER


def test_where_all_members_died_who_holds_the_newest_state_goes_on_and_the_others_come_back(
    enter: Enter, home: Path
) -> None:
    founder = enter(ONE)
    one, other, new = (enter(peer_id, restarts=True) for peer_id in (OTHER, "c" * 16, "d" * 16))
    for each in (one, other, new):
        each.ask()
    one.core.loaded(one.now, 7, bytes(16))
    other.core.loaded(other.now, 9, bytes(16))
    founder.registry.leave()
    dead(home, Role.MEMBER)
    assert one.look() == other.look() == new.look() == [], "all say first what they hold"
    for each in (one, other, new):
        each.now += LOOK_S
    assert one.look() == []
    with pytest.raises(AllMembersDead, match="holds the state after step 9"):
        other.look()
    one.now += LOOK_S
    with pytest.raises(RemovedFromView, match=r"all members have died, and another peer.*continues the run"):
        one.look()
    assert new.look() == [] and new.request.role is Role.JOINER, "it has no state, and asks who goes on"
    assert {each.core.view for each in (one, other, new)} == {None}, "nobody goes on in the lineage of the dead"


# Members on several hosts

LAST = View(b"l" * 16, 3, 1, (Seat(Member(ONE, 1), 1, Contact("", "", 77, 1, "elsewhere")),), b"", Policy.LIVE)


def observer(enter: Enter, **given: object) -> Applicant:
    """An observer that holds the state after step 7; the only member, on another host, is dead."""
    other = enter(OTHER, several_hosts=True, seeds=(ELSEWHERE,), **given)
    other.ask()
    other.core.state_arrived(7, bytes(16), LAST.lineage)
    other.core.loaded(other.now, 7, bytes(16))
    return other


def test_where_all_members_on_several_hosts_are_dead_who_decides_goes_on(enter: Enter) -> None:
    other = observer(enter, restarts=True)
    assert other.look() == [], "nothing is known of them"
    other.hears_of_deaths(LAST)
    assert other.look() == []
    other.lives_on(other.now + 1.0)
    with pytest.raises(AllMembersDead, match="holds the state after step 7"):
        other.look()
    assert other.registry._entered().role is other.request.role is Role.FOUNDER and other.look() == []


@pytest.mark.parametrize(
    "given", [{"restarts": False}, {"restarts": True, "founds": False}], ids=["stop", "joins only"]
)
def test_who_is_not_to_go_on_ends_at_once(enter: Enter, given: dict[str, bool]) -> None:
    other = observer(enter, **given)
    other.hears_of_deaths(LAST)
    with pytest.raises(RegistryError, match=rf"all members of swarm 'pond' are gone.*{ONE} \(pid 77\)"):
        other.look()


def test_where_who_decides_is_not_heard_the_others_wait_and_then_name_it(enter: Enter) -> None:
    other = observer(enter, restarts=True)
    contact = Contact("", "", 78, 1, "elsewhere", ADDRESS, ADDRESS)
    other.core.meet(other.now, Claim(Member("c" * 16, 1), State.ALIVE, contact))
    other.hears_of_deaths(LAST)
    other.lives_on(other.now + other.core_config.heir_s - 1.0)
    assert other.look() == []
    other.lives_on(other.now + 2.0)
    with pytest.raises(RegistryError, match=f"nothing is heard from peer {'c' * 16} of host elsewhere.*after step 7"):
        other.look()


def test_with_several_hosts_a_registry_does_not_say_that_all_members_are_dead(enter: Enter, home: Path) -> None:
    founder, other = enter(ONE), enter(OTHER, several_hosts=True, restarts=True)
    other.ask()
    founder.registry.leave()
    other.core.meet(other.now, Claim(Member("c" * 16, 1), State.ALIVE, Contact("", "", 78, 1, "elsewhere", ADDRESS)))
    other.core.receive(other.now, Envelope(Member("c" * 16, 1), LAST.stamp, m.Head(-1, b"", 3, 3)))
    dead(home, Role.MEMBER)
    assert other.look() == []


def test_who_has_only_heard_how_far_the_members_are_founds_nothing(enter: Enter, home: Path) -> None:
    other = waiting(enter, home)
    (asked, _) = joins(other.core.tick(other.now + 1.0))[0]
    other.core.receive(other.now, Envelope(asked, Stamp(bytes(16), 1, b"hash"), m.Head(7, b"seven", 1, 1)))
    with pytest.raises(RegistryError) as raised:
        other.look()
    assert str(raised.value) == RUN_IS_OVER and other.core.view is None


def test_all_who_only_join_end_well_when_the_run_has(enter: Enter, home: Path) -> None:
    member = enter(ONE)
    member.registry.mark_member()
    joiners = [enter(peer_id, founds=False) for peer_id in (OTHER, "c" * 16)]
    for joiner in joiners:
        joiner.ask()
        assert joiner.look() == []
        joiner.now += LOOK_S
    member.registry.leave()
    for joiner in joiners:
        with pytest.raises(RunEnded, match="the run of swarm pond is over, so there is nothing to join"):
            joiner.look()


def test_who_has_observed_a_run_that_ends_well_ends_well(enter: Enter) -> None:
    member, other = enter(ONE), enter(OTHER)
    member.registry.mark_member()
    other.ask()
    other.core.loaded(other.now, 7, bytes(16))
    member.registry.leave()
    with pytest.raises(RunEnded):
        other.look()
    assert other.core.view is None


def test_who_was_removed_as_its_run_came_to_its_end_ends_well(enter: Enter) -> None:
    member = enter(ONE)
    member.registry.mark_member()
    other = enter(OTHER, is_back=True)
    other.ask()
    member.registry.leave()
    with pytest.raises(RunEnded):
        other.look()


def test_of_a_run_that_was_cut_off_nobody_says_that_it_has_ended_well(enter: Enter) -> None:
    member, observer = enter(ONE), enter(OTHER)
    member.registry.mark_member()
    observer.ask()
    observer.core.loaded(observer.now, 7, bytes(16))
    member.registry.ends_well = False  # the script has raised, or was asked to leave
    member.registry.leave()
    with pytest.raises(RegistryError) as raised:
        observer.look()
    assert str(raised.value) == RUN_IS_OVER
    observer.registry.leave()
    late = enter("c" * 16, since_ns=1)
    late.ask()
    assert late.has_founded()


def test_who_takes_the_place_of_another_founds_nothing_if_the_run_has_ended_since(enter: Enter) -> None:
    member = enter(ONE)
    member.registry.mark_member()
    member.registry.leave()
    late = enter(OTHER, since_ns=1)
    with pytest.raises(RunEnded):
        late.ask()
    late.registry.leave()
    for since_ns in (0, time.time_ns() + 10**9):
        other = enter(OTHER, since_ns=since_ns)
        other.ask()
        assert other.has_founded()
        other.registry.leave()


def test_who_only_joins_is_told_of_members_that_have_died_and_waits_where_there_was_no_run(
    enter: Enter, home: Path
) -> None:
    founder, other = enter(ONE), enter(OTHER, founds=False)
    other.ask()
    founder.registry.leave()
    assert other.look() == [] and other.core.view is None
    other.now += LOOK_S
    dead(home, Role.MEMBER)
    with pytest.raises(RegistryError, match=f"all members of swarm 'pond' are gone.*{ONE}"):
        other.look()


def test_who_was_given_a_state_founds_nothing_and_is_told_so_once(enter: Enter, home: Path) -> None:
    other = waiting(enter, home)
    other.core.loaded(other.now, 7, bytes(16))
    with pytest.raises(RegistryError) as raised:
        other.look()
    assert str(raised.value) == RUN_IS_OVER and other.core.view is None
    other.now += LOOK_S
    assert other.look() == []
