"""Cached LISTs: the origin gets a client's LIST once, and then the cache answers it until a write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.s3.operation import classify
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.listing.lists import Lists
from outrider.engine.read.object_read import CacheStatus
from outrider.engine.write.passthrough import ForwardAnswer, Passthrough
from outrider.engine.write.upload import Upload
from tests.support.engine import Engine, engine
from tests.support.fakes import Fault

PAGE = b"<ListBucketResult/>" * 10
LIST = "/train?list-type=2&prefix=a/"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Engine]:
    with engine(tmp_path / "c") as room:
        room.origin.faults = [Fault(times=None, method="GET", status=200, body=PAGE)]
        yield room


@pytest.fixture
def passthrough(room: Engine, list_cache: ListCache) -> Passthrough:
    return Passthrough(room.origin, room.origin_reader, room.versions, list_cache.forget)


@pytest.fixture
def list_cache(room: Engine) -> ListCache:
    return ListCache(lambda prefix: 60.0, room.clock, 10_000, MemoryBudget(1 << 20))


@pytest.fixture
def lists(room: Engine, list_cache: ListCache, passthrough: Passthrough) -> Lists:
    return Lists(list_cache, passthrough, room.origin_reader)


async def ask(lists: Lists, target: str = LIST) -> ForwardAnswer:
    answer = await lists.answer(classify("GET", target, ()), (), Upload())
    assert answer is not None
    return answer


async def drained(answer: ForwardAnswer) -> bytes:
    body = b"".join([chunk async for chunk in answer.body])
    await answer.body.aclose()
    return body


async def test_the_second_list_is_answered_without_the_origin(lists: Lists, room: Engine) -> None:
    first = await ask(lists)
    assert (first.cache, await drained(first)) == (CacheStatus.BYPASS, PAGE)
    second = await ask(lists)
    assert (second.cache, second.status, second.length) == (CacheStatus.HIT, 200, len(PAGE))
    assert second.headers == first.headers
    assert await drained(second) == PAGE
    assert room.origin.count() == 1


async def test_a_write_through_the_proxy_is_seen_by_the_next_list(
    lists: Lists, passthrough: Passthrough, room: Engine
) -> None:
    await drained(await ask(lists))
    put = await passthrough.send(classify("PUT", "/train/a/1", ()), (), Upload(), None)
    await put.body.aclose()
    assert (await ask(lists)).cache is CacheStatus.BYPASS
    assert room.origin.count("GET") == 2


async def test_a_refusal_is_passed_on_and_not_cached(lists: Lists, room: Engine) -> None:
    room.origin.faults.insert(0, Fault(method="GET", status=403))
    assert (await ask(lists)).status == 403
    assert (await ask(lists)).status == 200
    assert room.origin.count() == 2


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_client_that_hangs_up_releases_the_connection_to_the_origin(
    lists: Lists, room: Engine, taken: int
) -> None:
    answer = await ask(lists)
    for _ in range(taken):
        await anext(answer.body)
    assert room.origin.under_way == 1
    await answer.body.aclose()
    assert room.origin.under_way == 0


@pytest.mark.parametrize("target", ["/train/a", "/train?acl", "/"])
async def test_a_request_that_is_no_list_is_left_to_the_passthrough(lists: Lists, room: Engine, target: str) -> None:
    assert await lists.answer(classify("GET", target, ()), (), Upload()) is None
    assert room.origin.count() == 0
