"""An origin that names no length, encodes bytes on the way, or sends more than it names."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.core.origin.oddities import Oddity
from outrider.engine.read.version_answers import NotCacheable
from tests.support.engine import BLOCK, Engine
from tests.support.fakes import FakeReply, Fault

if TYPE_CHECKING:
    from outrider.ports import OriginRequest
from tests.engine.read.odd_replies.odd_port import DATA, SMALL, OddPort, changed, met, uncached, whole


def without_length(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return changed(reply, drop=("content-length",), content_length=None) if request.method == "GET" else reply


async def test_a_body_of_unknown_length_is_kept_where_head_states_the_size(room: Engine, origin: OddPort) -> None:
    origin.odd, origin.ignore_range = without_length, True
    for _ in range(2):
        assert await whole(room, SMALL) == DATA[:1000]
    assert origin.count() == 2
    origin.ignore_range = False
    assert await whole(room) == DATA
    assert met(room, Oddity.LENGTH_UNKNOWN) == 1


async def test_a_body_of_unknown_length_that_is_cut_is_not_kept(room: Engine, origin: OddPort) -> None:
    origin.ignore_range = True

    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        return replace(without_length(request, reply), body=reply.body[: len(reply.body) // 2])

    origin.odd = odd
    with pytest.raises(Exception, match="how long a body is"):
        assert await room.get(SMALL) != DATA[:1000]
    await room.tasks.settle()
    assert len(room.store) == 0


async def test_a_body_of_unknown_length_and_size_is_relayed(room: Engine, origin: OddPort) -> None:
    origin.ignore_range = True
    origin.odd = lambda request, reply: changed(reply, drop=("content-length",), content_length=None)
    with pytest.raises(NotCacheable):
        await room.get(SMALL)
    assert uncached(room, Oddity.LENGTH_UNKNOWN) == 1


async def test_bytes_that_are_encoded_on_the_way_are_not_mixed_with_others(room: Engine, origin: OddPort) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    origin.odd = lambda request, reply: changed(reply, add=(("content-encoding", "gzip"),))
    with pytest.raises(NotCacheable):
        await room.range(3 * BLOCK, 3 * BLOCK + 5)
    assert uncached(room, Oddity.ENCODED) == 1


@pytest.mark.parametrize("status", [203, 204, 205, 304])
async def test_a_status_that_no_s3_sends_is_relayed(status: int, room: Engine, origin: OddPort) -> None:
    origin.odd = lambda request, reply: changed(reply, status=status)
    with pytest.raises(NotCacheable):
        await room.get()
    assert uncached(room, Oddity.STATUS_ODD) == 1
    assert len(room.store) == 0


async def test_bytes_beyond_those_that_a_206_names_are_dropped(room: Engine, origin: OddPort) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        if reply.status != 206:
            return reply
        return changed(reply, drop=("content-length",), content_length=None, body=reply.body + b"more")

    origin.odd, origin.range_bytes_max = odd, BLOCK // 2
    assert await whole(room) == DATA
    assert await whole(room) == DATA


async def test_a_reply_that_proves_nothing_once_is_followed_by_another(room: Engine, origin: OddPort) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    origin.faults = [Fault(shift=1)]
    assert await whole(room) == DATA
    await asyncio.sleep(0)
    assert room.metrics.total("outrider_uncached_reads_total") == 0
