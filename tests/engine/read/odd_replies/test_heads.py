"""An origin whose HEAD has no size, a wrong size or another ETag, or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outrider.core.model import ObjectRef
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.refused import OriginRefused
from tests.support.engine import REF, Engine
from tests.support.fakes import FakeReply, Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from outrider.ports import OriginRequest
from tests.engine.read.odd_replies.odd_port import DATA, SMALL, OddPort, changed, met, refusal, whole


def head_without_size(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return changed(reply, drop=("content-length",), content_length=None) if request.method == "HEAD" else reply


def head_of_zero(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return changed(reply, add=(("content-length", "0"),), content_length=0) if request.method == "HEAD" else reply


def head_one_short(request: OriginRequest, reply: FakeReply) -> FakeReply:
    if request.method != "HEAD" or reply.content_length is None:
        return reply
    length = reply.content_length - 1
    return changed(reply, add=(("content-length", str(length)),), content_length=length)


def head_without_etag(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return changed(reply, drop=("etag",)) if request.method == "HEAD" else reply


def head_of_other_etag(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return changed(reply, add=(("etag", '"other"'),)) if request.method == "HEAD" else reply


def head_refused(status: int) -> Callable[[OriginRequest, FakeReply], FakeReply]:
    return lambda request, reply: refusal(request, reply, status) if request.method == "HEAD" else reply


ODD_HEADS = [
    (head_without_size, Oddity.HEAD_WITHOUT_SIZE), (head_of_zero, Oddity.HEAD_SIZE_ZERO),
    (head_one_short, Oddity.HEAD_SIZE_OTHER), (head_without_etag, Oddity.HEAD_WITHOUT_ETAG),
    (head_of_other_etag, Oddity.HEAD_ETAG_OTHER), (head_refused(403), Oddity.HEAD_REFUSED),
    (head_refused(405), Oddity.HEAD_REFUSED), (head_refused(501), Oddity.HEAD_REFUSED),
]  # fmt: skip


@pytest.mark.parametrize(("odd", "kind"), ODD_HEADS)
async def test_where_head_states_too_little_a_version_is_confirmed_by_one_byte(
    odd: Callable[[OriginRequest, FakeReply], FakeReply], kind: Oddity, room: Engine, origin: OddPort
) -> None:
    origin.odd = odd
    assert await whole(room) == DATA
    brought = origin.body_bytes
    for _ in range(3):
        room.clock.advance(61)
        assert await whole(room) == DATA
    # A byte each. The fake sends a whole body where nothing stops it.
    assert origin.body_bytes - brought <= 3
    assert origin.gets()[-2:] == [("GET", "bytes=0-0")] * 2, "no HEAD is sent in vain"
    assert met(room, kind) == 1
    assert room.metrics.total("outrider_uncached_reads_total") == 0


@pytest.mark.parametrize(("odd", "kind"), [pair for pair in ODD_HEADS if pair[0].__name__ != "<lambda>"])
async def test_a_head_of_a_client_before_the_first_get_costs_no_byte(
    odd: Callable[[OriginRequest, FakeReply], FakeReply], kind: Oddity, room: Engine, origin: OddPort
) -> None:
    origin.odd = odd
    for ref, data in ((REF, DATA), (SMALL, DATA[:1000])):
        await room.reads.head(ref, {})
        assert await whole(room, ref) == data
        assert (await room.reads.head(ref, {})).length == len(data)


async def test_an_empty_object_is_believed_of_a_get_or_of_its_etag(room: Engine, origin: OddPort) -> None:
    empty = ObjectRef("train", "empty")
    origin.put(empty, b"")
    assert (await room.reads.head(empty, {})).length == 0
    assert origin.count() == 1
    other = ObjectRef("train", "encrypted")
    origin.objects[other] = Stored(b"", '"9d41d8cd98f00b204e9800998ecf8427"')
    assert await whole(room, other) == b""
    room.clock.advance(61)
    assert await whole(room, other) == b""
    assert met(room, Oddity.HEAD_SIZE_ZERO) == 0


async def test_an_empty_object_is_believed_of_a_refused_range_that_states_its_etag(
    room: Engine, origin: OddPort
) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        reply = head_refused(405)(request, reply)
        return changed(reply, add=(("etag", '"0"'),)) if reply.status == 416 else reply

    origin.odd = odd
    empty = ObjectRef("train", "empty")
    origin.objects[empty] = Stored(b"", '"0"')
    for _ in range(2):
        assert await whole(room, empty) == b""
        room.clock.advance(61)
    assert origin.gets()[-1:] == [("GET", "bytes=0-0")]
    assert room.metrics.total("outrider_uncached_reads_total") == 0


async def test_a_head_that_is_refused_for_want_of_rights_is_no_oddity(room: Engine, origin: OddPort) -> None:
    origin.odd = lambda request, reply: refusal(request, reply, 403)
    with pytest.raises(OriginRefused):
        await room.reads.head(REF, {})
    assert origin.count() == 1
