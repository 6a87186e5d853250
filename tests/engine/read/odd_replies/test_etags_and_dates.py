"""An origin whose ETag or date proves nothing: no answer mixes two contents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outrider.core.errors import VersionChanged
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion
from outrider.core.origin.oddities import Oddity
from outrider.engine.read.same_bytes import COMPARED_BLOCKS_MAX
from outrider.engine.read.version_answers import NotCacheable
from tests.support.engine import BLOCK, REF, Engine, bytes_of, pieces_of, taken
from tests.support.fakes import FakeReply, Stored, ramp

if TYPE_CHECKING:
    from outrider.ports import OriginRequest
from tests.engine.read.odd_replies.odd_port import (
    DATA,
    DATED,
    SIZE,
    SMALL,
    OddPort,
    as_it_is,
    asks,
    changed,
    refusal,
    uncached,
    whole,
)


@pytest.mark.parametrize("etag", ['"CJ+q/w=="', '"a,b"', '"\u00e9"', '"*"', '"[]{}"'])
async def test_an_etag_of_any_form_is_kept_replayed_and_compared(etag: str, room: Engine, origin: OddPort) -> None:
    origin.objects[REF] = Stored(DATA, etag)
    for _ in range(2):
        answer = await room.reads.head(REF, {})
        assert ("etag", etag) in answer.headers
        assert await whole(room) == DATA
        room.clock.advance(61)
    assert origin.body_bytes == SIZE
    if etag != '"*"':
        assert (await room.reads.head(REF, {"if-none-match": etag})).status == 304


@pytest.mark.parametrize(
    ("etag", "kind"),
    [(None, Oddity.ETAG_MISSING), ('W/"a"', Oddity.ETAG_WEAK), ('""', Oddity.ETAG_MALFORMED),
     ("", Oddity.ETAG_MALFORMED), ("a", Oddity.ETAG_MALFORMED), ('"a b"', Oddity.ETAG_MALFORMED)],
)  # fmt: skip
async def test_objects_without_a_validator_are_relayed_and_their_folder_is_not_asked_about(
    etag: str | None, kind: Oddity, room: Engine, origin: OddPort
) -> None:
    refs = [ObjectRef("train", f"odd/{number}.bin") for number in range(10)]
    for ref in refs:
        origin.objects[ref] = Stored(DATA, etag)
        with pytest.raises(NotCacheable):
            await room.get(ref)
    assert origin.count() == 3, "after three in a row, the others of their kind are forwarded at once"
    assert uncached(room, kind) == 10
    assert await whole(room) == DATA, "another folder may be better"
    room.clock.advance(61)
    for ref in refs:
        origin.put(ref, DATA)
        assert await whole(room, ref) == DATA


async def test_one_etag_for_two_contents_proves_nothing(room: Engine, origin: OddPort) -> None:
    origin.objects[REF] = Stored(DATA, '"constant"', DATED)
    assert await whole(room) == DATA
    origin.objects[SMALL] = Stored(DATA[:1000], '"constant"', DATED)
    with pytest.raises(NotCacheable):
        await room.get(SMALL)
    room.clock.advance(61)
    with pytest.raises(NotCacheable):
        await room.get()
    assert uncached(room, Oddity.ETAG_SHARED) == 2


async def test_one_etag_with_two_dates_proves_nothing(room: Engine, origin: OddPort) -> None:
    origin.objects[REF] = Stored(DATA, '"constant"', DATED)
    assert await whole(room) == DATA
    later = (("last-modified", "Thu, 01 Jan 2026 00:00:05 GMT"), DATED[1])
    origin.objects[REF] = Stored(DATA[::-1], '"constant"', later)
    room.clock.advance(61)
    with pytest.raises(NotCacheable):
        await room.get()


async def test_a_body_never_mixes_two_contents_under_one_etag(room: Engine, origin: OddPort) -> None:
    origin.objects[REF] = Stored(DATA, '"constant"', DATED)
    await room.range(0, 10)
    await room.tasks.settle()
    later = (("last-modified", "Thu, 01 Jan 2026 00:00:05 GMT"), DATED[1])
    origin.objects[REF] = Stored(DATA[::-1], '"constant"', later)
    with pytest.raises((VersionChanged, NotCacheable)):
        await room.get()


async def test_a_second_upload_is_another_version_also_with_the_same_hash(room: Engine, origin: OddPort) -> None:
    assert await whole(room) == DATA
    origin.put(REF, DATA, (("last-modified", "Thu, 01 Jan 2026 00:00:05 GMT"), DATED[1]))
    room.clock.advance(61)
    assert await whole(room) == DATA
    assert origin.body_bytes == 2 * SIZE
    assert await whole(room) == DATA
    assert origin.body_bytes == 2 * SIZE


async def test_another_etag_with_each_reply_is_found_out_at_the_second_read(room: Engine, origin: OddPort) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        if asks(request, "if-match"):
            return refusal(request, reply, 412)
        return changed(reply, add=(("etag", f'"{len(origin.log):032x}"'),))

    origin.odd = odd
    with pytest.raises(VersionChanged):
        await room.get()
    await room.tasks.settle()
    origin.put(REF, DATA[::-1], (("last-modified", "Thu, 01 Jan 2026 00:00:05 GMT"), DATED[1]))
    with pytest.raises(NotCacheable):
        await room.get()
    assert uncached(room, Oddity.ETAG_CHANGES) == 1


async def test_another_date_with_each_reply_is_found_out_at_the_second_read(room: Engine, origin: OddPort) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        now = f"Thu, 01 Jan 2026 00:00:{len(origin.log):02} GMT"
        return changed(reply, add=(("last-modified", now), ("date", now)))

    origin.odd = odd
    with pytest.raises(VersionChanged):
        await room.get()
    await room.tasks.settle()
    for pause_s in (0, 61):
        room.clock.advance(pause_s)
        with pytest.raises(NotCacheable):
            await room.get()
    assert uncached(room, Oddity.DATE_CHANGES) == 2


LATER: Headers = (("last-modified", "Thu, 01 Jan 2026 00:00:05 GMT"), DATED[1])


def kept_etag(origin: OddPort, data: bytes) -> None:
    """An overwrite at a store that does not change the ETag."""
    origin.objects[REF] = replace(origin.objects[REF], data=data, headers=LATER)


async def cached(room: Engine, start: int, stop: int) -> ObjectVersion:
    """The version of which these bytes were cached just now."""
    await room.range(start, stop)
    await room.tasks.settle()
    version = room.versions.fresh(REF)
    assert version is not None
    return version


@pytest.mark.parametrize("start", [0, BLOCK + 5])
async def test_an_upload_of_the_same_bytes_amid_a_read_cuts_it_not(start: int, room: Engine, origin: OddPort) -> None:
    await cached(room, start, start + 1000)
    origin.put(REF, DATA, LATER)
    for _ in range(2):
        assert await room.range(start, SIZE) == DATA[start:]
        await room.tasks.settle()
    assert origin.body_bytes == SIZE - start // BLOCK * BLOCK + BLOCK, "the first block comes once more"
    assert uncached(room, Oddity.DATE_CHANGES) == 0


async def test_before_the_first_byte_a_newer_date_is_a_newer_version(room: Engine, origin: OddPort) -> None:
    await cached(room, 0, 10)
    origin.put(REF, DATA, LATER)
    answer = await room.reads.get(REF, {"range": f"bytes={BLOCK}-{BLOCK + 9}"})
    assert dict(answer.headers)["last-modified"] == dict(LATER)["last-modified"]
    assert await taken(answer) == DATA[BLOCK : BLOCK + 10]


async def test_an_etag_that_is_kept_over_an_overwrite_mixes_no_contents(room: Engine, origin: OddPort) -> None:
    await cached(room, 0, 10)
    kept_etag(origin, DATA[::-1])
    with pytest.raises(VersionChanged):
        await room.get()
    await room.tasks.settle()
    assert await whole(room) == DATA[::-1]


async def test_what_was_sent_before_a_reply_was_resumed_is_not_known_to_be_the_same(
    room: Engine, origin: OddPort
) -> None:
    version = await cached(room, 0, 2 * BLOCK)
    kept_etag(origin, DATA[:BLOCK][::-1] + DATA[BLOCK:])
    with pytest.raises(VersionChanged):
        [bytes_of(piece) async for piece in room.reads.resume(version, Extent(BLOCK, SIZE), 0)]


async def test_the_etag_that_a_reply_has_promised_is_that_of_all_its_bytes(room: Engine, origin: OddPort) -> None:
    await cached(room, 0, BLOCK)
    before = origin.objects[REF]

    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        origin.odd = as_it_is
        origin.put(REF, DATA[:BLOCK] + DATA[BLOCK:][::-1], LATER)
        return changed(reply, add=LATER[:1])

    origin.odd = odd
    with pytest.raises(VersionChanged):
        await room.get()
    assert origin.objects[REF].etag != before.etag


async def test_a_read_is_cut_where_its_blocks_are_not_here_to_be_compared(room: Engine, origin: OddPort) -> None:
    version = await cached(room, 0, 2 * BLOCK)
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    pieces = pieces_of(answer.body)
    assert await anext(pieces) == DATA[:BLOCK]
    assert await anext(pieces) == DATA[BLOCK : 2 * BLOCK]
    kept_etag(origin, DATA)
    room.store.expel([room.layout.key(version, 0)])
    with pytest.raises(VersionChanged):
        await anext(pieces)
    await room.tasks.settle()
    assert origin.body_bytes == 2 * BLOCK, "nothing is fetched to be compared with nothing"


async def test_a_read_is_cut_where_too_much_was_sent_to_be_compared(room: Engine, origin: OddPort) -> None:
    sent = (COMPARED_BLOCKS_MAX + 1) * BLOCK
    origin.put(REF, data := ramp(sent + BLOCK), DATED)
    await cached(room, 0, sent)
    origin.put(REF, data, LATER)
    with pytest.raises(VersionChanged):
        await room.get()


async def test_a_read_that_was_cut_twice_by_new_versions_is_relayed(room: Engine, origin: OddPort) -> None:
    for number in range(2):
        origin.put(REF, DATA[: SIZE - number])
        await room.range(0, 10)
        await room.tasks.settle()
        origin.put(REF, bytes(reversed(DATA[: SIZE - number])))
        with pytest.raises(VersionChanged):
            await room.get()
        room.versions.forget(REF)
    with pytest.raises(NotCacheable):
        await room.get()
    assert room.metrics.value("outrider_uncached_reads_total", reason="changing") == 1
