"""Random sums on devices, drawn by a seed: peers of this process, whose devices read each other's memory.

Open steps, runners and memories are the production ones; views are installed, and steps withdrawn, in the middle.
"""

import mmap
import os
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from collectives import BFLOAT16, Array, Reduction, as_bits, reducer, scale
from collectives.program import Program, Publish, Reduce, Source, Wait
from p2p.device import Mark
from p2p.errors import DeviceLost
from p2p.memory.adding import Adding, DeviceSum
from p2p.memory.arena import REGIONS_OFFSET, Region, RemoteArena
from p2p.memory.extents import Extents
from p2p.memory.host_memory import HostMemory, least_bytes
from p2p.memory.operands import OwnOperands
from p2p.memory.shared_runner import RunState, SharedRunner
from p2p.step.open_step import OpenStep
from p2p.step.operation import Operation
from p2p.step.runner import Runner
from tests.gossip.members import view_of
from tests.p2p.memory.machine import SAME, SMALL_PIECES, Host, ranks_of
from tests.p2p.staging.standin import StandIn, Unordered
from tests.p2p.step.group import MEMBERS, SEGMENT_BYTES, Group, all_reduce, counts, enter, weighted

NUM_PEERS = 3
EXTENT_BYTES = 4 * mmap.PAGESIZE
SIZE = least_bytes(SMALL_PIECES) + 24 * EXTENT_BYTES
DTYPES: list[np.dtype[Any]] = [np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
ALGORITHMS = ["direct", "direct", "ring", "tree", "one-shot", None]
MOST_TURNS = 100_000


class DeviceGroup(Group):
    """Members of one host, each with a device; sometimes the last one has none."""

    def __init__(self, make: Callable[[int], Any] = StandIn, num_devices: int = NUM_PEERS) -> None:
        super().__init__(NUM_PEERS)
        self.devices = [make(index) for index in range(NUM_PEERS)]
        self.peer_ids = [secrets.token_hex(8) for _ in MEMBERS[:NUM_PEERS]]
        self.memories = [
            HostMemory(peer_id, SIZE, SMALL_PIECES, EXTENT_BYTES, device_adds=index < num_devices)
            for index, peer_id in enumerate(self.peer_ids)
        ]
        for device, memory in zip(self.devices, self.memories, strict=True):
            assert memory._arena is not None
            everything = memory._arena.array(Region(REGIONS_OFFSET, SIZE - REGIONS_OFFSET), np.uint8)
            memory.pin(device, [everything], is_aside=False)
        for me in range(NUM_PEERS):
            for other in range(NUM_PEERS):
                self.map(me, other)

    def map(self, me: int, other: int) -> None:
        """As `HostMemory.map`, by the short names of these members."""
        if me != other:
            self.memories[me]._mappings[MEMBERS[other]] = RemoteArena.open(os.getpid(), self.peer_ids[other])

    def install(self, *members: int) -> None:
        for me in members:
            self.memories[me].install(view_of(self.view.number + 1, *(MEMBERS[each] for each in members)))
        super().install(*members)

    def register(self) -> None:
        """Register all memory that the devices may read."""
        for me in self.members:
            adding = self.memories[me]._adding
            assert adding is not None
            if adding.adder is not None:
                for mapping in self.memories[me]._installed.values():
                    adding.window(mapping).array(Region(REGIONS_OFFSET, SIZE - REGIONS_OFFSET))
                adding._aside.end()
                known = {*self.memories[me]._mappings.values(), *self.memories[me]._installed.values()}
                assert adding._windows.keys() <= known, "memory of who is gone is registered"

    def runner(self, me: int) -> Runner:
        return self.memories[me].runner(self.view, MEMBERS[me])

    def turn(self) -> RunState:
        """Advance a random member, and work in progress on a random device."""
        device = self.devices[self.rng.randrange(NUM_PEERS)]
        if isinstance(device, StandIn) and self.rng.random() < 0.3 and any(device._queues.values()):
            device.progress()
        return self.advance(self.rng.choice(self.members))

    def advance(self, me: int) -> RunState:
        """Advance a member; checks that no work is in progress after the end of a run: lent memory may be written."""
        state, run, device = self.all[me].advance(), self.all[me].open_step.run, self.devices[me]
        is_over = run is not None and isinstance(run.runner, SharedRunner) and run.runner.is_broken
        if is_over and isinstance(device, StandIn) and device._queues["add"]:
            raise Unordered(f"nothing more runs at {me}, whose device still adds up")
        return state

    def deliver(self, num_turns: int | None = None) -> None:
        """Run `num_turns` turns, or until all have finished the step."""
        for _ in range(MOST_TURNS if num_turns is None else num_turns):
            self.turn()
            if num_turns is None and all(self.all[me].finish is not None for me in self.members):
                return
        assert num_turns is not None, "they wait in vain"

    def renew(self) -> None:
        """Let removed members return, with the others' committed steps."""
        done = max(each.open_step.done for each in self.all)
        for each in self.all:
            if each.open_step.done < done:
                each.open_step.stop()
                each.open_step, each.attempt, each.asked = OpenStep(each.member, segment_bytes=SEGMENT_BYTES), 0, []
                each.open_step.loaded(done, None)

    def close(self) -> None:
        for me, memory in enumerate(self.memories):
            self.all[me].open_step.stop()
            memory.close()
        for device in self.devices:
            if device.pinned:
                raise Unordered(f"{len(device.pinned)} extents are pinned, and nobody has them any more")


class Script:
    """Calls of one peer, which reuse its memory."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._kept: dict[tuple[int, int, np.dtype[Any]], Array] = {}
        self.operations: list[Operation] = []

    def memory(self, place: int, size: int, dtype: np.dtype[Any], *, is_heap: bool) -> Array:
        key = place, size, dtype
        if is_heap:
            return np.empty(size, dtype)
        if key not in self._kept:
            self._kept[key] = self._memory.empty(size, dtype)
        return self._kept[key]

    def scribble(self, drawn: random.Random) -> None:
        """Overwrite all memory, which belongs to the script now."""
        for operation in self.operations:
            for array in (operation.input, operation.result):
                array.view(np.uint8).fill(drawn.randrange(256))
        self.operations = []


class Case:
    """One operation of all members."""

    def __init__(self, drawn: random.Random, members: Sequence[int], samples: Sequence[int] | None) -> None:
        rng = np.random.default_rng(drawn.randrange(1 << 32))
        self.dtype: np.dtype[Any] = drawn.choice(DTYPES)
        self.samples = samples
        self.algorithm = "direct" if samples else drawn.choice(ALGORITHMS)
        self.op = drawn.choice(["sum", "mean"])
        self.size = drawn.choice([0, 1, 40, 1000, 4099, 9001])
        self.is_heap = drawn.choice([(False, False), (False, False), (True, False), (False, True)])
        self.values = {me: as_type(rng.integers(0, 60, self.size), self.dtype) for me in members}

    def operation(self, script: Script, me: int, place: int) -> Operation:
        input, result = (
            script.memory(2 * place + k, self.size, self.dtype, is_heap=heap) for k, heap in enumerate(self.is_heap)
        )
        input[...] = self.values[me]
        made = weighted(input, self.algorithm) if self.samples else all_reduce(input, self.algorithm, self.op)
        made.result = result
        return made

    def expected(self, members: Sequence[int]) -> bytes:
        """The expected bytes, summed in rank order; exact in any order, if it is not weighted."""
        values, op = [self.values[me] for me in members], self.op
        if self.samples:
            found, op = [self.samples[me] for me in members], "mean"
            if len(set(found)) > 1:
                op = "sum"
                values = [scaled(value, number / sum(found)) for value, number in zip(values, found, strict=True)]
        out = np.empty_like(as_bits(values[0]))
        reducer(Reduction(op, len(members), has_one_nan=True), self.dtype)([*map(as_bits, values)], out)
        return out.tobytes()


def as_type(values: Array, dtype: np.dtype[Any]) -> Array:
    if dtype != BFLOAT16:
        return values.astype(dtype)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)


def scaled(values: Array, factor: float) -> Array:
    out = np.empty_like(values)
    scale(values, factor, out)
    return out


@contextmanager
def group_of(make: Callable[[int], Any]) -> Iterator[DeviceGroup]:
    group = DeviceGroup(make)
    try:
        yield group
    except BaseException:
        with suppress(AssertionError):  # caused by an earlier error
            group.close()
        raise
    group.close()


def play_steps(group: DeviceGroup, drawn: random.Random) -> None:
    """Run some steps of the group."""
    group.rng = drawn
    scripts = [Script(memory) for memory in group.memories]
    for _ in range(3):
        group.renew()
        enter(group, *sorted(drawn.sample(range(NUM_PEERS), drawn.choice([2, 3, 3]))))
        group.register()
        for _ in range(2):
            step = Step(group, scripts, drawn)
            step.run()
            group.commit()
            step.check()
            for me in group.members:
                scripts[me].scribble(drawn)
    check_devices(group)


def leave_in_the_middle(group: DeviceGroup, drawn: random.Random) -> None:
    """Scripts end during sums: each peer's training thread unregisters its memory."""
    group.rng = drawn
    group.renew()
    enter(group, *range(NUM_PEERS))
    group.register()
    step = Step(group, [Script(memory) for memory in group.memories], drawn)
    for me in group.members:
        step.call(me, is_whole=False)
    group.deliver(drawn.randrange(40))
    for memory in group.memories:
        memory.unpin()
    check_devices(group)


def lose_in_the_middle(group: DeviceGroup, drawn: random.Random) -> None:
    """A device fails during sums: none of its results is published, and the others redo the step."""
    group.rng = drawn
    enter(group, *range(NUM_PEERS))
    group.register()
    step = Step(group, [Script(memory) for memory in group.memories], drawn)
    for me in group.members:
        step.call(me)
    one = step.one
    group.deliver(drawn.randrange(60))
    group.devices[one].lose()
    for _ in range(MOST_TURNS):
        me = drawn.choice(group.members)
        try:
            group.all[me].advance()
        except DeviceLost:
            assert me == one, f"the device of {one} has failed, and {me} says so"
            group.all[one].open_step.stop()
            step.leave()
            break
        if all(group.all[each].finish is not None for each in group.members):
            break  # without that device
    group.deliver()
    group.commit()
    step.check()


class Sometimes(DeviceSum):
    """A sum whose memory is not always registered in time."""

    def __init__(self, drawn: random.Random, *given: Any) -> None:
        super().__init__(*given)
        self._drawn = drawn

    def begin(self, sources: Sequence[tuple[int, Array]], into: Array, *, completes: bool) -> Mark | None:
        return super().begin(sources, into, completes=completes) if self._drawn.random() < 0.5 else None


def add_in_turns(device: Any, drawn: random.Random) -> None:
    """One rank repeatedly sums into the same chunk: on its device, or on the host."""
    host, reduction = Host(2), Reduction("sum", 2)
    (rank, other), dtype = ranks_of(host, 2), np.dtype(np.float32)
    length = rank.arena.size - REGIONS_OFFSET
    extents = Extents(rank.arena, length)
    extents.pin(device, [0])
    adding = Adding(rank.arena, extents, length)
    adding.use(device)
    own, result, number = Source(0), Source(0, is_result=True), drawn.randrange(1, 6)
    first = Reduce(0, (own, own), completes=False)
    more = [Reduce(0, (result, own), completes=index == number - 1) for index in range(number)]
    input, lent = (rank.lend(np.ones(100, np.float32)) for _ in range(2))
    rank.exchange.begin(
        Program((1.0,), (Publish(), Wait((1,), 1), first, *more, Publish()), 2),
        OwnOperands(SAME, input, dtype, lent),
        reducer(reduction, dtype),
        on_device=Sometimes(drawn, adding, host.memories_of(0, 1)[0], reduction, dtype),
    )
    other.begin(Program((1.0,), (Publish(),), 2), np.ones(100, np.float32))
    other.exchange.advance()
    while not rank.exchange.advance():
        pass
    found = rank.arena.array(lent, dtype)
    assert (found == 2 + number).all() and not rank.exchange.is_under_way, (found, number)
    adding.end()
    extents.unpin()
    host.close()


def check_devices(group: DeviceGroup) -> None:
    for device in group.devices:
        if isinstance(device, StandIn):
            device.drain()
            if device.refused:
                raise device.refused.pop()


class Step:
    """A step of all members, in which one may withdraw or leave."""

    def __init__(self, group: DeviceGroup, scripts: Sequence[Script], drawn: random.Random) -> None:
        self.group, self.scripts, self.drawn = group, scripts, drawn
        self.samples = drawn.choice([None, None, [3] * NUM_PEERS, [2, 3, 7]])
        self.cases = [Case(drawn, range(NUM_PEERS), self.samples) for _ in range(drawn.randrange(1, 4))]
        self.how = drawn.choice(["commits", "withdraws", "withdraws", "leaves", "is forgotten"])
        self.one = drawn.choice(group.members)
        if len(group.members) == 2 and self.how != "withdraws":
            self.how = "commits"

    def run(self) -> None:
        """Run the step until all members have finished it."""
        group = self.group
        for me in group.members:
            self.call(me, is_whole=self.how != "withdraws" or me != self.one)
        group.deliver(self.drawn.randrange(80))
        if self.how == "withdraws":
            self.withdraw()
        elif self.how != "commits":
            self.leave()
        group.deliver()

    def call(self, me: int, *, is_whole: bool = True) -> None:
        script = self.scripts[me]
        script.operations = [case.operation(script, me, place) for place, case in enumerate(self.cases)]
        before = [counts(self.samples[me], first=10 * me)] if self.samples else []
        self.group.all[me].submit(*before, *script.operations)
        if is_whole:
            self.group.all[me].close()

    def withdraw(self) -> None:
        """One member withdraws, and its memory belongs to its script; it calls the same again in another view."""
        self.group.all[self.one].withdraw()
        self.scripts[self.one].scribble(self.drawn)
        self.go_on_without()
        enter(self.group, *self.group.members)
        self.call(self.one)

    def leave(self) -> None:
        """One member is removed, and its memory belongs to its script; the others redo the step."""
        group, one = self.group, self.one
        others = [me for me in group.members if me != one]
        group.memories[one].install(None)
        self.scripts[one].scribble(self.drawn)
        self.go_on_without()
        pairs = [(me, one) for me in others] + [(one, me) for me in others] if self.how == "is forgotten" else []
        for me, other in pairs:
            group.memories[me].forget(MEMBERS[other])
        enter(group, *others)
        for me, other in pairs:
            group.map(me, other)
        group.register()

    def go_on_without(self) -> None:
        for _ in range(self.drawn.randrange(20)):
            self.group.advance(self.drawn.choice([me for me in self.group.members if me != self.one]))

    def check(self) -> None:
        members = self.group.members
        for me in members:
            for case, operation in zip(self.cases, self.scripts[me].operations, strict=True):
                assert operation.result.tobytes() == case.expected(members), (case.algorithm, case.dtype, case.op)
