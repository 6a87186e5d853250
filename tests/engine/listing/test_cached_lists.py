"""Cached LISTs: the origin gets a client's LIST once, and then the cache answers it until a write."""

from __future__ import annotations

import asyncio
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import ListedPage
from outrider.core.model import ObjectRef
from outrider.core.s3.operation import Query, classify
from outrider.engine.listing.kept_pages import ListingKey
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.listing.lists import Lists, MemberPages
from outrider.engine.read.object_read import CacheStatus
from outrider.engine.tasks.runtime import Runtime
from outrider.engine.write.passthrough import ForwardAnswer, Passthrough
from outrider.engine.write.upload import Upload
from tests.engine.listing.test_amended_lists import page_with
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
def memory() -> MemoryBudget:
    return MemoryBudget(6 << 20)


@pytest.fixture
def list_cache(room: Engine, memory: MemoryBudget) -> ListCache:
    return ListCache(lambda prefix: 60.0, room.clock, 1 << 20, memory)


@pytest.fixture
def patience() -> asyncio.Event:
    """Once set, clients have waited long enough for a page that another one requested."""
    return asyncio.Event()


@pytest.fixture
def runtime(room: Engine, patience: asyncio.Event) -> Runtime:
    return Runtime(room.tasks.spawn, room.clock, lambda _: patience.wait())


@pytest.fixture
def lists(room: Engine, list_cache: ListCache, passthrough: Passthrough, runtime: Runtime) -> Lists:
    return Lists(list_cache, passthrough, room.origin_reader, runtime)


class Elsewhere(MemberPages):
    """Another member owns all LISTs."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.has = ListedPage()
        self.requested = 0
        self.is_there = True

    def owner(self, key: ListingKey) -> Member | None:
        return Member("owner", "127.0.0.1:1", "", 1, "c") if self.is_there else None

    async def page(self, owner: Member, key: ListingKey) -> ListedPage | None:
        self.requested += 1
        await self.gate.wait()
        self.is_there = bool(self.has.packed)
        return self.has if self.has.packed else None


async def ask(lists: Lists, target: str = LIST) -> ForwardAnswer:
    answer = await lists.answer(classify("GET", target, ()), (), Upload())
    assert answer is not None
    return answer


async def drained(answer: ForwardAnswer) -> bytes:
    body = b"".join([chunk async for chunk in answer.body])
    await answer.body.aclose()
    return body


async def settled() -> None:
    """Let the loop run until everything that waits for no gate is done."""
    for _ in range(300):
        await asyncio.sleep(0)


async def cache_of(lists: Lists, target: str = LIST) -> CacheStatus:
    """The `x-cache` of an answer that must have the whole page."""
    answer = await ask(lists, target)
    assert (answer.status, await drained(answer)) == (200, PAGE)
    return answer.cache


async def test_the_second_list_is_answered_without_the_origin(lists: Lists, room: Engine) -> None:
    first = await ask(lists)
    assert (first.cache, await drained(first)) == (CacheStatus.BYPASS, PAGE)
    second = await ask(lists)
    assert (second.cache, second.status, second.length) == (CacheStatus.HIT, 200, len(PAGE))
    assert second.headers == first.headers
    assert await drained(second) == PAGE
    assert room.origin.count() == 1


async def test_headers_of_one_reply_reach_no_other_client_and_no_member(lists: Lists, room: Engine) -> None:
    of_page = (("content-type", "application/xml"), ("x-amz-bucket-region", "us-east-1"))
    of_reply = (("set-cookie", "a=1"), ("x-amz-request-id", "1"), ("x-amz-id-2", "2"))
    headers = of_page[1:] + of_reply
    room.origin.faults = [Fault(times=None, method="GET", status=200, body=PAGE, headers=headers)]
    first = await ask(lists)
    assert {*of_reply} <= {*first.headers}
    await drained(first)
    second = await ask(lists)
    assert (second.cache, second.headers) == (CacheStatus.HIT, of_page)
    await second.body.aclose()
    assert (await lists.for_member("train", (("list-type", "2"), ("prefix", "a/")))).headers == of_page


async def test_a_write_through_the_proxy_is_seen_by_the_next_list(
    lists: Lists, passthrough: Passthrough, room: Engine
) -> None:
    await drained(await ask(lists))
    put = await passthrough.send(classify("PUT", "/train/a/1", ()), (), Upload(), None)
    await put.body.aclose()
    assert (await ask(lists)).cache is CacheStatus.BYPASS
    assert room.origin.count("GET") == 2


@pytest.mark.parametrize("has", [True, False])
async def test_the_owner_of_a_list_is_asked_once_and_then_the_bucket(
    has: bool, room: Engine, list_cache: ListCache, passthrough: Passthrough, runtime: Runtime
) -> None:
    elsewhere = Elsewhere()
    elsewhere.has = ListedPage(1.0, (), zlib.compress(PAGE)) if has else ListedPage()
    lists = Lists(list_cache, passthrough, room.origin_reader, runtime, elsewhere)
    asking = [asyncio.create_task(cache_of(lists)) for _ in range(2)]
    await settled()
    elsewhere.gate.set()
    assert [await each for each in asking] == [CacheStatus.PEER if has else CacheStatus.BYPASS, CacheStatus.HIT]
    assert (elsewhere.requested, room.origin.count()) == (1, 0 if has else 1)


async def test_clients_that_waited_for_an_owner_that_failed_do_not_ask_it_again(
    room: Engine, list_cache: ListCache, passthrough: Passthrough, runtime: Runtime
) -> None:
    room.origin.faults = [Fault(times=None, method="GET", status=200, body=PAGE, headers=(("vary", "*"),))]
    elsewhere = Elsewhere()
    lists = Lists(list_cache, passthrough, room.origin_reader, runtime, elsewhere)
    asking = [asyncio.create_task(cache_of(lists)) for _ in range(3)]
    await settled()
    elsewhere.gate.set()
    assert [await each for each in asking] == [CacheStatus.BYPASS] * 3
    assert (elsewhere.requested, room.origin.count(), lists.under_way) == (1, 3, 0)


async def test_members_that_each_take_the_other_for_the_owner_of_a_list_wait_for_nobody(
    room: Engine, list_cache: ListCache, passthrough: Passthrough, runtime: Runtime
) -> None:
    elsewhere = Elsewhere()
    lists = Lists(list_cache, passthrough, room.origin_reader, runtime, elsewhere)
    asking = asyncio.create_task(cache_of(lists))
    await settled()
    query = (("list-type", "2"), ("prefix", "a/"))
    page = await lists.for_member("train", query)
    assert zlib.decompress(page.packed) == PAGE
    assert (await lists.for_member("train", query), elsewhere.requested, room.origin.count()) == (page, 1, 1)
    elsewhere.gate.set()
    assert await asking is CacheStatus.BYPASS


@pytest.mark.parametrize("query", [(("prefix", "a/"), ("acl", "")), (("tagging", ""),)])
async def test_a_member_gets_lists_alone(query: Query, lists: Lists, room: Engine) -> None:
    assert await lists.for_member("train", query) == ListedPage()
    assert room.origin.count() == 0


async def test_a_member_gets_no_page_that_the_bucket_refuses_or_cuts(lists: Lists, room: Engine) -> None:
    query = (("list-type", "2"), ("prefix", "a/"))
    for fault in (Fault(status=403), Fault(status=200, body=PAGE, break_after=10)):
        room.origin.faults.insert(0, fault)
        assert await lists.for_member("train", query) == ListedPage()
    assert (await lists.for_member("train", query)).packed


async def test_no_page_is_requested_for_a_member_while_memory_has_no_room_for_it(
    lists: Lists, room: Engine, memory: MemoryBudget
) -> None:
    query = (("list-type", "2"), ("prefix", "a/"))
    with memory.held((6 << 20) - 1):
        assert await lists.for_member("train", query) == ListedPage()
        assert room.origin.count() == 0, "the member asks the bucket"
    page = await lists.for_member("train", query)
    assert page.packed
    with memory.held(6 << 20):
        assert await lists.for_member("train", query) == page, "it is not unpacked"


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


# Longer than a page of 1,000 names mostly is, and compressed to next to nothing.
LARGE = b"<ListBucketResult>".ljust(3 << 20)


async def test_a_page_on_its_way_to_many_clients_is_in_memory_once(
    lists: Lists, room: Engine, memory: MemoryBudget
) -> None:
    room.origin.faults = [Fault(times=None, method="GET", status=200, body=LARGE)]
    await drained(await ask(lists))
    tracemalloc.start()
    try:
        answers = [await ask(lists) for _ in range(40)]
        assert {answer.cache for answer in answers} == {CacheStatus.HIT}
        pieces = [await anext(answer.body) for answer in answers]
        assert {len(piece) for piece in pieces} == {64 * 1024}, "TLS encrypts each piece as a whole"
        assert tracemalloc.get_traced_memory()[0] < memory.used_bytes + (1 << 20)
        assert memory.used_bytes == len(LARGE)
        del pieces
        for answer in answers:
            assert await drained(answer) == LARGE[64 * 1024 :]
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert memory.used_bytes == 0


async def test_a_kept_page_that_finds_no_room_in_memory_comes_from_the_bucket(
    lists: Lists, room: Engine, memory: MemoryBudget
) -> None:
    await cache_of(lists)
    with memory.held(6 << 20):
        assert [await cache_of(lists) for _ in range(3)] == [CacheStatus.BYPASS] * 3
    assert await cache_of(lists) is CacheStatus.HIT
    assert room.origin.count() == 4


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_client_that_hangs_up_gives_the_memory_of_a_kept_page_back(
    lists: Lists, memory: MemoryBudget, taken: int
) -> None:
    await cache_of(lists)
    answers = [await ask(lists) for _ in range(2)]
    assert memory.used_bytes == len(PAGE)
    for _ in range(taken):
        await anext(answers[0].body)
    for _ in range(2):
        await answers[0].body.aclose()
        assert memory.used_bytes == len(PAGE), "another client is sent it"
    assert await drained(answers[1]) == PAGE
    assert memory.used_bytes == 0


async def test_a_page_that_is_sent_when_it_is_dropped_is_sent_whole(
    lists: Lists, list_cache: ListCache, memory: MemoryBudget
) -> None:
    await cache_of(lists)
    answer = await ask(lists)
    list_cache.forget(ObjectRef("train", "a/1"))
    assert await cache_of(lists) is CacheStatus.BYPASS
    assert await cache_of(lists) is CacheStatus.HIT
    assert await drained(answer) == PAGE
    assert memory.used_bytes == 0


async def test_a_page_too_long_to_be_kept_is_passed_on_to_each_client(
    lists: Lists, room: Engine, memory: MemoryBudget
) -> None:
    long = LARGE.ljust((4 << 20) + 1)
    room.origin.faults = [Fault(times=None, method="GET", status=200, body=long)]
    for _ in range(2):
        answer = await ask(lists)
        assert (answer.cache, await drained(answer)) == (CacheStatus.BYPASS, long)
    assert memory.used_bytes == 0


async def test_of_many_clients_that_want_one_page_one_requests_it(lists: Lists, room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(times=None, method="GET", status=200, body=PAGE, gate=gate)]
    asking = [asyncio.create_task(cache_of(lists)) for _ in range(20)]
    other = asyncio.create_task(cache_of(lists, "/train?list-type=2&prefix=b/"))
    await settled()
    assert room.origin.count() == 2
    gate.set()
    assert [await each for each in asking] == [CacheStatus.BYPASS] + [CacheStatus.HIT] * 19
    assert await other is CacheStatus.BYPASS
    assert room.origin.count() == 2
    assert lists.under_way == 0


async def test_of_many_clients_that_want_a_page_after_a_write_one_has_it_amended(
    lists: Lists, list_cache: ListCache, room: Engine
) -> None:
    page = page_with("", "")
    room.origin.faults = [Fault(times=None, method="GET", status=200, body=page)]
    await drained(await ask(lists))
    list_cache.forget(ObjectRef("train", "a/1"))
    answers = await asyncio.gather(*[ask(lists) for _ in range(5)])
    assert {answer.cache for answer in answers} == {CacheStatus.HIT}
    for answer in answers:
        body = await drained(answer)
        assert (b"a/0<" in body, b"a/1<" in body) == (True, False)
    assert (room.origin.count("HEAD"), room.origin.count("GET")) == (1, 1)
    assert lists.under_way == 0


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault(times=None, method="GET", status=200, body=PAGE, headers=(("vary", "*"),)), 200),
        (Fault(times=None, method="GET", status=403, body=PAGE), 403),
    ],
)
async def test_a_page_that_was_not_kept_is_requested_by_each_client_and_none_waits_for_the_next(
    fault: Fault, status: int, lists: Lists, room: Engine
) -> None:
    first, others = asyncio.Event(), asyncio.Event()
    room.origin.faults = [replace(fault, times=1, gate=first), replace(fault, gate=others)]
    asking = [asyncio.create_task(ask(lists)) for _ in range(5)]
    await settled()
    assert room.origin.count() == 1
    first.set()
    answer = await asking[0]
    assert await drained(answer) == PAGE
    await settled()
    assert room.origin.count() == 5
    others.set()
    for answer in [await each for each in asking]:
        assert answer.status == status
        await drained(answer)
    assert lists.under_way == 0


async def test_a_client_that_leaves_takes_no_page_from_the_others(lists: Lists, room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults.insert(0, Fault(method="GET", status=200, body=PAGE, gate=gate))
    first, second = (asyncio.create_task(cache_of(lists)) for _ in range(2))
    await settled()
    assert room.origin.count() == 1
    first.cancel()
    assert await second is CacheStatus.BYPASS
    assert lists.under_way == 0


async def test_a_client_that_takes_its_page_slowly_holds_others_up_for_a_while_alone(
    lists: Lists, room: Engine, patience: asyncio.Event
) -> None:
    slow = await ask(lists)
    second = asyncio.create_task(cache_of(lists))
    await settled()
    assert room.origin.count() == 1
    patience.set()
    assert await second is CacheStatus.BYPASS
    assert await cache_of(lists) is CacheStatus.HIT
    assert await drained(slow) == PAGE
    assert lists.under_way == 0


async def test_a_client_that_takes_its_page_slowly_holds_members_up_for_less_long(
    room: Engine, list_cache: ListCache, passthrough: Passthrough, patience: asyncio.Event
) -> None:
    """The member gives this node up after four seconds."""
    waits_s: list[float] = []

    async def sleep(seconds: float) -> None:
        waits_s.append(seconds)
        await patience.wait()

    lists = Lists(list_cache, passthrough, room.origin_reader, Runtime(room.tasks.spawn, room.clock, sleep))
    slow = await ask(lists)
    member = asyncio.create_task(lists.for_member("train", (("list-type", "2"), ("prefix", "a/"))))
    await settled()
    patience.set()
    assert (await member).packed
    assert waits_s[0] <= 3.0
    await slow.body.aclose()
    assert lists.under_way == 0


async def test_a_write_while_a_page_is_requested_is_seen_by_the_clients_that_wait_for_it(
    lists: Lists, list_cache: ListCache, room: Engine
) -> None:
    gate = asyncio.Event()
    room.origin.faults.insert(0, Fault(method="GET", status=200, body=b"old", gate=gate))
    first = asyncio.create_task(ask(lists))
    await settled()
    assert room.origin.count() == 1
    list_cache.forget(ObjectRef("train", "a/1"))
    second = asyncio.create_task(cache_of(lists))
    await settled()
    gate.set()
    assert await drained(await first) == b"old"
    assert await second is CacheStatus.BYPASS
