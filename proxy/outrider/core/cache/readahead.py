"""The read-ahead window of one read, and range coalescing: which missing blocks to request next, and how to group them
into GETs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.core.memo import Memo
from outrider.core.model import BlockKey, Extent

# Four 8 MiB blocks at once: one connection to S3 gives 40-90 MB/s, and a loader worker reads faster than that.
FIRST_BLOCKS = 4
# With more than two readers, each gets its first block sooner if fewer blocks are requested beside it. This holds only
# at first: later, a window of two would leave the line idle for a round trip each time that both blocks have come.
_FEW, _FIRST_OF_MANY = 2, 2
# 16 x 8 MiB = 128 MiB ahead of one reader. Beyond that, the number of readers makes the parallelism.
WINDOW_BLOCKS_MAX = 16
# The window grows by so many blocks for each block that was sent.
_GROWTH = 4
# With many readers, the window grows when this part of a block is still to come. A quarter of a block takes about a
# round trip (8 MiB take 0.14 s at 60 MB/s a connection; a round trip takes 30 ms), for which the line would be idle
# once all first blocks have come. At half a block the new requests would share the line with the first blocks.
_BEFORE_ITS_END = 0.25
# How many GETs fetch a wide window. A reader that has the line to itself needs more than one of many readers: with 8 in
# place of 4, at 40 MB/s each, one read of 100 MB shards was 1.2 times as fast (`make bench`, epoch-1-curl and -boto3).
_GETS_OF_FEW, _GETS_OF_MANY = 8, 4
# Near the end of the read fewer blocks are coalesced, down to one. Otherwise the last GETs would be few and long, and
# the line half empty beside them (a cold epoch of 100 MB shards with 4 readers: 0.17 s of 3.3 with two connections, in
# one run of two). The next two blocks are never coalesced: the second would arrive after blocks that are needed later.
_NEAR = 2

# A read of at most this part of a block, amid an object of several, may be the only one there: 64 KiB of 8 MiB.
_GLANCE_SHARE = 128
# So many of them in one block, and it is worth a fill. Blocks of which that is remembered.
_GLANCES_OF_A_BLOCK, _GLANCED_MAX = 16, 4096

# 1/32 of a block, 256 KiB of 8 MiB, arrives within a few round trips. To skip less is not worth a second GET.
_SKIP_SHARE = 32

# The number of readers of late falls by this factor with each read that begins: a lone reader has the line to itself
# again after some fifty.
_READERS_KEPT = 0.98


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Adjacent blocks `[first, first + count)`, to be fetched by one GET."""

    first: int
    count: int


def window_blocks(blocks_sent: float, readers: int = 1) -> int:
    """The size of the read-ahead window of a read that has sent `blocks_sent` blocks. `readers`: the reads under way
    lately, including this one.

    The window grows as the read goes on, since many reads with an open range (`a-`) are abandoned after the first
    bytes. With few readers it grows with each part of a block. With many, it grows only when a block is nearly
    complete: otherwise the block that a reader needs next would share the line with blocks that it needs later (`make
    bench-ahead`, announced: 0.34 s to the first batch in place of 0.27).
    """
    if readers <= _FEW:
        return min(WINDOW_BLOCKS_MAX, FIRST_BLOCKS + int(_GROWTH * blocks_sent))
    return min(WINDOW_BLOCKS_MAX, _FIRST_OF_MANY + _GROWTH * int(blocks_sent + _BEFORE_ITS_END))


def runs_ahead(
    position: int, last: int, blocks_sent: float, wanted: Callable[[int], bool], readers: int = 1
) -> list[BlockRun]:
    """The GETs to start now for a read at block `position` that ends with block `last` (inclusive).

    `wanted(i)`: block i is neither cached nor being fetched. The first GETs take one block each, so that they run in
    parallel. Once the window is wide, adjacent blocks beyond the next two are coalesced in pairs, or in fours with many
    readers: that saves requests where there is enough parallelism, which towards the end of the read there is not. A
    run that the window's edge would cut short waits until the window has moved on.
    """
    window = window_blocks(blocks_sent, readers)
    gets = _GETS_OF_FEW if readers <= _FEW else _GETS_OF_MANY
    runs: list[BlockRun] = []
    index, stop = position, min(last + 1, position + window)
    while index < stop:
        if not wanted(index):
            index += 1
            continue
        wide = max(1, min(window, last + 1 - index) // gets)
        count, join = 1, wide if index >= position + _NEAR else 1
        while count < join and index + count < stop and wanted(index + count):
            count += 1
        cut_short = count < join and index + count == stop <= last and index >= position + join
        if not cut_short:
            runs.append(BlockRun(index, count))
        index += count
    return runs


class Glances:
    """Small reads here and there in large objects, such as of columns in a table. They are not worth the fill of a
    block, which would bring a hundred times their bytes, before one is repeated, or they become many. Those that go on
    where another ended are no better: readers of tables take chunks that touch one by one."""

    def __init__(self) -> None:
        self._at: Memo[BlockKey, tuple[Extent, ...]] = Memo(_GLANCED_MAX)

    @staticmethod
    def may_be(extent: Extent, size: int, block_bytes: int) -> bool:
        """Whether a read of `extent`, of an object of `size` bytes, may be one by its form. One that begins the object
        is most likely followed by the next."""
        return extent.start > 0 and extent.length * _GLANCE_SHARE <= block_bytes < size

    def is_one(self, block: BlockKey, extent: Extent) -> bool:
        """Whether the read of `extent`, in a block that is not cached, is one. It is remembered."""
        before = self._at.get(block) or ()
        if len(before) >= _GLANCES_OF_A_BLOCK or extent in before:
            return False
        self._at.put(block, (*before, extent))
        return True


def fill_start(wanted: int, block_bytes: int) -> int:
    """The offset in the block at which a fill begins whose first reader wants offset `wanted`.

    The bytes before `wanted` would delay the reader. They are fetched last, by a GET of their own.
    """
    return wanted if wanted > block_bytes // _SKIP_SHARE else 0


class ReaderCount:
    """How many reads share the line. The read-ahead window of each depends on that."""

    def __init__(self) -> None:
        self.reading = 0
        # Reads whose version is not known yet. The first readers of a job begin so, all at once.
        self.beginning = 0
        # The readers of a job begin one after the other, at each epoch again, and the first has the line to itself for
        # a moment only: so the number of late counts, too.
        self._lately = 0.0

    def begin(self) -> None:
        self.reading += 1
        self._lately = max(self.reading, self._lately * _READERS_KEPT)

    def end(self) -> None:
        self.reading -= 1

    def expected(self, blocks_sent: float) -> int:
        """How many readers to expect beside a read that has sent `blocks_sent` blocks, with this one."""
        # By its second block the others would have begun, too: a long read that is alone then has the line to itself.
        readers = round(self._lately) if blocks_sent < 1 else self.reading
        return max(readers, self.reading + self.beginning)
