"""Whatever a script does between its batches, and whichever members join and leave: each sample counts once."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from p2p.data.ranges import each
from p2p.data.sample_tracker import SampleTracker
from p2p.data.sampler import Sampler
from p2p.data.timed import TimedSampler
from p2p.data.track import Track
from p2p.step.receipts import NO_SAMPLES, Counts
from tests.p2p.data.swarm import receipt

NUM_SAMPLES, EPOCHS = 13, 2

SAMPLERS = (
    Sampler(NUM_SAMPLES, 5, epochs=EPOCHS),
    Sampler(NUM_SAMPLES, batch_per_peer=2, epochs=EPOCHS),
    TimedSampler(NUM_SAMPLES, 4, epochs=EPOCHS),
)


class Scripts:
    """The same script at all members, in lockstep, with a loader of each kind.

    Attributes:
        used: counts of each position of each loader.
    """

    def __init__(self, data: st.DataObject, samplers: Sequence[Sampler]) -> None:
        self.used: Counter[tuple[int, int]] = Counter()
        self._data, self._samplers = data, samplers
        self._names = iter("abcdefghijklmnopqrstuvwxyz" * 100)
        self._members: dict[str, tuple[SampleTracker, list[Track]]] = {}
        self._step, self._has = -1, -1
        for _ in range(data.draw(st.integers(1, 3), "founders")):
            self._members[next(self._names)] = self._new()
        self._commit(dict.fromkeys(self._members, NO_SAMPLES), is_training=False, may_die=False)

    def _new(self) -> tuple[SampleTracker, list[Track]]:
        share = SampleTracker()
        return share, [share.make(sampler, str(number)) for number, sampler in enumerate(self._samplers)]

    @property
    def open_loaders(self) -> list[int]:
        share, tracks = next(iter(self._members.values()))
        return [number for number, track in enumerate(tracks) if share.plan(track).batch]

    def take_batch(self, loader: int) -> None:
        """Give all members a batch, of which a round by time may use a part; the previous may be unused (`break`)."""
        for name, (share, tracks) in self._members.items():
            if self._has >= 0:
                share.end_iteration(tracks[self._has])
            self._hand_out(name, loader)
        self._has = loader

    def _hand_out(self, name: str, loader: int) -> None:
        share, tracks = self._members[name]
        track = tracks[loader]
        share.begin_loader_batch(track, share.plan(track).slices.get(name))

    def call(self) -> None:
        """Commit an operation of the script's own."""
        self._commit(dict.fromkeys(self._members, NO_SAMPLES), is_training=False)

    def train(self) -> None:
        """Commit a step on the batch, of which a round by time may have reached only a part."""
        counts = {}
        for name, (share, _) in self._members.items():
            start, number, weight = share.counts
            if number and isinstance(self._samplers[self._has], TimedSampler):
                number = weight = self._data.draw(st.integers(1, number), "used")
            counts[name] = start, number, weight
        self._commit(counts, is_training=True)

    def _commit(self, counts: dict[str, Counts], *, is_training: bool, may_die: bool = True) -> None:
        self._step += 1
        dying = (
            self._data.draw(st.sets(st.sampled_from(sorted(counts)), max_size=len(counts) - 1), "dying")
            if may_die
            else ()
        )
        told = receipt(self._step, [row for row in counts.items() if row[0] not in dying])
        for name in dying:
            del self._members[name]
        made = [share.apply_receipt(told, is_training=is_training) for share, _ in self._members.values()]
        assert all(other == made[0] for other in made)
        if is_training:
            found = (position for part in made[0].contributions for position in each(part.samples))
            self.used.update((self._has, position) for position in found)
            for share, _ in self._members.values():
                share.spend()
            self._has = -1
        if may_die and self._data.draw(st.integers(0, 3), "joins") == 0:
            self._join()

    def _join(self) -> None:
        """Let a joiner load a member's state, and reach the place of the others."""
        (donor, _), name = next(iter(self._members.values())), next(self._names)
        share, _ = self._members[name] = self._new()
        share.load(donor.pack())
        if self._has >= 0:
            self._hand_out(name, self._has)

    def check_counts(self) -> None:
        """Check that all members' counts of used samples are right."""
        assert {share.num_samples for share, _ in self._members.values()} == {self.used.total()}


@given(st.data())
def test_each_sample_counts_once_whatever_happens_between_a_batch_and_its_step(data: st.DataObject) -> None:
    samplers = data.draw(st.lists(st.sampled_from(SAMPLERS), min_size=1, max_size=2), "samplers")
    scripts = Scripts(data, samplers)
    while loaders := scripts.open_loaders:
        for _ in range(data.draw(st.integers(1, 2), "batches")):
            scripts.take_batch(data.draw(st.sampled_from(loaders), "loader"))
            for _ in range(data.draw(st.integers(0, 1), "calls")):
                scripts.call()
        scripts.train()
        scripts.check_counts()
    assert scripts.used == {
        (loader, position): 1 for loader in range(len(samplers)) for position in range(NUM_SAMPLES * EPOCHS)
    }
