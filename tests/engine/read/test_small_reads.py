"""Small reads here and there in a large object: they bring their own bytes, and no block, until they are many."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.support.engine import BLOCK, REF, Engine, engine
from tests.support.fakes import RAMP
from tests.support.members import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = RAMP[: 8 * BLOCK]
FEW = BLOCK // 128


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Engine]:
    with engine(tmp_path, freshness="immutable") as made:
        made.origin.put(REF, DATA)
        yield made


async def read(room: Engine, start: int, count: int = FEW) -> int:
    """The bytes that the bucket gives for it."""
    before = room.origin.body_bytes
    assert await room.range(start, start + count) == DATA[start : start + count]
    await room.tasks.settle()
    return room.origin.body_bytes - before


async def known(room: Engine) -> None:
    """As most readers of tables begin: they need the size."""
    await room.reads.head(REF, {})


async def test_scattered_reads_bring_their_own_bytes(room: Engine) -> None:
    await known(room)
    chance = Random(5)
    starts = [chance.randrange(1, len(DATA) - FEW) for _ in range(60)]
    brought = [await read(room, start) for start in starts]
    assert sum(brought) <= 20 * 60 * FEW
    assert brought[:10] == [FEW] * 10


async def test_a_read_that_is_repeated_fills_its_block(room: Engine) -> None:
    await known(room)
    start = 5 * BLOCK + 100
    assert [await read(room, start) for _ in range(3)] == [FEW, BLOCK, 0]


async def test_chunks_that_touch_bring_no_block(room: Engine) -> None:
    """Readers of tables take them one by one."""
    await known(room)
    starts = [index * BLOCK + 100 + chunk for index in range(1, 8) for chunk in (0, FEW)]
    assert [await read(room, start) for start in starts] == [FEW] * len(starts)


async def test_reads_that_go_on_fill_the_blocks_that_follow_at_once(room: Engine) -> None:
    await known(room)
    starts = range(5 * BLOCK + BLOCK // 2, 7 * BLOCK, FEW)
    brought = [await read(room, start) for start in starts]
    assert brought[:16] == [FEW] * 16
    assert sum(brought) <= 16 * FEW + 3 * BLOCK
    assert len(room.store) == 2


async def test_many_reads_of_a_block_fill_it(room: Engine) -> None:
    await known(room)
    brought = [await read(room, 3 * BLOCK + 100 + number * 3 * FEW) for number in range(18)]
    assert brought == [FEW] * 16 + [BLOCK, 0]


async def test_an_unknown_object_is_asked_for_its_size_first(room: Engine) -> None:
    assert await read(room, 3 * BLOCK) == FEW
    assert [request.method for request in room.origin.log] == ["HEAD", "GET"]


@pytest.mark.parametrize(
    ("start", "count"),
    [
        pytest.param(0, FEW, id="the begin of the object"),
        pytest.param(3 * BLOCK, FEW + 1, id="more than a few bytes"),
    ],
)
async def test_other_reads_fill_at_once(start: int, count: int, room: Engine) -> None:
    await known(room)
    assert await read(room, start, count) >= BLOCK


async def test_an_object_of_one_block_is_filled_at_once(room: Engine) -> None:
    room.origin.put(REF, DATA[:BLOCK])
    await known(room)
    assert await read(room, 5000) == BLOCK


async def test_a_member_that_owns_the_block_fills_it(tmp_path: Path) -> None:
    """Later its disk gives the bytes, and the bucket none."""
    with cluster(tmp_path, "ab") as nodes:
        nodes.origin.put(REF, DATA)
        await nodes.meet()
        for node in nodes:
            await node.engine.reads.head(REF, {})
        index = next(index for index in range(1, 8) if nodes["b"].owns(REF, index))
        for _ in range(2):
            start = index * BLOCK + 1000
            assert await nodes["a"].engine.range(start, start + FEW) == DATA[start : start + FEW]
            await nodes.settle()
        assert nodes.origin.body_bytes == BLOCK
