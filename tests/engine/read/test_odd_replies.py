"""Replies unlike AWS's: bytes are kept only where the reply proves which they are, and everything else is relayed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from outrider.core.errors import OriginBroke, VersionChanged
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.fill.reply_proof import Unproved
from outrider.engine.read.same_bytes import COMPARED_BLOCKS_MAX
from outrider.engine.read.version_answers import NotCacheable
from tests.support.engine import BLOCK, REF, Engine, as_large, by_threads, bytes_of, engine, pieces_of, taken
from tests.support.fakes import RAMP, FakeOrigin, FakeReply, Fault, Stored, ramp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from outrider.ports import OriginRequest

SIZE = 4 * BLOCK + 7
DATA = RAMP[:SIZE]
SMALL = ObjectRef("train", "small.bin")
DATED: Headers = (("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"), ("date", "Thu, 01 Jan 2026 00:00:09 GMT"))
Odd = "Callable[[OriginRequest, FakeReply], FakeReply]"


def as_it_is(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return reply


@dataclass(slots=True)
class OddPort(FakeOrigin):
    """`odd` changes each reply about an object."""

    odd: Callable[[OriginRequest, FakeReply], FakeReply] = field(default=as_it_is)

    async def ask(self, request: OriginRequest) -> FakeReply:
        reply = await FakeOrigin.ask(self, request)
        try:
            return self.odd(request, reply)
        except OriginBroke:
            reply.close()
            raise

    def gets(self) -> list[tuple[str, str]]:
        """The method of each request, and its Range."""
        return [(request.method, dict(request.headers).get("range", "")) for request in self.log]


def changed(reply: FakeReply, *, drop: tuple[str, ...] = (), add: Headers = (), **fields: object) -> FakeReply:
    names = {*drop, *(name for name, _ in add)}
    headers = tuple(pair for pair in reply.headers if pair[0] not in names) + add
    return replace(reply, headers=headers, **fields)  # type: ignore[arg-type]


def refusal(request: OriginRequest, reply: FakeReply, status: int) -> FakeReply:
    body = b"" if request.method == "HEAD" else b"<Error><Code>Odd</Code></Error>"
    return FakeReply(status, (("content-type", "application/xml"),), len(body), body, None, reply.origin)


def asks(request: OriginRequest, name: str) -> bool:
    return name in dict(request.headers)


@pytest.fixture
def origin() -> OddPort:
    origin = OddPort(chunk_bytes=10_000)
    origin.put(REF, DATA, DATED)
    origin.put(SMALL, DATA[:1000], DATED)
    return origin


@pytest.fixture(params=[as_large, by_threads])
async def room(request: pytest.FixtureRequest, tmp_path: Path, origin: OddPort) -> AsyncIterator[Engine]:
    with engine(tmp_path, origin, buffer_bytes=request.param) as made:
        yield made
        await made.tasks.settle()
        assert origin.under_way == 0


def met(room: Engine, kind: Oddity) -> float:
    return room.metrics.value("outrider_origin_oddities_total", kind=kind.label)


def uncached(room: Engine, kind: Oddity) -> float:
    return room.metrics.value("outrider_uncached_reads_total", reason=kind.label)


async def whole(room: Engine, ref: ObjectRef = REF) -> bytes:
    found = await room.get(ref)
    await room.tasks.settle()
    return found


# -- replies to a Range -----------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("told", [True, False])
async def test_a_200_with_the_part_alone_and_no_content_range_is_never_trusted(
    start: int, told: bool, room: Engine, origin: OddPort
) -> None:
    def odd(request: OriginRequest, reply: FakeReply) -> FakeReply:
        if reply.status != 206:
            return reply
        length = reply.content_length if told else None
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
async def test_a_206_that_does_not_tell_its_bytes_is_relayed_and_not_asked_for_again(
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


async def test_an_origin_that_ignores_range_gives_a_whole_object_once(room: Engine, origin: OddPort) -> None:
    origin.ignore_range = True
    assert await whole(room) == DATA
    assert origin.count("GET") == 1
    assert await room.range(BLOCK + 5, 3 * BLOCK) == DATA[BLOCK + 5 : 3 * BLOCK]
    assert origin.body_bytes == SIZE
    assert await whole(room, SMALL) == DATA[:1000]
    exact = ObjectRef("train", "exact.bin")
    origin.put(exact, DATA[:BLOCK])
    for _ in range(2):
        assert await whole(room, exact) == DATA[:BLOCK], "a HEAD tells that it is no part"
    assert origin.count() == 4


async def test_a_block_that_was_evicted_costs_one_get_where_range_is_ignored(room: Engine, origin: OddPort) -> None:
    origin.ignore_range = True
    assert await whole(room) == DATA
    keys = room.store.blocks_of(lambda ref: ref == REF)
    await room.store.drop(keys[1:4])
    before = origin.body_bytes
    assert await whole(room) == DATA
    assert origin.body_bytes - before <= SIZE
    assert origin.count("GET") == 2


# -- request headers that are refused ---------------------------------------------------------------------------


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


# -- HEAD -------------------------------------------------------------------------------------------------------


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
async def test_where_head_does_not_tell_a_version_is_confirmed_by_one_byte(
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


async def test_a_head_that_is_refused_for_want_of_rights_is_no_oddity(room: Engine, origin: OddPort) -> None:
    origin.odd = lambda request, reply: refusal(request, reply, 403)
    with pytest.raises(OriginRefused):
        await room.reads.head(REF, {})
    assert origin.count() == 1


# -- validators -------------------------------------------------------------------------------------------------


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


# -- lengths and encodings --------------------------------------------------------------------------------------


def without_length(request: OriginRequest, reply: FakeReply) -> FakeReply:
    return changed(reply, drop=("content-length",), content_length=None) if request.method == "GET" else reply


async def test_a_body_of_unknown_length_is_kept_where_head_tells_the_size(room: Engine, origin: OddPort) -> None:
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
    with pytest.raises(Exception, match=r"shorter|other|not tell"):
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
