"""A GET whose origin refuses, ignores its range, or dies in mid-body: retries, resumed bodies, and cut answers."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest

from outrider.core.errors import OriginBroke, ServiceUnavailable
from outrider.core.model import Extent, ObjectRef
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.read.version_answers import NotCacheable
from tests.engine.read.five_blocks import DATA, SIZE
from tests.support.engine import BLOCK, REF, Engine, taken
from tests.support.fakes import Fault

pytestmark = pytest.mark.one_python


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
