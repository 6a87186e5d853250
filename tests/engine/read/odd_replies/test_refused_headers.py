"""An origin that refuses a request header of ours, checksum mode or If-Match, is asked without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outrider.core.errors import OriginBroke
from outrider.core.model import ObjectRef
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.refused import OriginRefused
from tests.support.engine import BLOCK, REF, Engine
from tests.support.fakes import FakeReply, Stored

if TYPE_CHECKING:
    from outrider.ports import OriginRequest
from tests.engine.read.odd_replies.odd_port import DATA, SIZE, SMALL, OddPort, as_it_is, asks, met, refusal, whole


@pytest.mark.parametrize("status", [400, 501])
async def test_an_origin_that_refuses_checksum_mode_is_asked_without_it(
    status: int, room: Engine, origin: OddPort
) -> None:
    origin.odd = lambda request, reply: (
        refusal(request, reply, status) if asks(request, "x-amz-checksum-mode") else reply
    )
    assert await whole(room) == DATA
    refused = origin.count("GET")
    assert await whole(room, SMALL) == DATA[:1000]
    assert (await room.reads.head(REF, {})).length == SIZE
    room.clock.advance(61)
    assert await whole(room) == DATA
    assert sum(asks(request, "x-amz-checksum-mode") for request in origin.log) == 1, "it is remembered"
    assert refused == 6
    assert met(room, Oddity.CHECKSUM_MODE_REFUSED) == 1


async def test_a_400_with_another_cause_is_no_sign_that_checksum_mode_is_refused(room: Engine, origin: OddPort) -> None:
    origin.odd = lambda request, reply: refusal(request, reply, 400)
    with pytest.raises(OriginRefused) as refused:
        await room.get()
    assert refused.value.status == 400
    origin.odd = as_it_is
    await whole(room)
    assert met(room, Oddity.CHECKSUM_MODE_REFUSED) == 0
    assert asks(origin.log[2], "x-amz-checksum-mode")


@pytest.mark.parametrize(("status", "kind"), [(501, Oddity.IF_MATCH_REFUSED), (412, Oddity.IF_MATCH_FAILS)])
async def test_an_origin_that_takes_no_if_match_is_read_without_it(
    status: int, kind: Oddity, room: Engine, origin: OddPort
) -> None:
    origin.odd = lambda request, reply: refusal(request, reply, status) if asks(request, "if-match") else reply
    assert await whole(room) == DATA
    assert await whole(room) == DATA
    assert met(room, kind) >= 1
    origin.log.clear()
    other = ObjectRef("train", "b.tar")
    origin.put(other, DATA[1:])
    assert await whole(room, other) == DATA[1:]
    assert not any(asks(request, "if-match") for request in origin.log), "it is remembered"


async def test_a_refused_if_match_is_looked_into_though_each_second_request_meets_a_closed_connection(
    room: Engine, origin: OddPort
) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        if len(origin.log) % 2 == 0:
            raise OriginBroke("the connection was closed before")
        return refusal(request, reply, 501) if asks(request, "if-match") else reply

    origin.odd = odd
    assert await room.range(0, BLOCK + 1) == DATA[: BLOCK + 1]
    assert met(room, Oddity.IF_MATCH_REFUSED) == 1


async def test_a_412_of_a_changed_version_costs_one_more_request(room: Engine, origin: OddPort) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    other = bytes(reversed(DATA))
    origin.put(REF, other)
    origin.log.clear()
    assert await room.range(3 * BLOCK, 3 * BLOCK + 1000) == other[3 * BLOCK : 3 * BLOCK + 1000]
    # With If-Match, without it, and the question that begins anew.
    assert origin.count() == 3, origin.gets()
    assert met(room, Oddity.IF_MATCH_FAILS) == 0


async def test_an_etag_that_no_header_can_carry_is_compared_in_the_reply(room: Engine, origin: OddPort) -> None:
    origin.objects[REF] = Stored(DATA, '"\udce9+/="')
    for _ in range(2):
        assert await whole(room) == DATA
    assert not any(asks(request, "if-match") for request in origin.log)
    assert origin.body_bytes == SIZE
