"""An origin that answers a Range oddly: with 200, with other bytes, or with a part that names none."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from outrider.core.model import ObjectRef
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.reply_proof import Unproved
from outrider.engine.read.version_answers import NotCacheable
from tests.support.engine import BLOCK, REF, Engine
from tests.support.fakes import FakeReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.ports import OriginRequest
from tests.engine.read.odd_replies.odd_port import (
    DATA,
    SIZE,
    SMALL,
    OddPort,
    as_it_is,
    asks,
    changed,
    met,
    uncached,
    whole,
)


def as_200(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return changed(reply, status=200) if reply.status == 206 else reply


@pytest.mark.parametrize("start", [0, BLOCK // 8, BLOCK + 5, 4 * BLOCK])
async def test_a_200_with_a_content_range_is_a_206(start: int, room: Engine, origin: OddPort) -> None:
    origin.odd = as_200
    assert await room.range(start, start + 1000) == DATA[start : start + 1000][: SIZE - start]
    await room.tasks.settle()
    for _ in range(2):
        assert await whole(room) == DATA
    assert origin.body_bytes <= SIZE
    assert met(room, Oddity.RANGE_AS_200) > 0
    assert uncached(room, Oddity.RANGE_AS_200) == 0


@pytest.mark.parametrize("start", [0, BLOCK // 8, BLOCK + 5, 4 * BLOCK])
@pytest.mark.parametrize("has_length", [True, False])
async def test_a_200_with_the_part_alone_and_no_content_range_is_never_trusted(
    start: int, has_length: bool, room: Engine, origin: OddPort
) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        if reply.status != 206:
            return reply
        length = reply.content_length if has_length else None
        return changed(reply, drop=("content-range", "content-length"), status=200, content_length=length)

    origin.odd = odd
    for _ in range(3):
        with suppress(NotCacheable, Unproved):
            assert await room.range(start, start + 100) == DATA[start : start + 100][: SIZE - start]
    assert await room.get(SMALL) == DATA[:1000]
    assert room.versions.stale(REF) is None or room.versions.stale(REF).size == SIZE  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content_range", "kind"),
    [("", Oddity.RANGE_UNPROVED), ("bytes 0-99/*", Oddity.RANGE_UNPROVED), ("0-99", Oddity.RANGE_UNPROVED),
     ("bytes 0-99/1000", Oddity.LENGTH_OTHER)],
)  # fmt: skip
async def test_a_206_that_does_not_state_its_bytes_is_relayed_and_not_asked_for_again(
    content_range: str, kind: Oddity, room: Engine, origin: OddPort
) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        drop = ("content-range",)
        add = (("content-range", content_range),) if content_range else ()
        return changed(reply, drop=drop, add=add) if reply.status == 206 else reply

    origin.odd = odd
    for _ in range(5):
        with pytest.raises(NotCacheable):
            await room.get()
    assert len(room.store) == 0
    assert origin.count() <= 5, "the reads after the first are forwarded without a question"
    assert uncached(room, kind) == 5
    room.clock.advance(61)
    origin.odd = as_it_is
    assert await whole(room) == DATA


@pytest.mark.parametrize("content_range", [f"bytes {SIZE}-{SIZE}/{SIZE}", f"bytes 0-{SIZE}/{SIZE}", "bytes 9-8/10"])
@pytest.mark.parametrize("start", [0, SIZE - 7])
async def test_a_content_range_that_no_object_of_its_size_has_is_a_fault_that_passes(
    start: int, content_range: str, room: Engine, origin: OddPort
) -> None:
    faults = 4

    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        nonlocal faults
        if reply.status != 206 or not faults:
            return reply
        faults -= 1
        return changed(reply, add=(("content-range", content_range),))

    if start:
        # Its version is known: the missing block is requested with all others on disk.
        assert await room.range(0, start) == DATA[:start]
        await room.tasks.settle()
    origin.odd = odd
    assert await whole(room) == DATA
    assert not faults
    assert not uncached(room, Oddity.RANGE_OTHER)
    assert not uncached(room, Oddity.RANGE_UNPROVED)


async def test_a_part_of_several_parts_is_relayed(room: Engine, origin: OddPort) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        kind = (("content-type", "multipart/byteranges; boundary=x"),)
        return changed(reply, drop=("content-range",), add=kind) if reply.status == 206 else reply

    origin.odd = odd
    with pytest.raises(NotCacheable):
        await room.get()
    assert uncached(room, Oddity.RANGE_MULTIPART) == 1


async def test_a_plain_get_that_is_answered_by_a_206_is_taken_for_what_it_says(room: Engine, origin: OddPort) -> None:
    await whole(room, SMALL)

    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        if request.method == "GET" and not asks(request, "range"):
            half = len(reply.body) // 2
            said = (("content-range", f"bytes 0-{half - 1}/{len(reply.body)}"), ("content-length", str(half)))
            return changed(reply, add=said, status=206, content_length=half, body=reply.body[:half])
        return reply

    origin.odd = odd
    other = ObjectRef("train", "other.bin")
    origin.put(other, DATA[5:1005])
    answer = await room.reads.get(other, {"x-amz-checksum-mode": "ENABLED"})
    assert answer.length == 1000
    assert answer.body is not None
    await answer.body.aclose()
    assert await whole(room, other) == DATA[5:1005]
    assert met(room, Oddity.RANGE_UNASKED) == 1


def stating_all(request: OriginRequest, reply: FakeReply) -> FakeReply:
    size = reply.content_length
    return changed(reply, add=(("content-range", f"bytes 0-{size - 1}/{size}"),)) if size else reply


def stating_all_by_206(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return changed(stating_all(request, reply), status=206) if asks(request, "range") else reply


@pytest.mark.parametrize("odd", [as_it_is, stating_all, stating_all_by_206])
async def test_an_origin_that_ignores_range_gives_a_whole_object_once(
    odd: Callable[[OriginRequest, FakeReply], FakeReply], room: Engine, origin: OddPort
) -> None:
    origin.ignore_range, origin.odd = True, odd
    assert await whole(room) == DATA
    assert origin.count("GET") == 1
    assert await room.range(BLOCK + 5, 3 * BLOCK) == DATA[BLOCK + 5 : 3 * BLOCK]
    assert origin.body_bytes == SIZE
    assert await whole(room, SMALL) == DATA[:1000]
    exact = ObjectRef("train", "exact.bin")
    origin.put(exact, DATA[:BLOCK])
    for _ in range(2):
        assert await whole(room, exact) == DATA[:BLOCK]
    assert origin.count("GET") == 3
    assert origin.count("HEAD") == (odd is as_it_is), "it shows that no part came, unless the reply says so itself"


async def test_a_block_that_was_evicted_costs_one_get_where_range_is_ignored(room: Engine, origin: OddPort) -> None:
    origin.ignore_range = True
    assert await whole(room) == DATA
    keys = room.store.blocks_of(lambda ref: ref == REF)
    await room.store.drop(keys[1:4])
    before = origin.body_bytes
    assert await whole(room) == DATA
    assert origin.body_bytes - before <= SIZE
    assert origin.count("GET") == 2
