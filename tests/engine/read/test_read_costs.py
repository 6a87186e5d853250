"""The requests that a cold GET sends to the origin, one reader or hundreds, and the window of blocks ahead of each."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.readahead import FIRST_BLOCKS, BlockRun
from outrider.core.errors import StoreUnavailable
from outrider.core.model import ObjectRef
from outrider.engine.read.body_pieces import EarlyPiece
from outrider.engine.read.object_read import CacheStatus
from outrider.ports import BlockWriter
from tests.engine.read.five_blocks import DATA, SIZE
from tests.support.engine import BLOCK, REF, Engine, pieces_of, taken
from tests.support.fakes import Fault, ramp

pytestmark = pytest.mark.one_python


async def test_an_unknown_small_object_costs_exactly_one_request(room: Engine) -> None:
    room.origin.put(REF, DATA[:1000])
    answer = await room.reads.get(REF, {})
    assert (answer.status, answer.length, answer.cache) == (200, 1000, CacheStatus.MISS)
    assert await taken(answer) == DATA[:1000]
    await room.tasks.settle()
    assert room.origin.count() == 1
    assert (await room.reads.get(REF, {})).cache is CacheStatus.HIT
    assert room.origin.count() == 1


async def test_a_cold_object_costs_one_request_a_block_and_each_byte_once(room: Engine) -> None:
    assert await room.get() == DATA
    await room.tasks.settle()
    assert room.origin.count("GET") == 6
    assert room.origin.count() == 6
    assert room.origin.body_bytes == SIZE
    assert await room.get() == DATA
    assert room.origin.count() == 6


async def test_each_of_many_readers_requests_fewer_blocks_beside_its_first(room: Engine) -> None:
    refs = [ObjectRef("bucket", f"shard-{number}") for number in range(4)]
    for ref in refs:
        room.origin.put(ref, DATA)

    def gets() -> list[int]:
        return [sum(request.key == ref.key for request in room.origin.log) for ref in refs]

    answers = [await room.reads.get(ref, {}) for ref in refs[:3]]
    await room.tasks.settle()
    assert gets() == [4, 4, 2, 0]
    for answer in answers:
        assert await taken(answer) == DATA
    assert max(gets()) <= 6, "each GET brings one block or two"
    assert gets()[3] == 0
    last = await room.reads.get(refs[3], {})
    await room.tasks.settle()
    assert gets()[3] == 2, "other readers of the next epoch are expected"
    assert await taken(last) == DATA


async def test_a_reader_that_stays_alone_gets_the_wide_window_again(room: Engine) -> None:
    refs = [ObjectRef("bucket", f"shard-{number}") for number in range(4)]
    for ref in refs:
        room.origin.put(ref, DATA)
    for answer in [await room.reads.get(ref, {}) for ref in refs[:3]]:
        assert await taken(answer) == DATA
    for _ in range(50):
        await room.range(0, 10, refs[0])
    before = room.origin.count()
    answer = await room.reads.get(refs[3], {})
    await room.tasks.settle()
    assert room.origin.count() == before + 4
    assert await taken(answer) == DATA


async def test_a_long_read_that_stays_alone_gets_the_window_of_a_lone_reader(room: Engine) -> None:
    """A job reads a checkpoint while the workers of its loader wait."""
    long = ramp(40 * BLOCK)

    async def gets_of(ref: ObjectRef) -> int:
        room.origin.put(ref, long)
        assert await taken(await room.reads.get(ref, {})) == long
        return sum(request.key == ref.key for request in room.origin.log)

    alone = await gets_of(ObjectRef("bucket", "alone"))
    refs = [ObjectRef("bucket", f"shard-{number}") for number in range(8)]
    for ref in refs:
        room.origin.put(ref, DATA)
    for answer in [await room.reads.get(ref, {}) for ref in refs]:
        assert await taken(answer) == DATA
    assert alone - 2 <= await gets_of(ObjectRef("bucket", "after")) <= alone + 2


async def test_the_window_of_a_lone_reader_grows_while_its_first_block_arrives(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=BLOCK // 2 + 7000)]
    reader = asyncio.create_task(room.get())
    async with asyncio.timeout(60):
        while room.origin.count() < 6:
            await asyncio.sleep(0)
    gate.set()
    assert await reader == DATA


async def test_two_hundred_readers_of_a_cold_object_cost_one_get_per_block_at_most(room: Engine) -> None:
    bodies = await asyncio.gather(*(room.get() for _ in range(200)))
    assert all(body == DATA for body in bodies)
    await room.tasks.settle()
    assert max(Counter(room.origin.ranges).values()) == 1
    assert room.origin.count() <= 6
    assert room.origin.body_bytes == SIZE


async def test_readers_of_every_range_at_once_get_their_bytes(room: Engine) -> None:
    wanted = [(start, min(start + length, SIZE)) for start in range(0, SIZE, 9001) for length in (1, 5000, 2 * BLOCK)]
    bodies = await asyncio.gather(*(room.range(start, stop) for start, stop in wanted))
    assert bodies == [DATA[start:stop] for start, stop in wanted]
    await room.tasks.settle()
    assert max(Counter(room.origin.ranges).values()) == 1


async def test_a_reader_that_takes_its_time_with_the_first_bytes_may_find_their_block_evicted(room: Engine) -> None:
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    pieces = aiter(answer.body)
    first = await anext(pieces)
    assert isinstance(first, EarlyPiece)
    await room.tasks.settle()
    await room.store.drop(room.store.blocks_of(lambda ref: ref == REF))
    rest = [piece async for piece in pieces_of(answer.body)]
    assert bytes(first.data) + b"".join(rest) == DATA


async def test_a_late_joiner_at_any_offset_follows_the_same_flight(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=20_000)]
    leader = asyncio.create_task(room.range(0, BLOCK))
    while room.origin.body_bytes < 20_000:
        await asyncio.sleep(0)
    assert await room.range(5, 15_000) == DATA[5:15_000]  # all these bytes have come already
    joiners = [asyncio.create_task(room.range(at, BLOCK)) for at in (0, 1, 19_999, 20_000, 20_001, BLOCK - 1)]
    await asyncio.sleep(0)
    gate.set()
    assert await leader == DATA[:BLOCK]
    assert [await joiner for joiner in joiners] == [DATA[at:BLOCK] for at in (0, 1, 19_999, 20_000, 20_001, BLOCK - 1)]
    assert room.origin.count() == 1


@pytest.mark.parametrize("known", [True, False])
async def test_a_read_from_mid_block_waits_for_nothing_before_it(known: bool, room: Engine) -> None:
    at = 2 * BLOCK + BLOCK // 2
    if known:
        await room.reads.head(REF, {})
    room.origin.log.clear()
    gate = asyncio.Event()
    room.origin.faults = [Fault(times=None, body_gate=gate, gate_after=10)]
    answer = await room.reads.get(REF, {"range": f"bytes={at}-"})  # its first byte has come, and few bytes of any GET
    assert f"bytes={at}-{3 * BLOCK - 1}" in room.origin.ranges
    gate.set()
    assert await taken(answer) == DATA[at:]
    await room.tasks.settle()
    assert room.origin.body_bytes == SIZE - 2 * BLOCK
    assert await room.range(2 * BLOCK, SIZE) == DATA[2 * BLOCK :]
    assert room.origin.body_bytes == SIZE - 2 * BLOCK


@pytest.mark.parametrize("fails", [False, True])
async def test_a_first_byte_does_not_wait_for_the_disk(
    fails: bool, room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, create = asyncio.Event(), room.store.create

    async def slow(meta: BlockMeta, *, hashed: bool) -> BlockWriter:
        await gate.wait()
        if fails:
            raise StoreUnavailable("full")
        return await create(meta, hashed=hashed)

    monkeypatch.setattr(room.store, "create", slow)
    answer = await asyncio.wait_for(room.reads.get(REF, {}), 60)
    gate.set()
    assert await taken(answer) == DATA
    await room.tasks.settle()


async def test_a_miss_of_a_known_object_sends_its_request_while_the_disk_makes_the_file(
    room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.reads.head(REF, {})
    gate, create = asyncio.Event(), room.store.create

    async def slow(meta: BlockMeta, *, hashed: bool) -> BlockWriter:
        await gate.wait()
        return await create(meta, hashed=hashed)

    monkeypatch.setattr(room.store, "create", slow)
    answer = await asyncio.wait_for(room.reads.get(REF, {"range": "bytes=0-9"}), 60)
    assert room.origin.count("GET") == 1
    gate.set()
    assert await taken(answer) == DATA[:10]
    await room.tasks.settle()
    assert len(room.store) == 1


@pytest.mark.parametrize("fills_max", [1])
async def test_a_readers_first_block_comes_before_another_readers_read_ahead(room: Engine) -> None:
    other = ObjectRef("train", "b.tar")
    room.origin.put(other, DATA)
    for ref in (REF, other):
        await room.reads.head(ref, {})
    gate = asyncio.Event()
    room.origin.faults = [Fault(method="GET", gate=gate)]
    reading = [asyncio.create_task(room.get(ref)) for ref in (REF, other)]
    while len(room.flights) < 2 * FIRST_BLOCKS:
        await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*reading) == [DATA, DATA]
    await room.tasks.settle()
    asked = [request.key for request in room.origin.log if request.method == "GET"]
    assert asked[:2] == [REF.key, other.key]


@pytest.mark.parametrize("method", ["get", "head"])
async def test_beside_a_request_to_the_origin_prefetch_is_limited_as_beside_demand(method: str, room: Engine) -> None:
    room.scheduler.line.limits[0].alone = 4
    gate = asyncio.Event()
    room.origin.faults = [Fault(gate=gate)]
    reading = asyncio.create_task(getattr(room.reads, method)(REF, {}))
    slots = [room.scheduler.slot(demand=False) for _ in range(3)]
    taking = [asyncio.create_task(slot.take()) for slot in slots]
    for _ in range(20):
        await asyncio.sleep(0)
    assert [slot.held for slot in slots] == [True, False, False]
    gate.set()
    answer = await reading
    await asyncio.wait_for(asyncio.gather(*taking), 60)
    await taken(answer)


async def test_the_first_reader_of_a_job_leaves_bandwidth_to_readers_that_begin_beside_it(room: Engine) -> None:
    """The first blocks of the others are wanted sooner than its third and fourth."""
    refs = [ObjectRef("train", f"{number}.tar") for number in range(3)]
    for ref in refs:
        room.origin.put(ref, DATA)
    gate, held = asyncio.Event(), asyncio.Event()
    room.origin.faults = [Fault(key=ref.key, gate=gate) for ref in refs[1:]]
    others = [asyncio.create_task(room.get(ref)) for ref in refs[1:]]
    while room.origin.count() < 2:
        await asyncio.sleep(0)
    room.origin.faults.append(Fault(None, key=refs[0].key, body_gate=held, gate_after=1000))
    answer = await room.reads.get(refs[0], {})
    for _ in range(20):
        await asyncio.sleep(0)
    assert len([asked for asked in room.origin.log if asked.key == refs[0].key]) == 2
    gate.set()
    held.set()
    assert await taken(answer) == DATA
    assert await asyncio.gather(*others) == [DATA, DATA]
    await room.tasks.settle()


async def test_the_bytes_left_of_a_fill_fall_as_its_bytes_come(room: Engine) -> None:
    """They do not wait for the disk, to which a small block goes all at once."""
    await room.reads.head(REF, {})
    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=2 * 7000)]
    reader = asyncio.create_task(room.range(0, BLOCK))
    async with asyncio.timeout(60):
        while room.scheduler.line.left_bytes != BLOCK - 2 * 7000:
            await asyncio.sleep(0)
    gate.set()
    assert await reader == DATA[:BLOCK]
    await room.tasks.settle()
    assert room.scheduler.line.left_bytes == 0


@pytest.mark.parametrize("rest", ["missing", "missing behind a hole", "prefetched", "here"])
async def test_a_reader_expects_more_until_all_that_it_lacks_is_on_its_way(room: Engine, rest: str) -> None:
    here = {"here": SIZE, "missing behind a hole": (FIRST_BLOCKS + 1) * BLOCK}.get(rest)
    if here is None:
        await room.reads.head(REF, {})
    else:
        await room.range(FIRST_BLOCKS * BLOCK, here)
    await room.tasks.settle()
    gate = asyncio.Event()
    room.origin.faults = [Fault(None, gate=gate)]
    with room.scheduler.question():
        if rest == "prefetched":
            version = room.versions.fresh(REF)
            assert version is not None
            begun = room.flights.board(version, BlockRun(FIRST_BLOCKS, 2))
            room.flights.fill(begun, prefetch=True)
        reader = asyncio.create_task(room.get())
        async with asyncio.timeout(60):
            while room.scheduler.line.held < FIRST_BLOCKS:
                await asyncio.sleep(0)
        assert room.scheduler.line.expecting_more == (rest != "here")
        gate.set()
        assert await reader == DATA
        await room.tasks.settle()
        assert room.scheduler.line.expecting_more == 0


async def test_a_reader_that_takes_nothing_expects_no_more_once_its_blocks_are_here(room: Engine) -> None:
    """Otherwise prefetch would wait for it as long as it stays."""
    answer = await room.reads.get(REF, {})
    await room.tasks.settle()
    assert not room.flights
    assert room.scheduler.line.expecting_more == 0
    assert await taken(answer) == DATA
