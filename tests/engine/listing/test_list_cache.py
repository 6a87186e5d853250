"""The LIST cache: pages are cached only by a rule, only for its time, and never past a write through the proxy."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.operation import ForgetScope, Operation, OperationKind, classify
from outrider.engine.listing.list_cache import ListCache
from outrider.ports import Chunks, Name
from tests.support.fakes import FakeClock

PAGE = b"<ListBucketResult/>" * 10
TTL_S = 60.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def list_cache(clock: FakeClock) -> ListCache:
    return ListCache(lambda prefix: TTL_S if prefix.startswith("train/") else None, clock, 1000, MemoryBudget(1 << 20))


def a_list(target: str = "/train?list-type=2&prefix=a/", headers: Headers = ()) -> Operation:
    return classify("GET", target, headers)


async def chunks_of(body: bytes) -> Chunks:
    for at in range(0, len(body), 7):
        yield body[at : at + 7]


async def keep(
    list_cache: ListCache, operation: Operation, body: bytes = PAGE, headers: Headers = (), *,
    written_meanwhile: Name | None = None,
) -> None:  # fmt: skip
    key = list_cache.key_of(operation, ())
    assert key is not None
    mark = list_cache.mark()
    if written_meanwhile is not None:
        list_cache.forget(written_meanwhile)
    async with aclosing(list_cache.keeping(operation, key, mark, headers, chunks_of(body))) as chunks:
        assert b"".join([chunk async for chunk in chunks]) == body


def found(list_cache: ListCache, operation: Operation) -> bytes | None:
    key = list_cache.key_of(operation, ())
    assert key is not None
    page = list_cache.get(key)
    return None if page is None else page.body


async def test_a_page_that_varies_with_the_client_is_not_cached(list_cache: ListCache) -> None:
    await keep(list_cache, a_list(), headers=(("vary", "Origin"), ("vary", "*")))
    assert found(list_cache, a_list()) is None
    await keep(list_cache, a_list(), headers=(("vary", "Origin"), ("vary", "Accept-Encoding")))
    assert found(list_cache, a_list()) == PAGE


async def test_a_page_is_cached_until_its_ttl_ends(list_cache: ListCache, clock: FakeClock) -> None:
    await keep(list_cache, a_list())
    assert found(list_cache, a_list("/train?prefix=a%2F&list-type=2")) == PAGE, (
        "the order of the query's fields must not matter"
    )
    assert found(list_cache, a_list("/train?list-type=2&prefix=b/")) is None
    await keep(list_cache, a_list("/train?prefix=b&prefix=a"))
    assert found(list_cache, a_list("/train?prefix=a&prefix=b")) is None, (
        "the order of a field that comes twice matters"
    )
    clock.now += TTL_S - 0.1
    assert found(list_cache, a_list()) == PAGE
    clock.now += 0.1
    assert found(list_cache, a_list()) is None


async def test_a_write_to_the_bucket_forgets_its_pages_and_no_others(list_cache: ListCache) -> None:
    await keep(list_cache, a_list())
    list_cache.forget("other")
    assert found(list_cache, a_list()) == PAGE
    list_cache.forget("train")
    assert found(list_cache, a_list()) is None


IN, OUTSIDE = ObjectRef("train", "a/1"), ObjectRef("train", "ckpt/a/1")


@pytest.mark.parametrize(
    ("written", "target", "is_dropped"),
    [
        ("train", "/train?prefix=a/", True), (IN, "/train?prefix=a/", True), (IN, "/train?prefix=a/1", True),
        (IN, "/train", True), (IN, "/train?prefix=", True), (IN, "/train?prefix=b&prefix=a", True),
        (IN, "/train?prefix=a/&start-after=a/2", True), (ObjectRef("tenant:train", "a/1"), "/train?prefix=a/", True),
        (OUTSIDE, "/train?prefix=a/", False), (OUTSIDE, "/train?prefix=ckpt/b", False), (OUTSIDE, "/train", True),
        (ObjectRef("other", "a/1"), "/train?prefix=a/", False), ("other", "/train?prefix=a/", False),
    ],
)  # fmt: skip
async def test_a_write_drops_the_pages_that_could_show_it_also_those_on_their_way(
    written: Name, target: str, is_dropped: bool, list_cache: ListCache
) -> None:
    expected = None if is_dropped else PAGE
    await keep(list_cache, a_list(target), written_meanwhile=written)
    assert found(list_cache, a_list(target)) == expected
    await keep(list_cache, a_list(target))
    list_cache.forget(written)
    assert found(list_cache, a_list(target)) == expected
    await keep(list_cache, a_list(target))
    assert found(list_cache, a_list(target)) == PAGE


async def test_a_page_that_many_writes_came_past_is_not_cached(list_cache: ListCache) -> None:
    key = list_cache.key_of(a_list(), ())
    assert key is not None
    mark = list_cache.mark()
    for number in range(1001):
        list_cache.forget(ObjectRef("train", f"ckpt/{number}"))
    async with aclosing(list_cache.keeping(a_list(), key, mark, (), chunks_of(PAGE))) as chunks:
        assert b"".join([chunk async for chunk in chunks]) == PAGE
    assert list_cache.get(key) is None
    await keep(list_cache, a_list())
    assert found(list_cache, a_list()) == PAGE


async def test_a_compressed_page_is_not_cached(
    list_cache: ListCache,
) -> None:
    await keep(list_cache, a_list(), headers=(("content-type", "application/xml"), ("content-encoding", "gzip")))
    assert found(list_cache, a_list()) is None


async def test_an_incomplete_page_is_not_cached(list_cache: ListCache) -> None:
    key = list_cache.key_of(a_list(), ())
    assert key is not None
    async with aclosing(list_cache.keeping(a_list(), key, list_cache.mark(), (), chunks_of(PAGE))) as chunks:
        await anext(chunks)
    assert list_cache.get(key) is None


async def test_the_pages_have_a_limit_in_bytes(list_cache: ListCache) -> None:
    await keep(list_cache, a_list(), b"x" * 1001)
    assert found(list_cache, a_list()) is None
    for number in range(20):
        await keep(list_cache, a_list(f"/train?prefix={number}"), b"x" * 400)
    cached = [number for number in range(20) if found(list_cache, a_list(f"/train?prefix={number}"))]
    assert cached == [18, 19]


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/other?list-type=2", ()),
        ("/train/key", ()),
        ("/train?acl", ()),
        ("/train?list-type=2&tomorrow=1", ()),
        ("/train?list-type=2", (("origin", "https://page"),)),
        ("/train?list-type=2", (("x-amz-request-payer", "requester"),)),
        ("/train?list-type=2", (("x-amz-optional-object-attributes", "RestoreStatus"),)),
    ],
)
def test_only_a_plain_list_that_a_rule_names_is_cached(list_cache: ListCache, target: str, headers: Headers) -> None:
    assert list_cache.key_of(classify("GET", target, headers), headers) is None


def test_a_head_of_a_bucket_is_no_list(list_cache: ListCache) -> None:
    assert list_cache.key_of(Operation(OperationKind.FORWARD, "HEAD", "train", "", (), ForgetScope.NOTHING), ()) is None
