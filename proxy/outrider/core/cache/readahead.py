"""Which missing blocks of one read to ask for next, and how to group them into GETs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Four 8 MiB blocks at once: one connection of S3 gives 40-90 MB/s, a loader worker takes more than that.
FIRST_BLOCKS = 4
# Of more than two readers each has its first block sooner where it asks for less beside it. Only at first: later two
# would leave the line idle for a round trip each time that both have come.
_FEW, _FIRST_OF_MANY = 2, 2
# 16 x 8 MiB = 128 MiB asked for ahead of one reader; beyond that the readers' own number makes the parallelism.
WINDOW_BLOCKS_MAX = 16
# So many more for each block that was sent.
_GROWTH = 4
# Of many readers each asks for these when so much of a block is still to come: a round trip, about (0.14 s for 8 MiB at
# 60 MB/s a connection, and 30 ms), for which the line would be idle once all first blocks have come. At half a block
# they would share the line with the first ones.
_BEFORE_ITS_END = 0.25
# GETs that a wide window is brought by. A reader who has the line to himself needs more than one of many does: from 4
# to 8, at 40 MB/s each, one read of 100 MB shards was 1.2 times as fast (`make bench`, epoch-1-curl and -boto3).
_GETS_OF_FEW, _GETS_OF_MANY = 8, 4
# Near the read's end fewer are joined, down to one: the last GETs would be long ones, of one reader, with the line half
# empty beside them (a cold epoch of 100 MB shards, 4 readers: 0.17 s of 3.3 with two connections, in one run of two).
# The nearest blocks are never joined: the second of a pair would come after what is needed later.
_NEAR = 2

# 1/32 of a block, 256 KiB of 8 MiB, come in the time of a few round trips at most: for less, no second GET.
_SKIP_SHARE = 32


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Adjacent blocks `[first, first + count)`, to be brought by one GET."""

    first: int
    count: int


def window_blocks(blocks_sent: float, readers: int = 1) -> int:
    """How far ahead a read that has sent `blocks_sent` blocks is filled; `readers`: reads under way of late, this one
    too.

    It grows as the reader proves that it goes on: many `a-` reads are left after the first bytes. A lone one has not to
    wait for that until a block is nearly whole; of many, what each wants next would then share the line with what it
    wants later (`make bench-ahead`, announced: 0.34 s to the first batch, and 0.27).
    """
    if readers <= _FEW:
        return min(WINDOW_BLOCKS_MAX, FIRST_BLOCKS + int(_GROWTH * blocks_sent))
    return min(WINDOW_BLOCKS_MAX, _FIRST_OF_MANY + _GROWTH * int(blocks_sent + _BEFORE_ITS_END))


def runs_ahead(
    position: int, last: int, blocks_sent: float, wanted: Callable[[int], bool], readers: int = 1
) -> list[BlockRun]:
    """The GETs to start now for a read at block `position` that ends with block `last` (inclusive).

    `wanted(i)`: block i is neither here nor on its way. The first GETs take a block each, so that they run in
    parallel; once the window is wide, adjacent blocks that are not the next are joined in pairs, or fours where there
    are many readers, which saves requests where there is parallelism enough; towards the end of the read there is not.
    A run that the window's edge would cut short waits until the window has moved on.
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


def fill_start(wanted: int, block_bytes: int) -> int:
    """At which offset a fill begins whose first reader wants offset `wanted` of the block.

    What lies before would make him wait; it comes last, by a GET of its own.
    """
    return wanted if wanted > block_bytes // _SKIP_SHARE else 0
