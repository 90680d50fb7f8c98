"""The board: the first page of an arena, on which its owner says how far it is, and which every peer reads.

8 lines of 64 bytes, each a cache line of its own, in words of 8 bytes, in the machine's byte order:

    0            nonce (16 bytes): proves that a mapping is of this very arena; magic and version; the doorbell's number
    1            tag: the first 8 bytes of the hash of the installed view; 0 outside any view
    2, 3         finished, by parity of the step: tag of the view in which it was, three digests of 16 bytes, step + 1
    4            progress: view number << 40 | count
    5            sleeping: the progress that the owner waits for, 0: awake; a bit for each rank that it waits for
    6, 7         what is lent, by parity of the operation: fingerprint; offset and length of the input; offset of the
                 result; how much of what follows could be done in one go

Memory order. A word is read and written by one aligned 8-byte load or store: that is what CPython compiles a
`memoryview` of format "Q" to (a memcpy of constant size). x86-64 keeps stores in order, and loads; only a load may
overtake an earlier store. So data before progress, and data before another look at the tag, need nothing there, and
neither does what is written over what others have read: they say so by their progress, later. Where
a store has to be seen before the next load is made (progress, then sleeping; sleeping, then progress) there is a
`fence`. Other processors promise less: `IS_ORDERED` says whether the board may be used.

Only the thread that drives the loop writes, so finishing and installing exclude each other (PROTOCOL.md, R4 and C9): a
member never looks finished to others and not to what its own READY says.
"""

import platform
import struct
import sys
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

LINE_BYTES: Final = 64
BOARD_BYTES: Final = 4096
NONCE_BYTES: Final = 16
DIGESTS_BYTES: Final = 48
FINGERPRINT_BYTES: Final = 16
VERSION: Final = 2

IS_ORDERED: Final = platform.machine() in ("x86_64", "AMD64") and sys.byteorder == "little"
"""Whether this processor is known to keep the order that the board relies on."""

_MAGIC: Final = int.from_bytes(b"SHOAL\0\0", "little") << 8 | VERSION
_MAGIC_WORD: Final = NONCE_BYTES // 8
_BELL_WORD: Final = _MAGIC_WORD + 1
_WORDS: Final = LINE_BYTES // 8
_TAG_WORD: Final = _WORDS
_FINISHED_LINE: Final = 2
_PROGRESS_LINE: Final = 4
_SLEEPING_LINE: Final = 5
_LENT_LINE: Final = 6
_LENT: Final = struct.Struct(f"={FINGERPRINT_BYTES}s4Q")

Cell = memoryview
"""One word of a board, as `cell[0]`: written by the owner, read by all."""


class Reference(NamedTuple):
    """A reference to the memory that a peer lends for one operation; offsets and lengths in bytes of its arena."""

    fingerprint: bytes
    input_offset: int
    input_bytes: int
    result_offset: int = 0
    ahead_bytes: int = 0
    """How much of what follows its owner could do in one go."""


class Finished(NamedTuple):
    """A step whose operations are all complete at the board's owner."""

    step: int
    tag: int
    digests: bytes
    """Of the step's results, of its parameters, and of the step before."""


class Board:
    """The board of one arena; of our own, or, over read-only memory, of another peer.

    Attributes:
        tag: of the installed view.
        progress: how far the owner is.
        sleeping: the progress that the owner sleeps for; 0: it is awake.
        awaited: whom the sleeper waits for: a bit for each rank; 0: it may be anybody.
    """

    def __init__(self, page: memoryview) -> None:
        assert page.nbytes == BOARD_BYTES
        self._page = page
        self._words = page.cast("Q")
        self.tag: Cell = self._cell(_TAG_WORD)
        self.progress: Cell = self._cell(_PROGRESS_LINE * _WORDS)
        self.sleeping: Cell = self._cell(_SLEEPING_LINE * _WORDS)
        self.awaited: Cell = self._cell(_SLEEPING_LINE * _WORDS + 1)

    def _cell(self, word: int) -> Cell:
        return self._words[word : word + 1]

    # The arena that this is the board of.

    def initialize(self, nonce: bytes, doorbell: int) -> None:
        """Make this the board of a new arena, whose owner has the doorbell of this number."""
        assert len(nonce) == NONCE_BYTES
        self._page[:NONCE_BYTES] = nonce
        self._words[_BELL_WORD] = doorbell
        self._words[_MAGIC_WORD] = _MAGIC

    def is_board_of(self, nonce: bytes) -> bool:
        """Whether this is the board of the arena with this nonce, and laid out as we know it."""
        return self._page[:NONCE_BYTES] == nonce and self._words[_MAGIC_WORD] == _MAGIC

    @property
    def doorbell(self) -> int:
        """Number of the owner's doorbell."""
        return self._words[_BELL_WORD]

    # Operations.

    def lend(self, turn: int, lent: Reference) -> None:
        """Say what the operation of this turn (0 or 1) lends. To be published by progress."""
        _LENT.pack_into(self._page, _LENT_OFFSETS[turn], *lent)

    def lent(self, turn: int) -> Reference:
        """The reference written by `lend`. Valid if its progress was read before, and the tag matches afterwards."""
        return Reference(*_LENT.unpack_from(self._page, _LENT_OFFSETS[turn]))

    # Steps and views.

    def finish(self, finished: Finished) -> bool:
        """Say that a step is finished, if its view is still installed; otherwise nothing changes."""
        assert len(finished.digests) == DIGESTS_BYTES
        if self.tag[0] != finished.tag:
            return False
        word = _FINISHED_WORDS[finished.step % 2]
        self._words[word + 7] = 0  # who reads the older step meanwhile sees that it goes
        self._words[word] = finished.tag
        self._page[(word + 1) * 8 : (word + 7) * 8] = finished.digests
        self._words[word + 7] = finished.step + 1
        return True

    def install(self, tag: int) -> None:
        """Enter the view with this tag, or leave all with 0; before anything else is done about it.

        No step of an older view is finished after this.
        """
        self.tag[0] = tag

    def finished(self, step: int, tag: int) -> bytes | None:
        """The digests with which the owner finished `step` in the view of this tag, in which it still is."""
        words, word = self._words, _FINISHED_WORDS[step % 2]
        if words[word + 7] != step + 1 or words[word] != tag:
            return None
        digests = bytes(self._page[(word + 1) * 8 : (word + 7) * 8])
        is_whole = words[word + 7] == step + 1  # else it is being written over
        return digests if is_whole and self.tag[0] == tag else None


_LENT_OFFSETS: Final = [(_LENT_LINE + turn) * LINE_BYTES for turn in (0, 1)]
_FINISHED_WORDS: Final = [(_FINISHED_LINE + parity) * _WORDS for parity in (0, 1)]


def tag_of(view_hash: bytes) -> int:
    """The tag of a view. That a hash begins with 8 zeros, the tag of no view, would be the caller's bad luck."""
    return int.from_bytes(view_hash[:8], "little")


def _make_fence() -> Callable[[], None]:
    lock = threading.Lock()
    acquire, release = lock.acquire, lock.release

    def fence() -> None:
        """Have all stores so far seen before any later load: taking a lock is a locked instruction."""
        acquire()
        release()

    return fence


fence: Final = _make_fence()
