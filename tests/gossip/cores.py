"""Cores in initial states for tests, and selections from their effects."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from gossip import Core, CoreConfig, Envelope, Member, Phase, Policy, Run, RunDescription, Seat, Stamp, Trait, View
from gossip.commit import StepMachine
from gossip.effects import Committed, Effect, Feed, Send
from gossip.levels import chain
from gossip.messages import Accept, Accepted, Body, Decide, Prepare, Promise
from gossip.progress import Finish, Progress, Ready
from gossip.view import founding_view

from .members import LINEAGE, A, B, claim

SAME = RunDescription(True, (Trait("model", b"hash"),))
OTHER_MODEL = RunDescription(True, (Trait("model", b"other"),))
RUN = Run(SAME, {"model": b"one tensor"})
FOUNDING_SIZE = 9
"""More members than in any test: step 0 is held, so that only the test's own actions happen."""

Kind = TypeVar("Kind")


def seat(member: Member, since: int = 1) -> Seat:
    return Seat(member, since, claim(member).contact)


def first_view(founding_size: int = FOUNDING_SIZE, policy: Policy = Policy.MAJORITY) -> View:
    """View 1, founded by A."""
    return founding_view(seat(A), LINEAGE, founding_size, policy)


def after(view: View, *members: Member) -> View:
    """The view of `members` that follows `view`, which admits the new ones among them."""
    number = view.number + 1
    seats = tuple(seat(member, view.since(member) or number) for member in members)
    return replace(view, number=number, seats=seats, parent=view.hash)


def view_with(*members: Member, founding_size: int = FOUNDING_SIZE, policy: Policy = Policy.MAJORITY) -> View:
    """View 2: A has admitted the others."""
    return after(first_view(founding_size, policy), *members)


def view_of(peer: Core) -> View:
    assert peer.view is not None
    return peer.view


def genesis() -> bytes:
    """Digest of the empty chain of a lineage."""
    machine = StepMachine(A)
    machine.found(first_view())
    return machine.digest


NOTHING = Ready(True, -1, genesis(), None)


def core(me: Member = A, **config: Any) -> Core:
    return Core(claim(me), rng=Random(1), config=CoreConfig(**config), now=0.0)


def founder(founding_size: int = FOUNDING_SIZE, policy: Policy = Policy.MAJORITY, **config: Any) -> Core:
    """A, alone in view 1."""
    peer = core(**config)
    peer.found(0.0, LINEAGE, founding_size, RUN, policy)
    return peer


def say(peer: Core, sender: Member, body: Body, stamp: Stamp | None = None, now: float = 0.0) -> list[Effect]:
    """Deliver a message of `sender`, in the view of `peer` unless `stamp` is another."""
    return peer.receive(now, Envelope(sender, peer.stamp if stamp is None else stamp, body))


def seated(
    *others: Member, founding_size: int = FOUNDING_SIZE, policy: Policy = Policy.MAJORITY, **config: Any
) -> Core:
    """A, seated and active in view 2 with `others`, which it believes alive."""
    peer = founder(founding_size, policy, **config)
    meet(peer, others)
    activate(peer, view_with(A, *others, founding_size=founding_size, policy=policy))
    return peer


def meet(peer: Core, members: Iterable[Member], now: float = 0.0) -> None:
    for member in members:
        peer.meet(now, claim(member))


def activate(peer: Core, view: View, now: float = 0.0) -> None:
    """The seated `peer` installs `view`, and the others say that they have no committed step."""
    others = [member for member in view.members if member != peer.me]
    say(peer, others[0], Decide(view), now=now)
    for member in others:
        say(peer, member, NOTHING, now=now)
    assert (peer.view, peer.phase) == (view, Phase.ACTIVE)


def member_of(view: View, me: Member, **config: Any) -> Core:
    """`me`, active in `view`, which is the second, the others known to be alive."""
    others = [member for member in view.members if member != me]
    if me == A:
        return seated(*others, founding_size=view.founding_size, policy=view.policy, **config)
    peer = core(me, **config)
    meet(peer, others)
    peer.ask_for_seat(0.0, RUN)
    say(peer, others[0], Decide(view))
    for member in others:
        say(peer, member, NOTHING)
    peer.loaded(0.0, -1, genesis())
    assert (peer.view, peer.phase) == (view, Phase.ACTIVE)
    return peer


def joiner(me: Member = B, *, follows: bool = False, **config: Any) -> Core:
    """`me`, which knows A and has asked it for a seat."""
    peer = core(me, **config)
    peer.meet(0.0, claim(A))
    peer.ask_for_seat(0.0, RUN, follows=follows)
    return peer


def only(kind: type[Kind], effects: Iterable[Effect]) -> list[Kind]:
    return [effect for effect in effects if isinstance(effect, kind)]


def feeds_of(effects: Iterable[Effect]) -> list[Feed]:
    """Observers to be fed with committed steps."""
    return [feed for committed in only(Committed, effects) for feed in committed.feeds]


def bodies(kind: type[Kind], effects: Iterable[Effect]) -> list[tuple[Member, Kind]]:
    """Messages of that kind, with their targets."""
    return [(e.target, e.body) for e in effects if isinstance(e, Send) and isinstance(e.body, kind)]


def decide(peer: Core, helper: Member, now: float) -> list[Effect]:
    """Let the agreement of `peer` decide with the help of `helper`, from `now` on. Returns the effects until then."""
    effects: list[Effect] = []
    before = view_of(peer)
    for i in range(20):
        told = peer.tick(now + i * 0.05)
        for _, prepare in bodies(Prepare, told):
            told += say(peer, helper, Promise(prepare.ballot, None), now=now + i * 0.05)
        for _, accept in bodies(Accept, told):
            told += say(peer, helper, Accepted(accept.vote.ballot), now=now + i * 0.05)
        effects += told
        if view_of(peer) != before:
            break
    assert view_of(peer) != before
    return effects


def commit_step_0(peer: Core, *others: Member, now: float = 0.0) -> list[Effect]:
    return commit_steps(peer, 0, *others, now=now)


def commit_steps(peer: Core, last: int, *others: Member, now: float = 0.0) -> list[Effect]:
    """Commit all steps from 0 to `last`."""
    effects, before = [], genesis()
    for step in range(last + 1):
        finish = Finish(step, b"bits", b"", view_of(peer).number)
        effects += peer.finished(now, step, b"bits", b"")
        for member in others:
            effects += say(peer, member, Progress(step - 1, before, finish), now=now)
        before = chain(before, finish)
    return effects


def run(peer: Core, start: float, stop: float, step_s: float = 0.05) -> list[Effect]:
    """Tick `peer` from `start` to `stop` in even steps."""
    ticks = round((stop - start) / step_s)
    return [effect for i in range(1, ticks + 1) for effect in peer.tick(start + i * step_s)]
