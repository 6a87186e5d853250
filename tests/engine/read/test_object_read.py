"""GET and HEAD of an object: the requests to the origin, the answers, and the answers when origin or disk fail."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from outrider.adapters.disk.block_writer import DiskBlockWriter
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.readahead import FIRST_BLOCKS, BlockRun, runs_ahead
from outrider.core.errors import (
    InvalidRange,
    OriginBroke,
    PreconditionFailed,
    ServiceUnavailable,
    StoreUnavailable,
    VersionChanged,
)
from outrider.core.model import Extent, ObjectRef
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.read import body as body_module
from outrider.engine.read.body_pieces import Body, EarlyPiece
from outrider.engine.read.object_read import CacheStatus
from outrider.engine.read.version_answers import NotCacheable
from outrider.ports import BlockWriter, Buffer
from tests.support.engine import (
    BLOCK,
    REF,
    Engine,
    as_large,
    as_small,
    by_threads,
    engine,
    flights_of,
    nothing_is_left,
    pieces_of,
    taken,
)
from tests.support.fakes import RAMP, FakeOrigin, Fault, ramp

pytestmark = pytest.mark.one_python

SIZE = 5 * BLOCK + 777
DATA = RAMP[:SIZE]
OTHER = ramp(SIZE, start=17)


@pytest.fixture
def fills_max() -> int:
    return 64


@pytest.fixture(params=[as_large, as_small, by_threads])
def room(tmp_path: Path, fills_max: int, request: pytest.FixtureRequest) -> Iterator[Engine]:
    origin = FakeOrigin(chunk_bytes=7000)
    with engine(tmp_path / "c", origin, buffer_bytes=request.param, fills_max=fills_max) as room:
        room.origin.put(REF, DATA, (("content-type", "application/x-tar"), ("last-modified", "x")))
        yield room


# -- cost -------------------------------------------------------------------------------------------------------


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


async def test_five_hundred_readers_of_a_cold_object_cost_one_get_per_block_at_most(room: Engine) -> None:
    bodies = await asyncio.gather(*(room.get() for _ in range(500)))
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


# -- which bytes ------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=-1", SIZE - 1, SIZE), (f"bytes=-{SIZE + 5}", 0, SIZE), ("bytes=10-", 10, SIZE),
     (f"bytes={BLOCK - 1}-{BLOCK}", BLOCK - 1, BLOCK + 1), (f"bytes={5 * BLOCK}-{10 * BLOCK}", 5 * BLOCK, SIZE),
     (f"bytes={BLOCK}-{2 * BLOCK - 1}", BLOCK, 2 * BLOCK)],
)  # fmt: skip
async def test_a_range_is_answered_cold_and_warm(header: str, start: int, stop: int, room: Engine) -> None:
    for _ in range(2):
        answer = await room.reads.get(REF, {"range": header})
        assert (answer.status, answer.length) == (206, stop - start)
        assert dict(answer.headers)["content-range"] == f"bytes {start}-{stop - 1}/{SIZE}"
        assert dict(answer.headers)["content-type"] == "application/x-tar"
        assert await taken(answer) == DATA[start:stop]
    await room.tasks.settle()


@pytest.mark.parametrize("header", [f"bytes={SIZE}-", f"bytes={50 * BLOCK}-{60 * BLOCK}", "bytes=-0"])
async def test_a_range_beyond_the_object_is_a_416_cold_and_warm(header: str, room: Engine) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRange) as refused:
            await room.reads.get(REF, {"range": header})
        assert refused.value.headers == (("content-range", f"bytes */{SIZE}"),)
    await room.tasks.settle()


async def test_an_empty_object_is_answered_and_has_no_range(room: Engine) -> None:
    room.origin.put(REF, b"")
    for _ in range(2):
        answer = await room.reads.get(REF, {})
        assert (answer.status, answer.length, await taken(answer)) == (200, 0, b"")
        with pytest.raises(InvalidRange):
            await room.reads.get(REF, {"range": "bytes=0-0"})


async def test_a_head_has_the_headers_of_a_get_and_fills_no_block(room: Engine) -> None:
    answer = await room.reads.head(REF, {"range": "bytes=5-9"})
    assert (answer.status, answer.length, answer.body) == (206, 5, None)
    assert (await room.reads.head(REF, {})).length == SIZE
    assert (room.origin.count("HEAD"), room.origin.count("GET"), room.origin.body_bytes) == (1, 0, 0)


async def test_a_request_for_several_ranges_is_left_to_the_origin(room: Engine) -> None:
    with pytest.raises(NotCacheable):
        await room.reads.get(REF, {"range": "bytes=0-1,5-6"})


async def test_conditions_are_answered_by_the_proxy(room: Engine) -> None:
    etag = room.origin.objects[REF].etag
    assert etag is not None
    assert (await room.reads.get(REF, {"if-none-match": etag})).status == 304
    with pytest.raises(PreconditionFailed):
        await room.reads.get(REF, {"if-match": '"x"'})
    assert room.origin.body_bytes == 0
    answer = await room.reads.get(REF, {"if-match": etag})
    assert await taken(answer) == DATA


async def test_an_unknown_etag_is_revalidated_before_it_is_refused(room: Engine) -> None:
    await taken(await room.reads.get(REF, {}))
    newer = b"written past the proxy, within the freshness of what it knows"
    etag = room.origin.put(REF, newer)
    assert await taken(await room.reads.get(REF, {"if-match": etag})) == newer


async def test_a_checksum_is_sent_with_whole_objects_and_only_on_request(room: Engine) -> None:
    room.origin.put(REF, DATA, (("x-amz-checksum-crc32", "AAAA"),))
    asked = {"x-amz-checksum-mode": "ENABLED"}
    assert "x-amz-checksum-crc32" in dict((await room.reads.head(REF, asked)).headers)
    assert "x-amz-checksum-crc32" not in dict((await room.reads.head(REF, {})).headers)
    part = await room.reads.get(REF, {**asked, "range": "bytes=0-5"})
    assert "x-amz-checksum-crc32" not in dict(part.headers)
    await taken(part)


async def test_an_object_first_met_by_a_get_has_its_checksum_too(room: Engine) -> None:
    room.origin.put(REF, DATA[:10], (("x-amz-checksum-crc32", "AAAA"),))
    asked = {"x-amz-checksum-mode": "ENABLED"}
    for _ in range(2):
        answer = await room.reads.get(REF, asked)
        assert dict(answer.headers)["x-amz-checksum-crc32"] == "AAAA"
        await taken(answer)
    assert dict(room.origin.log[0].headers)["x-amz-checksum-mode"] == "ENABLED"


async def test_an_object_that_was_taken_for_a_small_one_is_cached_whole_and_no_byte_comes_twice(room: Engine) -> None:
    asked, small = {"x-amz-checksum-mode": "ENABLED"}, ObjectRef("train", "small.tar")
    room.origin.put(small, DATA[:10])
    await taken(await room.reads.get(small, asked))
    room.origin.log.clear()
    room.origin.body_bytes = 0
    room.origin.put(REF, DATA[: 3 * BLOCK])
    assert await taken(await room.reads.get(REF, asked)) == DATA[: 3 * BLOCK]
    await room.tasks.settle()
    assert (room.origin.count(), room.origin.body_bytes) == (1, 3 * BLOCK)
    assert len(room.store) == 1 + 3


# -- what the origin may refuse ---------------------------------------------------------------------------------


async def test_a_refusal_of_the_origin_is_passed_on_as_it_is_and_not_remembered(room: Engine) -> None:
    missing = ObjectRef("train", "missing")
    for _ in range(2):
        with pytest.raises(OriginRefused) as refused:
            await room.get(missing)
        assert refused.value.status == 404
        assert b"NoSuchKey" in refused.value.body
    room.origin.put(missing, b"now here")
    assert await room.get(missing) == b"now here"


@pytest.mark.parametrize("headers", [{"range": "bytes=-5"}, {"if-none-match": '"x"'}])
async def test_a_refused_head_has_no_body_for_a_get_so_the_get_is_forwarded(
    headers: dict[str, str], room: Engine
) -> None:
    with pytest.raises(NotCacheable):
        await room.reads.get(ObjectRef("train", "missing"), headers)


@pytest.mark.parametrize("knob", ["weak_etags", "no_etags", "no_length"])
async def test_without_a_strong_etag_or_a_size_nothing_is_cached(knob: str, room: Engine) -> None:
    setattr(room.origin, knob, True)
    room.origin.ignore_range = knob == "no_length"
    with pytest.raises(NotCacheable):
        await room.get()
    await room.tasks.settle()
    assert len(room.store) == 0
    assert room.versions.stale(REF) is None


@pytest.mark.parametrize("start", [0, 5, 2 * BLOCK + 3, SIZE - 1])
async def test_an_origin_that_ignores_range_is_read_all_the_same(start: int, room: Engine) -> None:
    room.origin.ignore_range = True
    assert await room.range(start, SIZE) == DATA[start:]
    await room.tasks.settle()
    assert await room.range(start, SIZE) == DATA[start:]


@pytest.mark.parametrize("start", [0, 2 * BLOCK + 3])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_206_of_other_bytes_is_neither_served_nor_cached(start: int, which: int, room: Engine) -> None:
    room.origin.faults = [*([Fault(), Fault()][:which]), Fault(shift=1)]
    assert await room.range(start, SIZE) == DATA[start:]
    await room.tasks.settle()
    assert await room.range(start, SIZE) == DATA[start:]


@pytest.mark.parametrize("most", [1000, BLOCK - 1])
async def test_the_rest_is_requested_from_an_origin_that_gives_less_than_the_range(most: int, room: Engine) -> None:
    room.origin.range_bytes_max = most
    assert await room.range(3, 2 * BLOCK) == DATA[3 : 2 * BLOCK]
    await room.tasks.settle()
    assert room.metrics.value("outrider_relays_total") == 0


# -- broken bodies ----------------------------------------------------------------------------------------------


async def test_a_broken_body_is_resumed_at_its_exact_offset_and_only_of_the_same_version(room: Engine) -> None:
    etag = room.origin.objects[REF].etag
    room.origin.faults = [Fault(break_after=12_345), Fault(break_after=20_000)]
    assert await room.range(0, BLOCK) == DATA[:BLOCK]
    assert room.origin.ranges == [f"bytes=0-{BLOCK - 1}", f"bytes=12345-{BLOCK - 1}", f"bytes=32345-{BLOCK - 1}"]
    assert [dict(request.headers).get("if-match") for request in room.origin.log] == [None, etag, etag]
    assert room.metrics.value("outrider_origin_retries_total") == 2


@pytest.mark.parametrize("at", [0, 3 * BLOCK])
async def test_503_replies_are_retried_until_the_storm_ends(at: int, room: Engine) -> None:
    await room.range(0, 10) if at else None
    await room.tasks.settle()
    room.origin.faults = [Fault(times=2, status=503), Fault(times=1, refuse=True), Fault(times=1, status=500)]
    assert await room.range(at, at + BLOCK) == DATA[at : at + BLOCK]
    assert room.metrics.value("outrider_origin_retries_total") == 4


async def test_after_the_last_try_the_origins_reply_is_passed_on(room: Engine) -> None:
    room.origin.faults = [Fault(times=None, status=503)]
    with pytest.raises(OriginRefused) as refused:
        await room.get()
    assert refused.value.status == 503
    assert room.origin.count() == 5
    room.origin.faults = [Fault(times=None, refuse=True)]
    with pytest.raises(ServiceUnavailable):
        await room.get()
    await room.tasks.settle()


async def test_a_body_that_fails_leaves_no_cycle(room: Engine) -> None:
    await room.reads.head(REF, {})
    version = room.versions.fresh(REF)
    assert version is not None
    room.origin.faults = [Fault(times=None, refuse=True)]
    gc.disable()
    try:
        body = room.reads.resume(version, Extent(0, BLOCK), room.versions.changes)
        with suppress(OriginBroke):
            await anext(aiter(body))
        await room.tasks.settle()
        left = weakref.ref(body)
        del body
        assert left() is None
    finally:
        gc.enable()


async def test_a_refusal_whose_body_breaks_off_is_an_unreachable_origin(room: Engine) -> None:
    room.origin.faults = [Fault(times=None, status=403, break_after=3)]
    with pytest.raises(ServiceUnavailable):
        await room.get()
    await room.tasks.settle()


async def test_a_refusal_whose_body_breaks_off_is_asked_for_again(room: Engine) -> None:
    room.origin.delete(REF)
    room.origin.faults = [Fault(times=2, status=404, break_after=3)]
    with pytest.raises(OriginRefused) as refused:
        await room.get(REF)
    assert refused.value.status == 404
    assert b"NoSuchKey" in refused.value.body


async def test_an_attempt_that_brought_bytes_is_always_followed_by_another(room: Engine) -> None:
    room.origin.faults = [Fault(times=20, break_after=100)]
    assert await room.range(0, BLOCK) == DATA[:BLOCK]
    assert room.origin.count() == 21
    await room.tasks.settle()


async def test_a_body_that_ends_early_for_good_never_looks_whole(room: Engine) -> None:
    room.origin.faults = [Fault(times=1, break_after=100), Fault(times=None, refuse=True)]
    answer = await room.reads.get(REF, {})
    with pytest.raises(Exception, match="refused"):
        await taken(answer)
    await room.tasks.settle()
    assert len(room.store) == 0
    room.origin.faults = []
    assert await room.get() == DATA


# -- a disk that lags --------------------------------------------------------------------------------------------


class SlowWrites:
    """A disk that reports some seconds for each write. The clock does not move: that would count for the origin as
    well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        real = DiskBlockWriter.write

        async def write(writer: DiskBlockWriter, offset: int, pieces: Sequence[Buffer]) -> float:
            return await real(writer, offset, pieces) + self.seconds

        monkeypatch.setattr(DiskBlockWriter, "write", write)


@pytest.mark.parametrize("buffer_bytes", [as_large, as_small, by_threads])
async def test_while_the_disk_lags_most_misses_are_relayed(
    buffer_bytes: Callable[[int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(tmp_path / "c", freshness="immutable", buffer_bytes=buffer_bytes) as room:
        refs = [ObjectRef("train", f"{number}.tar") for number in range(60)]
        for ref in refs:
            room.origin.put(ref, DATA)
        disk = SlowWrites(monkeypatch)

        async def filled(some: list[ObjectRef]) -> list[int]:
            """How many blocks of each object were kept in the end."""
            cached = []
            for ref in some:
                before = len(room.store)
                assert await room.get(ref) == DATA
                await room.tasks.settle()
                room.clock.advance(disk.seconds)
                cached.append(len(room.store) - before)
            return cached

        assert await filled(refs[:5]) == [6] * 5
        disk.seconds = 0.5
        await filled(refs[5:10])
        relayed = room.metrics.value("outrider_relays_total")
        assert all(count < 6 for count in await filled(refs[10:20]))
        assert room.metrics.value("outrider_relays_total") >= relayed + 10
        disk.seconds = 0.0
        for _ in range(30):
            room.clock.advance(1.0)
            await filled(refs[20:21])
        room.clock.advance(5.0)
        assert await filled(refs[30:40]) == [6] * 10


async def test_read_ahead_fills_no_more_than_the_disk_takes(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.reads.head(REF, {})
    most = reader_at = 0

    fill = room.flights.fill

    def planned(position: int, last: int, sent: float, wanted: Callable[[int], bool], readers: int) -> list[BlockRun]:
        nonlocal reader_at
        reader_at = position
        return runs_ahead(position, last, sent, wanted, readers)

    def counted(flights: Sequence[Flight], *, ahead: int) -> None:
        nonlocal most
        if flights[0].meta.index > reader_at:  # what the reader waits for comes in any case
            most = max(most, len(room.flights))
        fill(flights, ahead=ahead)

    monkeypatch.setattr(body_module, "runs_ahead", planned)
    monkeypatch.setattr(room.flights, "admits", lambda: len(room.flights) < 2)
    monkeypatch.setattr(room.flights, "fill", counted)
    assert await room.get() == DATA
    await room.tasks.settle()
    assert 2 <= most <= 3  # beside one, a run of two may begin


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


async def test_a_relay_past_a_lagging_disk_sends_a_new_request_after_a_window(
    room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ramp(20 * BLOCK)
    room.origin.put(REF, whole)
    await room.reads.head(REF, {})
    monkeypatch.setattr(room.flights, "admits", lambda: False)
    assert await room.get() == whole
    assert room.origin.ranges == [f"bytes=0-{16 * BLOCK - 1}", f"bytes={16 * BLOCK}-{20 * BLOCK - 1}"]
    assert len(room.store) == 0


# -- versions ---------------------------------------------------------------------------------------------------


async def test_a_version_that_changed_before_the_first_byte_makes_the_read_begin_again(room: Engine) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    room.origin.put(REF, OTHER)
    # The version is fresh by its ttl, but the block is not cached, and its fill finds that the version is gone.
    assert await room.range(3 * BLOCK, SIZE) == OTHER[3 * BLOCK :]
    assert await room.get() == OTHER


async def test_a_version_that_changes_after_the_first_byte_cuts_the_answer(room: Engine) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    got = bytearray()
    room.origin.put(REF, OTHER)

    async def take(body: Body) -> None:
        async for piece in pieces_of(body):
            got.extend(piece)

    with pytest.raises(VersionChanged):
        await take(answer.body)
    assert DATA.startswith(bytes(got))
    assert len(got) < SIZE
    assert await room.get() == OTHER  # cached old blocks that are fresh by the ttl do not cut it again
    await room.tasks.settle()


@pytest.mark.parametrize("heeds_if_match", [True, False])
async def test_a_resumed_body_never_mixes_two_versions(heeds_if_match: bool, room: Engine) -> None:
    room.origin.ignore_if_match = not heeds_if_match
    gate = asyncio.Event()
    room.origin.faults = [Fault(break_after=9_000, body_gate=gate, gate_after=8_000)]
    read = asyncio.create_task(room.range(0, BLOCK))
    while room.origin.body_bytes < 8_000:
        await asyncio.sleep(0)
    room.origin.put(REF, OTHER)
    gate.set()
    with pytest.raises(VersionChanged):
        await read
    await room.tasks.settle()
    assert len(room.store) == 0


async def test_an_object_that_changes_at_each_try_is_forwarded(room: Engine) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    room.origin.faults = [Fault(times=None, method="GET", status=412)]
    with pytest.raises((NotCacheable, OriginRefused)):
        await room.range(3 * BLOCK, SIZE)
    await room.tasks.settle()


# -- leaving ----------------------------------------------------------------------------------------------------


async def test_a_reader_that_leaves_disturbs_no_other(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(gate=gate)]
    leader, follower = (asyncio.create_task(room.get()) for _ in range(2))
    while not room.origin.log:
        await asyncio.sleep(0)
    leader.cancel()
    await asyncio.wait([leader])
    assert not follower.done()
    gate.set()
    assert await follower == DATA
    assert leader.cancelled()


@pytest.mark.parametrize("after", [0, 1, 8_000])
async def test_a_fill_goes_on_when_all_readers_left_in_mid_body(after: int, room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=after)]
    readers = [asyncio.create_task(room.range(at, BLOCK)) for at in (0, 100, BLOCK - 5)]
    while room.origin.body_bytes < after or not room.origin.log:
        await asyncio.sleep(0)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    assert all(reader.cancelled() for reader in readers)
    gate.set()
    await room.tasks.settle()
    assert await room.range(0, BLOCK) == DATA[:BLOCK]
    assert room.origin.count() == 1


async def test_an_answer_that_is_never_read_gives_its_file_back(room: Engine) -> None:
    await room.get()
    await room.tasks.settle()
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    await answer.body.aclose()
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    await anext(aiter(answer.body))
    await answer.body.aclose()
    await nothing_is_left(room)


async def test_the_proxy_stopping_ends_every_wait_with_an_answer(room: Engine) -> None:
    room.origin.faults = [Fault(times=None, gate=asyncio.Event())]
    reads = [asyncio.create_task(room.get()) for _ in range(3)]
    while not room.origin.log:
        await asyncio.sleep(0)
    await room.tasks.cancel()
    for read in reads:
        with pytest.raises(ServiceUnavailable):
            await read


# -- a cache fault never fails a request ------------------------------------------------------------------------


async def test_with_no_room_at_all_the_bytes_are_relayed_and_counted(tmp_path: Path) -> None:
    with engine(tmp_path / "c", capacity_bytes=0) as room:
        room.origin.put(REF, DATA)
        assert await room.get() == DATA
        assert await room.range(5, SIZE - 5) == DATA[5:-5]
        await room.tasks.settle()
        assert room.metrics.value("outrider_relays_total") >= 2
        assert (len(room.store), room.store.used_bytes) == (0, 0)


async def test_the_reply_of_a_question_is_closed_where_its_fill_ends_before_the_first_byte(tmp_path: Path) -> None:
    with engine(tmp_path / "c", capacity_bytes=0) as room:
        room.origin.put(REF, DATA)
        # In mid-block, where room for the head is taken before any byte of the reply.
        answer = await room.reads.get(REF, {"range": f"bytes={BLOCK // 2}-"})
        assert await taken(answer) == DATA[BLOCK // 2 :]
        await room.tasks.settle()
        assert room.origin.under_way == 0


@pytest.mark.parametrize("blocks", [1, 2, 3])
async def test_with_room_for_less_than_the_object_every_byte_comes(blocks: int, tmp_path: Path) -> None:
    with engine(tmp_path / "c", FakeOrigin(chunk_bytes=9000), capacity_bytes=blocks * (BLOCK + 4096)) as room:
        room.origin.put(REF, DATA)
        for _ in range(3):
            assert await asyncio.gather(*(room.get() for _ in range(4))) == [DATA] * 4
        await room.tasks.settle()
        assert room.store.used_bytes <= blocks * (BLOCK + 4096)


@pytest.mark.parametrize(
    ("act", "good_calls"),
    # The free space of the disk is looked up only once within so short a time.
    [("statvfs", 0), *((act, good_calls) for act in ("open", "pwritev", "rename") for good_calls in (0, 1, 3, 5))],
)
async def test_a_disk_that_fails_at_any_step_costs_no_byte(
    act: str, good_calls: int, room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, act)
    calls = iter(range(10**9))

    def failing(*args: object, **named: object) -> object:
        if next(calls) >= good_calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, act, failing)
        bodies = await asyncio.gather(*(room.get() for _ in range(3)), room.range(3, SIZE - 9))
        await room.tasks.settle()
    assert bodies == [DATA, DATA, DATA, DATA[3:-9]]
    assert room.metrics.total("outrider_store_errors_total") >= 1
    if room.flights.buffer_bytes < BLOCK and (act, good_calls) in (("open", 0), ("pwritev", 0)):
        # No block can keep its second half. Its first half is handed out from memory, which needs no disk.
        assert room.metrics.value("outrider_relays_total") >= 1
    room.clock.advance(10)
    assert await room.get() == DATA
    await room.tasks.settle()
    blocks = room.store.disks[0].directory.blocks
    assert room.store.used_bytes == sum(
        path.stat().st_size + (-path.stat().st_size) % 4096 for path in blocks.rglob("?" * 32)
    )


async def test_a_reader_that_comes_while_a_failed_fill_is_cleaned_up_gets_its_bytes(
    room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fill has bytes, fails, and its file is closed. Between the failure and the close no reader may find the flight
    # in the table.
    await room.reads.head(REF, {})
    late: list[asyncio.Task[bytes]] = []
    real = type(room.store.disks[0].work).write_failed

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "sick")

    def failed(work: object, act: str, error: OSError) -> Exception:
        # From here on one more reader comes at every step of the loop.
        late.append(asyncio.get_running_loop().create_task(comers()))
        return real(work, act, error)  # type: ignore[arg-type]

    async def comers() -> bytes:
        tasks = []
        for _ in range(40):
            tasks.append(asyncio.create_task(room.range(0, 100)))
            await asyncio.sleep(0)
        assert {await task for task in tasks} == {DATA[:100]}
        return b""

    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=7000)]
    leader = asyncio.create_task(room.range(0, BLOCK))
    while not (flights := flights_of(room.flights)):
        await asyncio.sleep(0)
    await flights[0].bytes_at(0)
    # No other reader must hold the file open.
    leader.cancel()
    await asyncio.wait([leader])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing)
        patch.setattr(type(room.store.disks[0].work), "write_failed", failed)
        gate.set()
        while not late:
            await asyncio.sleep(0)
        await asyncio.gather(*late)
    await room.tasks.settle()


async def test_a_block_that_rots_while_it_lies_is_filled_again(tmp_path: Path) -> None:
    with engine(tmp_path / "c", verify_always=True) as room:
        room.origin.put(REF, DATA)
        await room.get()
        await room.tasks.settle()
        for path in (tmp_path / "c" / "v2").rglob("?" * 32):
            with path.open("r+b") as file:
                file.seek(4096 + 7)
                file.write(b"\xff")
        assert await room.get() == DATA
        await room.tasks.settle()
        assert room.metrics.value("outrider_bad_blocks_total") == 6


# -- freshness --------------------------------------------------------------------------------------------------


async def test_freshness_immutable_never_revalidates(tmp_path: Path) -> None:
    with engine(tmp_path / "c", freshness="immutable") as room:
        room.origin.put(REF, b"first")
        assert await room.get() == b"first"
        room.origin.put(REF, b"second")
        room.clock.advance(1e9)
        assert await room.get() == b"first"
        assert room.origin.count() == 1


async def test_new_headers_of_the_same_bytes_are_served_once_the_ttl_ran_out(tmp_path: Path) -> None:
    with engine(tmp_path / "c", freshness="ttl:60") as room:
        room.origin.put(REF, DATA, (("content-type", "text/plain"),))
        await room.get()
        room.origin.put(REF, DATA, (("content-type", "text/html"),))
        room.clock.advance(61)
        answer = await room.reads.get(REF, {})
        assert dict(answer.headers)["content-type"] == "text/html"
        await taken(answer)


async def test_an_object_is_revalidated_after_its_ttl_and_keeps_its_blocks_if_unchanged(tmp_path: Path) -> None:
    with engine(tmp_path / "c", freshness="ttl:60") as room:
        room.origin.put(REF, DATA)
        assert await room.get() == DATA
        await room.tasks.settle()
        asked, bytes_before = room.origin.count(), room.origin.body_bytes
        room.clock.advance(59)
        assert await room.get() == DATA
        assert room.origin.count() == asked
        room.clock.advance(2)
        assert await room.get() == DATA
        assert room.origin.count() == asked + 1
        assert room.origin.log[-1].method == "HEAD"
        assert room.origin.body_bytes == bytes_before
        room.origin.put(REF, OTHER)
        assert await room.get() == DATA
        room.clock.advance(61)
        assert await room.get() == OTHER
        await room.tasks.settle()


async def test_freshness_always_revalidates_on_every_request(tmp_path: Path) -> None:
    with engine(tmp_path / "c", freshness="always") as room:
        room.origin.put(REF, b"first")
        assert await room.get() == b"first"
        room.origin.put(REF, b"second")
        assert await room.get() == b"second"
        room.origin.delete(REF)
        with pytest.raises(NotCacheable):  # a HEAD found it gone; the origin says so to the GET itself
            await room.get()


@pytest.mark.parametrize("fault", [Fault(times=None, refuse=True), Fault(times=None, status=503)])
async def test_stale_if_error_serves_cached_blocks_while_the_origin_is_down(fault: Fault, tmp_path: Path) -> None:
    with engine(tmp_path / "c", stale_if_error=True) as room:
        room.origin.put(REF, DATA)
        await room.get()
        await room.tasks.settle()
        room.clock.advance(61)
        room.origin.faults = [fault]
        assert await room.get() == DATA
        assert (await room.reads.head(REF, {})).length == SIZE
        with pytest.raises((ServiceUnavailable, OriginRefused)):
            await room.get(ObjectRef("train", "never seen"))
        # An object that was written through us is doubtful, not stale.
        room.versions.forget(REF)
        with pytest.raises((ServiceUnavailable, OriginRefused)):
            await room.get()
        room.origin.faults = []
        room.origin.delete(REF)
        with pytest.raises(OriginRefused):
            await room.get()
        await room.tasks.settle()


async def test_without_stale_if_error_an_origin_that_is_down_is_an_error(tmp_path: Path) -> None:
    with engine(tmp_path / "c") as room:
        room.origin.put(REF, b"x")
        await room.get()
        room.clock.advance(61)
        room.origin.faults = [Fault(times=None, refuse=True)]
        with pytest.raises(ServiceUnavailable):
            await room.get()
        await room.tasks.settle()


async def test_bytes_that_are_relayed_to_two_readers_at_once_are_counted(tmp_path: Path) -> None:
    with engine(tmp_path, capacity_bytes=0) as room:
        room.origin.put(REF, DATA)
        gate = asyncio.Event()
        assert await room.get() == DATA
        counted = partial(room.metrics.value, "outrider_duplicate_origin_bytes_total", cause="relay")
        before = counted()
        assert await room.get() == DATA
        assert counted() == before, "one after the other: nothing was kept that came twice"
        room.origin.faults = [Fault(times=None, body_gate=gate)]
        readers = [asyncio.create_task(room.get()) for _ in range(3)]
        for _ in range(50):
            await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*readers) == [DATA] * 3
        assert counted() - before == 2 * len(DATA)
