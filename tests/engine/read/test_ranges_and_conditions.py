"""The bytes, the status and the headers that a GET or HEAD is answered with: ranges, conditions, checksums."""

from __future__ import annotations

import pytest

from outrider.core.errors import InvalidRange, PreconditionFailed
from outrider.core.model import ObjectRef
from outrider.engine.read.version_answers import NotCacheable
from tests.engine.read.five_blocks import DATA, SIZE
from tests.support.engine import BLOCK, REF, Engine, taken

pytestmark = pytest.mark.one_python


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
