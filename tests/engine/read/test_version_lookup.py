"""The version lookup: the requests that a first read sends to the origin, and its end when one is not answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from outrider.core.model import ObjectRef
from outrider.core.s3.list_page import ListedObject
from outrider.engine.fill.refused import OriginRefused
from tests.support.engine import BLOCK, REF, Engine, engine, taken
from tests.support.fakes import RAMP, Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from outrider.core.model import ObjectVersion
    from outrider.engine.read.object_read import ReadAnswer

MODE = {"x-amz-checksum-mode": "ENABLED"}
CHECKSUM = ("x-amz-checksum-crc32", "AAAAAA==")
SMALL, LARGE = RAMP[: BLOCK // 2], RAMP[: 3 * BLOCK]


class Bound:
    """The bound of a wait, which ends when the test says so."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.begun = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        assert 0 < seconds <= 5
        self.begun.set()
        await self.over.wait()


@pytest.fixture
def bound() -> Bound:
    return Bound()


@pytest.fixture
async def room(tmp_path: Path, bound: Bound) -> AsyncIterator[Engine]:
    with engine(tmp_path, sleep=bound) as made:
        yield made
        bound.over.set()
        await made.tasks.cancel()


def has_checksums(answer: ReadAnswer) -> bool:
    return CHECKSUM in answer.headers


def questions(room: Engine) -> list[str]:
    """The requests at the origin. A GET with a Range is listed apart from one without."""
    return [f"{r.method} part" if "range" in dict(r.headers) else r.method for r in room.origin.log]


async def whole(room: Engine, ref: ObjectRef = REF, data: bytes = LARGE) -> ReadAnswer:
    """A read of the whole object that wants checksums; checks the body."""
    answer = await room.reads.get(ref, MODE)
    assert await taken(answer) == data
    return answer


async def test_first_block_and_checksums_of_an_unknown_object_are_requested_at_the_same_time(room: Engine) -> None:
    room.origin.put(REF, LARGE, (CHECKSUM,))
    gate = asyncio.Event()
    room.origin.faults = [Fault(times=2, gate=gate)]
    reading = asyncio.create_task(whole(room))
    while room.origin.count() < 2:
        await asyncio.sleep(0)
    assert sorted(questions(room)) == ["GET part", "HEAD"]
    gate.set()
    assert has_checksums(await reading)
    assert questions(room).count("HEAD") == 1


@pytest.mark.parametrize("key", ["s/{}", "s/{}.jpg", "s/a.{}", "s/a.tfrecord-{:05}-of-00003", "s/a.b/{}", "{}/i.jpg"])
async def test_where_objects_like_it_are_small_one_get_brings_the_whole_object(room: Engine, key: str) -> None:
    refs = [ObjectRef("train", key.format(number)) for number in range(3)]
    for ref in refs:
        room.origin.put(ref, SMALL, (CHECKSUM,))
    await whole(room, refs[0], SMALL)
    await room.tasks.settle()
    room.origin.log.clear()
    for ref in refs[1:]:
        assert has_checksums(await whole(room, ref, SMALL))
    await room.tasks.settle()
    assert questions(room) == ["GET", "GET"]
    room.origin.log.clear()
    for ref in refs[1:]:
        assert has_checksums(await whole(room, ref, SMALL))
    assert questions(room) == [], "the objects are cached whole"


async def test_the_size_of_an_index_is_not_taken_for_the_size_of_shards(room: Engine) -> None:
    index = ObjectRef("train", "index.json")
    room.origin.put(index, SMALL, (CHECKSUM,))
    room.origin.put(REF, LARGE, (CHECKSUM,))
    await whole(room, index, SMALL)
    await room.tasks.settle()
    room.origin.log.clear()
    await whole(room)
    assert "GET" not in questions(room), "a GET without a Range would bring the whole large object"


async def test_a_large_object_among_small_ones_costs_no_more_than_its_bytes(room: Engine) -> None:
    other = ObjectRef("train", "b.tar")
    room.origin.put(REF, SMALL)
    room.origin.put(other, LARGE, (CHECKSUM,))
    await whole(room, REF, SMALL)
    room.origin.body_bytes = 0
    assert has_checksums(await whole(room, other))
    await room.tasks.settle()
    assert room.origin.body_bytes <= len(LARGE) + room.origin.chunk_bytes


async def test_a_read_that_wants_no_checksums_costs_one_get(room: Engine) -> None:
    room.origin.put(REF, SMALL, (CHECKSUM,))
    assert await room.get() == SMALL
    assert await room.range(0, 10) == SMALL[:10]
    assert questions(room) == ["GET part"]


async def test_a_head_that_hangs_delays_the_first_read_no_longer_than_its_bound(room: Engine, bound: Bound) -> None:
    room.origin.put(REF, LARGE, (CHECKSUM,))
    room.origin.faults = [Fault(method="HEAD", gate=asyncio.Event())]
    reading = asyncio.create_task(whole(room))
    await bound.begun.wait()
    assert not reading.done()
    bound.over.set()
    assert not has_checksums(await reading)


@pytest.mark.parametrize("fault", [Fault(None, "HEAD", status=403), Fault(None, "HEAD", status=503),
                                   Fault(None, "HEAD", refuse=True)])  # fmt: skip
async def test_a_head_that_fails_costs_the_checksums_and_nothing_else(room: Engine, fault: Fault) -> None:
    room.origin.put(REF, LARGE, (CHECKSUM,))
    room.origin.faults = [fault]
    assert not has_checksums(await whole(room))
    assert not has_checksums(await whole(room)), "a hit has no checksums either"
    assert not [request for request in room.origin.log if request.method == "GET" and not request.headers], (
        "the read was forwarded"
    )
    room.origin.faults.clear()
    asked = room.origin.count("HEAD")
    assert not has_checksums(await whole(room)), "the next read waits for a HEAD"
    assert room.origin.count("HEAD") == asked
    room.clock.advance(61.0)
    assert has_checksums(await whole(room))


async def test_after_a_failed_head_the_next_object_of_the_folder_gets_none(room: Engine) -> None:
    room.origin.faults = [Fault(None, "HEAD", status=403)]
    for number in range(3):
        ref = ObjectRef("train", f"{number}.tar")
        room.origin.put(ref, LARGE, (CHECKSUM,))
        assert not has_checksums(await whole(room, ref))
        await room.tasks.settle()
    assert room.origin.count("HEAD") == 1
    other = ObjectRef("train", "other/0.tar")
    room.origin.put(other, LARGE, (CHECKSUM,))
    assert not has_checksums(await whole(room, other))
    assert room.origin.count("HEAD") == 2, "another folder may have other rights, and gets a HEAD of its own"


async def test_an_object_that_is_gone_costs_the_others_of_its_folder_nothing(room: Engine) -> None:
    gone = ObjectRef("train", "gone.tar")
    for ref in (gone, REF):
        room.origin.put(ref, LARGE, (CHECKSUM,))
        await room.range(0, len(LARGE), ref)
    room.origin.delete(gone)
    with pytest.raises(OriginRefused):
        await room.reads.head(gone, MODE)
    assert has_checksums(await whole(room))


@pytest.mark.parametrize("act", ["get", "head"])
async def test_a_head_that_hangs_delays_a_hit_once_and_no_longer_than_its_bound(
    room: Engine, bound: Bound, act: str
) -> None:
    room.origin.put(REF, LARGE, (CHECKSUM,))
    await room.range(0, len(LARGE))
    room.origin.faults = [Fault(method="HEAD", gate=asyncio.Event())]
    ask = room.reads.get if act == "get" else room.reads.head
    reading = asyncio.create_task(ask(REF, MODE))
    await bound.begun.wait()
    assert not reading.done()
    bound.over.set()
    answer = await reading
    bound.begun.clear()
    assert not has_checksums(answer)
    if answer.body is not None:
        await answer.body.aclose()
    assert not has_checksums(await whole(room))
    assert not bound.begun.is_set(), "the next read waits, too"
    assert room.origin.count("HEAD") == 1


async def test_a_head_of_another_version_lends_no_headers(room: Engine) -> None:
    room.origin.put(REF, LARGE, (CHECKSUM,))
    late, early = asyncio.Event(), asyncio.Event()
    early.set()
    room.origin.faults = [Fault(method="HEAD", gate=late), Fault(method="GET", gate=early, answer_first=True)]
    reading = asyncio.create_task(room.reads.get(REF, MODE))
    while room.origin.count() < 2:
        await asyncio.sleep(0)
    for _ in range(10):  # the GET's answer is made
        await asyncio.sleep(0)
    room.origin.put(REF, LARGE[:-1], (CHECKSUM,))
    late.set()
    answer = await reading
    assert (answer.length, has_checksums(answer)) == (len(LARGE), False)
    assert answer.body is not None
    await answer.body.aclose()


async def test_the_checksums_of_an_object_that_was_read_in_parts_are_requested_once(room: Engine) -> None:
    room.origin.put(REF, LARGE, (CHECKSUM,))
    await room.range(0, 10)
    for _ in range(2):
        assert has_checksums(await whole(room))
    assert room.origin.count("HEAD") == 1


async def test_a_read_that_wants_checksums_learns_that_the_object_was_overwritten(room: Engine) -> None:
    room.origin.put(REF, LARGE, (CHECKSUM,))
    await room.range(0, 10)
    room.origin.put(REF, SMALL, (CHECKSUM,))
    assert has_checksums(await whole(room, REF, SMALL)), "the HEAD described a newer version"


async def test_an_unknown_empty_object_costs_one_get_and_one_head(room: Engine) -> None:
    room.origin.put(REF, b"", (CHECKSUM,))
    assert has_checksums(await whole(room, REF, b""))
    assert sorted(questions(room)) == ["GET part", "HEAD"]


async def test_with_freshness_always_no_read_joins_an_older_lookup(tmp_path: Path) -> None:
    with engine(tmp_path, freshness="always") as room:
        room.origin.put(REF, RAMP[:100])
        gate = asyncio.Event()
        room.origin.faults = [Fault(gate=gate, answer_first=True)]
        before = asyncio.create_task(room.get())
        while not room.origin.log:
            await asyncio.sleep(0)
        room.origin.put(REF, SMALL)
        assert await room.get() == SMALL
        gate.set()
        assert await before == RAMP[:100], "the request came before the write"
        await room.tasks.settle()


async def test_with_freshness_always_the_bytes_still_come_once(tmp_path: Path) -> None:
    with engine(tmp_path, freshness="always") as room:
        room.origin.put(REF, LARGE)
        gate = asyncio.Event()
        room.origin.faults = [Fault(times=None, gate=gate)]
        readers = [asyncio.create_task(room.get()) for _ in range(20)]
        while room.origin.count() < 20:
            await asyncio.sleep(0)
        assert (room.origin.count("GET"), room.origin.count("HEAD")) == (1, 19)
        gate.set()
        assert await asyncio.gather(*readers) == [LARGE] * 20
        assert room.origin.body_bytes == len(LARGE)
        await room.tasks.settle()


MODIFIED = ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")


@pytest.mark.parametrize(("stated_at", "heads"), [("00:00:01", 1), ("00:00:02", 0)])
@pytest.mark.parametrize("headers", [{}, MODE])
async def test_a_list_confirms_a_version_only_if_it_was_older_than_the_resolution_of_its_date(
    room: Engine, headers: dict[str, str], stated_at: str, heads: int
) -> None:
    etag = room.origin.put(REF, LARGE, (MODIFIED, ("date", f"Thu, 01 Jan 2026 {stated_at} GMT")))
    await taken(await room.reads.get(REF, headers))
    await room.tasks.settle()
    room.origin.log.clear()
    room.clock.advance(50)
    listed = ListedObject(REF.key, len(LARGE), etag, "2026-01-01T00:00:00.9Z")
    room.versions.listed(REF.bucket, [listed], room.versions.mark())
    room.clock.advance(50)
    await taken(await room.reads.get(REF, {}))
    assert questions(room) == ["HEAD"] * heads


async def test_a_read_that_wants_checksums_beside_one_that_does_not_brings_no_byte_twice(room: Engine) -> None:
    room.origin.put(REF, LARGE, (CHECKSUM,))
    gate = asyncio.Event()
    room.origin.faults = [Fault(times=2, gate=gate)]
    plain = asyncio.create_task(room.get())
    while not room.origin.log:
        await asyncio.sleep(0)
    reading = asyncio.create_task(whole(room))
    while room.origin.count() < 2:
        await asyncio.sleep(0)
    gate.set()
    assert await plain == LARGE
    assert has_checksums(await reading)
    assert (room.origin.count("HEAD"), room.origin.count("GET")) == (1, 3), "one GET for each block"
    assert room.origin.body_bytes == len(LARGE)


async def version_before_its_get(room: Engine) -> tuple[asyncio.Task[bytes], asyncio.Event]:
    """A read whose GET hangs until the event, and a HEAD beside it that has given the version."""
    room.origin.put(REF, LARGE)
    head, get = asyncio.Event(), asyncio.Event()
    room.origin.faults = [Fault(method="HEAD", gate=head), Fault(method="GET", gate=get)]
    heading = asyncio.create_task(room.reads.head(REF, {}))
    while not room.origin.log:
        await asyncio.sleep(0)
    first = asyncio.create_task(room.get())
    while room.origin.count() < 2:
        await asyncio.sleep(0)
    head.set()
    await heading
    return first, get


@pytest.mark.parametrize("prefetched", [False, True])
async def test_a_head_that_is_answered_before_the_get_brings_no_byte_twice(room: Engine, prefetched: bool) -> None:
    first, get = await version_before_its_get(room)
    if prefetched:

        def begin(version: ObjectVersion) -> None:
            room.fills.fill(version, [0])

        second: asyncio.Task[object] = asyncio.create_task(room.fills.opened(REF, begin))
    else:
        second = asyncio.create_task(room.get())
    for _ in range(20):
        await asyncio.sleep(0)
    get.set()
    assert await first == LARGE
    await second
    assert room.origin.body_bytes == len(LARGE)


async def test_a_get_that_hangs_holds_a_read_of_a_known_version_no_longer_than_its_bound(
    room: Engine, bound: Bound
) -> None:
    first, get = await version_before_its_get(room)
    second = asyncio.create_task(room.get())
    await bound.begun.wait()
    bound.over.set()
    assert await second == LARGE
    get.set()
    assert await first == LARGE
    await room.tasks.settle()
    assert room.origin.given_up == ["question"]
