"""Order between a stand-in's streams: each use of a tensor must come after the uses that it depends on.

Each stream has a vector clock: its own time, and the times of others that it comes after, by marks that were held.
Operations of torch are checked by storage: a read comes after the last write, a write after all earlier uses.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.p2p.staging.standin_adder import Unordered

MAIN: Final = "main"

Clock = dict[str, int]
"""Vector clock: times by stream."""


class Order:
    """The order of one device's streams."""

    def __init__(self) -> None:
        self._clocks: dict[str, Clock] = {}
        self._host: Clock = {}
        """What the host has waited for, and so all later work comes after."""
        self._wrote: dict[int, tuple[str, int]] = {}
        self._read: dict[int, Clock] = {}

    def clock_of(self, stream: str) -> Clock:
        return dict(self._clocks.get(stream, {}))

    def waited(self, clock: Clock) -> None:
        """Record a wait of the host."""
        _merge(self._host, clock)

    def follow(self, stream: str, clock: Clock) -> None:
        _merge(self._clocks.setdefault(stream, {}), clock)

    def copied(self, stream: str, after: Sequence[Clock], tensor: Tensor, *, is_written: bool) -> Clock:
        """Record a copy that uses a tensor, on a stream of the device."""
        for clock in after:
            self.follow(stream, clock)
        self.use(stream, [] if is_written else [tensor], [tensor] if is_written else [])
        return self.clock_of(stream)

    def use(self, stream: str, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        """Record and check an operation that reads and writes these tensors."""
        mine = self._clocks.setdefault(stream, {})
        mine[stream] = now = mine.get(stream, 0) + 1
        for tensor in (*read, *written):
            writer, time = self._wrote.get(_place(tensor), (stream, 0))
            self._check(stream, writer, time, "was written by")
        for tensor in written:
            for reader, time in self._read.pop(_place(tensor), {}).items():
                self._check(stream, reader, time, "is read by")
            self._wrote[_place(tensor)] = stream, now
        for tensor in read:
            self._read.setdefault(_place(tensor), {})[stream] = now

    def forget(self, tensor: Tensor) -> None:
        """Forget a tensor's uses: its memory is new."""
        self._wrote.pop(_place(tensor), None)
        self._read.pop(_place(tensor), None)

    def _check(self, stream: str, other: str, time: int, what: str) -> None:
        if max(self._clocks[stream].get(other, 0), self._host.get(other, 0)) < time:
            raise Unordered(f"{stream} uses what {what} {other}, and does not come after that")


class Watching(TorchDispatchMode):
    """Checks all operations of torch in this block, on the current stream of a stand-in."""

    def __init__(self, device: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __enter__(self) -> Any:
        self._device.order = Order()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *why: Any) -> None:
        super().__exit__(*why)  # type: ignore[no-untyped-call]
        self._device.order = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, order = kwargs or {}, self._device.order
        found = func(*args, **named)
        read: list[Tensor] = []
        written: list[Tensor] = []
        arguments = func._schema.arguments
        values = [*zip(args, arguments, strict=False), *((named[a.name], a) for a in arguments if a.name in named)]
        for value, argument in values:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            (written if is_written else read).extend(_tensors(value))
        known = {_place(each) for each in (*read, *written)}
        made = [each for each in _tensors(found) if _place(each) not in known]
        for each in made:
            order.forget(each)
        if made or written:  # a view reads nothing
            order.use(self._device.current_stream(), read, [*written, *made])
        return found


def _merge(mine: Clock, clock: Clock) -> None:
    for each, time in clock.items():
        mine[each] = max(time, mine.get(each, 0))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
