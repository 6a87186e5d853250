"""The LIST cache: pages are cached only by a rule, only for its time, and never past a write through the proxy."""

from __future__ import annotations

import zlib
from contextlib import aclosing
from random import Random

import pytest

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.cluster.messages import ListedPage
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.operation import ForgetScope, Operation, OperationKind, classify
from outrider.engine.listing.kept_pages import KeptPage
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.read.version_rows import Mark
from outrider.ports import Chunks, Name
from tests.support.fakes import FakeClock

PAGE = b"<ListBucketResult/>" * 10
TTL_S = 60.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def a_list(target: str = "/train?list-type=2&prefix=a/", headers: Headers = ()) -> Operation:
    return classify("GET", target, headers)


def cost(target: str = "/train?list-type=2&prefix=a/", body: bytes = PAGE) -> int:
    """The bytes that a kept page counts for."""
    operation = a_list(target)
    assert operation.bucket is not None
    return KeptPage((), body, Mark(0, 0.0), TTL_S).bytes_by((operation.bucket, tuple(sorted(operation.query))))


def cache_of(capacity_bytes: int, clock: FakeClock) -> ListCache:
    ttl_s = {"train": TTL_S}
    return ListCache(lambda name: ttl_s.get(name.partition("/")[0]), clock, capacity_bytes, MemoryBudget(1 << 20))


@pytest.fixture
def list_cache(clock: FakeClock) -> ListCache:
    return cache_of(4 * cost(), clock)


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
    async with aclosing(list_cache.keeping(key, mark, headers, chunks_of(body))) as chunks:
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
    async with aclosing(list_cache.keeping(key, mark, (), chunks_of(PAGE))) as chunks:
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
    async with aclosing(list_cache.keeping(key, list_cache.mark(), (), chunks_of(PAGE))) as chunks:
        await anext(chunks)
    assert list_cache.get(key) is None


def of_member(age_s: float, body: bytes = PAGE, headers: Headers = ()) -> ListedPage:
    return ListedPage(age_s, headers, zlib.compress(body))


def taken(list_cache: ListCache, page: ListedPage) -> bytes | None:
    key = list_cache.key_of(a_list(), ())
    assert key is not None
    kept = list_cache.take(key, list_cache.mark(), page)
    assert kept is None or list_cache.get(key) is kept
    return None if kept is None else kept.body


async def test_the_page_of_a_member_is_as_old_as_the_member_says(list_cache: ListCache, clock: FakeClock) -> None:
    clock.now = 1000.0
    assert taken(list_cache, of_member(TTL_S)) is None
    assert taken(list_cache, of_member(TTL_S - 10, headers=(("etag", "x"),))) == PAGE
    clock.now += 9.9
    assert found(list_cache, a_list()) == PAGE
    clock.now += 0.1
    assert found(list_cache, a_list()) is None


@pytest.mark.parametrize("written", ["train", IN, None])
async def test_the_page_of_a_member_is_not_believed_if_it_is_older_than_a_write(
    written: Name | None, list_cache: ListCache, clock: FakeClock
) -> None:
    clock.now = 1000.0
    list_cache.forget_all() if written is None else list_cache.forget(written)
    clock.now += 10
    list_cache.forget(OUTSIDE)
    clock.now += 10
    assert taken(list_cache, of_member(20.0)) is None
    assert taken(list_cache, of_member(19.0)) == PAGE


async def test_the_page_of_a_member_whose_clock_is_slow_is_not_believed_past_a_write(
    list_cache: ListCache, clock: FakeClock
) -> None:
    clock.now = 1000.0
    list_cache.forget(IN)
    clock.now += 50.0
    assert taken(list_cache, of_member(49.97)) is None, "it may have been requested before the write"
    assert taken(list_cache, of_member(49.9)) == PAGE


async def test_what_is_no_whole_page_is_not_taken(list_cache: ListCache) -> None:
    whole = zlib.compress(PAGE)
    for packed in (b"", b"no zlib", whole[:-1], whole[: len(whole) // 2]):
        assert taken(list_cache, ListedPage(0.0, (), packed)) is None
    assert taken(list_cache, of_member(0.0, bytes(4 * 1024 * 1024 + 1))) is None, "unpacked, it is too long"


def numbered(number: int) -> str:
    return f"/train?prefix={number:03}"


async def test_the_pages_have_a_limit_in_bytes(clock: FakeClock) -> None:
    chance = Random(1)
    bodies = [chance.randbytes(400) for _ in range(20)]
    limit = 3 * cost(numbered(0), bodies[0]) - 1
    list_cache = cache_of(limit, clock)
    await keep(list_cache, a_list(), chance.randbytes(limit))
    assert found(list_cache, a_list()) is None, "its bytes cannot be compressed, and take some more than they are"
    for number, body in enumerate(bodies):
        await keep(list_cache, a_list(numbered(number)), body)
    cached = [number for number in range(20) if found(list_cache, a_list(numbered(number)))]
    assert cached == [18, 19]


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_page_may_take_all_that_pages_may_and_no_byte_more(beyond: int, clock: FakeClock) -> None:
    list_cache = cache_of(cost() - beyond, clock)
    await keep(list_cache, a_list())
    assert found(list_cache, a_list()) == (None if beyond else PAGE)


async def test_more_pages_are_kept_than_their_bytes_would_allow(clock: FakeClock) -> None:
    """A walk over more pages than are kept finds none of them the next time."""
    page = 1000 * PAGE
    limit = 20 * cost(numbered(0), page)
    assert limit < 20 * len(page) / 10
    list_cache = cache_of(limit, clock)
    for number in range(20):
        await keep(list_cache, a_list(numbered(number)), page)
    assert all(found(list_cache, a_list(numbered(number))) for number in range(20))


async def test_the_page_that_was_served_last_is_kept_longest_whatever_is_written(clock: FakeClock) -> None:
    list_cache = cache_of(3 * cost(numbered(0)), clock)
    for number in range(3):
        await keep(list_cache, a_list(numbered(number)))
    assert found(list_cache, a_list(numbered(0))) == PAGE
    list_cache.forget(ObjectRef("train", "001x"))
    await keep(list_cache, a_list(numbered(3)))
    assert [number for number in range(4) if found(list_cache, a_list(numbered(number)))] == [0, 2, 3]


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
