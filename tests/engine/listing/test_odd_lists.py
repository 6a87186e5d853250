"""LISTs of stores that are not AWS's: the whole list comes, or an error that names the fault."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from html import escape
from itertools import count
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.errors import OriginBroke, SlowDown
from outrider.core.maintenance.object_list import ObjectList
from outrider.core.maintenance.progress import State
from outrider.core.model import ObjectRef
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.core.origin.hedging import Hedging
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.maintenance.warmup import Warmup
from outrider.metrics import Metrics
from outrider.ports import OriginRequest
from tests.support.engine import engine
from tests.support.fakes import FakeClock, FakeOrigin, FakeReply, no_wait_patience

KEYS = [f"a/{number:04d}+ %41\xe9&" for number in range(12)]


@dataclass(slots=True)
class ListOrigin(FakeOrigin):
    """A store whose LIST has knobs. `refuses`: the parameters that it answers with `refusal`."""

    keys: list[str] = field(default_factory=lambda: [*KEYS, "b/other"])
    page_keys: int = 5
    version: int = 2
    encodes: bool = True
    states_encoding: bool = True
    ways: str = "stated"
    """`stated`: a token or marker; `none`: neither; `stuck`: the same one each time, with the first page; `fresh`: a
    new one each time, with the first page."""
    heeds_last_key: bool = True
    heeds_prefix: bool = True
    refuses: tuple[str, ...] = ()
    refusal: int = 501
    entry: str = "<Contents><Key>{}</Key><Size>3</Size><ETag>&quot;e&quot;</ETag></Contents>"
    extra: str = ""
    empty_page_at: int | None = None
    tokens: count[int] = field(default_factory=count)

    async def ask(self, request: OriginRequest) -> FakeReply:
        if request.key or request.method != "GET":
            return await FakeOrigin.ask(self, request)
        self.log.append(request)
        await asyncio.sleep(0)
        self.under_way += 1
        query = dict(request.query)
        if any(name in query for name in self.refuses):
            return FakeReply(self.refusal, (), 0, b"", None, self)
        body = self.page(query).encode()
        return FakeReply(200, (("content-length", str(len(body))),), len(body), body, None, self)

    def page(self, query: dict[str, str]) -> str:
        version = 2 if self.version == 2 and query.get("list-type") == "2" else 1
        keys = [key for key in self.keys if not self.heeds_prefix or key.startswith(query["prefix"])]
        if version == 2:
            after = query.get("continuation-token", "").partition(":")[2] or query.get("start-after", "")
        else:
            after = query.get("marker", "")
        if not self.heeds_last_key or (self.ways in ("stuck", "fresh")):
            after = ""
        rest = [key for key in keys if key > after] if after else keys
        page, more = rest[: self.page_keys], len(rest) > self.page_keys
        encoded = self.encodes and query.get("encoding-type") == "url"
        shown = [quote_plus(key, safe="/") if encoded else escape(key) for key in page]
        way_on = ""
        if more and self.ways != "none":
            if version == 1:
                way_on = f"<NextMarker>{shown[-1]}</NextMarker>"
            else:
                mark = next(self.tokens) if self.ways == "fresh" else 0
                last = "" if self.ways == "stuck" else escape(page[-1])
                way_on = f"<NextContinuationToken>{mark}:{last}</NextContinuationToken>"
        if self.empty_page_at == len(self.log):
            shown, way_on = [], f"<NextContinuationToken>1:{escape(after)}</NextContinuationToken>"
        encoding = "<EncodingType>url</EncodingType>" if encoded and self.states_encoding else ""
        contents = "".join(self.entry.format(key) for key in shown)
        return (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{contents}{way_on}{self.extra}{encoding}"
            "</ListBucketResult>"
        )


async def listed(
    origin: ListOrigin, prefix: str = "a/", memory_bytes: int = 1 << 20, metrics: Metrics | None = None
) -> list[str]:
    reader = OriginReader(
        origin,
        no_wait_patience(),
        metrics or Metrics(),
        FillScheduler(AimdLimit(4), BackgroundLimit(4), FakeClock()),
        Hedging(),
    )
    enumerator = Enumerator(reader, MemoryBudget(memory_bytes))
    return [entry.key async for page in enumerator.pages("bkt", prefix) for entry in page]


WHOLE = [
    ListOrigin(),
    ListOrigin(encodes=False),
    ListOrigin(ways="none"),
    ListOrigin(ways="none", encodes=False),
    ListOrigin(version=1),
    ListOrigin(version=1, encodes=False),
    ListOrigin(version=1, ways="none"),
    ListOrigin(refuses=("encoding-type",)),
    ListOrigin(refuses=("list-type",), refusal=400),
    ListOrigin(refuses=("list-type",), ways="none"),
    ListOrigin(refuses=("list-type", "encoding-type"), refusal=400),
    ListOrigin(heeds_prefix=False),
    ListOrigin(page_keys=10_000),
    ListOrigin(page_keys=1),
    ListOrigin(entry="<Contents><Key>{}</Key></Contents>"),
    ListOrigin(entry="<Contents><Key>{}</Key><Size>1 KB</Size></Contents>"),
    ListOrigin(keys=[*KEYS[6:], *KEYS[:6]], page_keys=10_000),
]


@pytest.mark.parametrize("origin", WHOLE, ids=range(len(WHOLE)))
async def test_the_whole_list_comes_of_stores_that_differ_from_aws(origin: ListOrigin) -> None:
    assert sorted(await listed(origin)) == KEYS


FAULTY = [
    (ListOrigin(ways="none", heeds_last_key=False), "again"),
    (ListOrigin(version=1, heeds_last_key=False), "again"),
    (ListOrigin(ways="stuck"), "again"),
    (ListOrigin(ways="fresh"), "again"),
    (ListOrigin(ways="none", keys=KEYS[::-1]), "neither a continuation token nor a last key"),
    (ListOrigin(ways="none", entry=""), "neither a continuation token nor a last key"),
    (ListOrigin(ways="stuck", entry=""), "twice"),
    (ListOrigin(ways="fresh", entry=""), "more than 1000 pages"),
    (ListOrigin(extra="<CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes>"), "common prefixes"),
    (ListOrigin(keys=["a/\x01"], encodes=False), "no page of a LIST"),
    (ListOrigin(entry="<Contents><Size>3</Size></Contents>"), "no page of a LIST"),
]


@pytest.mark.parametrize(("origin", "why"), FAULTY, ids=range(len(FAULTY)))
async def test_a_list_that_is_not_whole_is_an_error_that_names_the_fault(origin: ListOrigin, why: str) -> None:
    with pytest.raises(OriginBroke, match=why):
        await listed(origin)


@pytest.mark.parametrize(
    ("origin", "odd"),
    [
        (ListOrigin(), {}),
        (ListOrigin(refuses=("encoding-type",)), {}),
        (ListOrigin(encodes=False), {"list_not_encoded": 3}),
        (ListOrigin(ways="none"), {"list_cut_short": 2}),
        (ListOrigin(version=1, ways="none"), {"list_cut_short": 2}),
    ],
)
async def test_pages_that_differ_from_aws_are_counted(origin: ListOrigin, odd: dict[str, int]) -> None:
    metrics = Metrics()
    await listed(origin, metrics=metrics)
    for kind in ("list_not_encoded", "list_cut_short"):
        assert metrics.value("outrider_origin_oddities_total", kind=kind) == odd.get(kind, 0)


async def test_a_page_may_be_empty_before_the_last() -> None:
    assert await listed(ListOrigin(empty_page_at=2)) == KEYS


async def test_a_key_that_looks_encoded_is_taken_as_it_is_where_the_store_does_not_say_so() -> None:
    assert await listed(ListOrigin(keys=["a/%41+b"], states_encoding=False, encodes=False)) == ["a/%41+b"]
    assert await listed(ListOrigin(keys=["a/\x01"])) == ["a/\x01"]


async def test_a_page_for_which_there_is_no_memory_is_our_own_error() -> None:
    with pytest.raises(SlowDown):
        await listed(ListOrigin(), memory_bytes=10)


@pytest.mark.parametrize("status", [400, 501, 403, 404])
async def test_a_store_that_refuses_each_form_of_a_list_has_refused_it(status: int) -> None:
    origin = ListOrigin(refuses=("prefix",), refusal=status)
    with pytest.raises(OriginRefused, match=str(status)):
        await listed(origin)
    assert len(origin.log) == (3 if status in (400, 501) else 1)


async def test_a_warm_up_whose_list_is_cut_short_is_not_done(tmp_path: Path) -> None:
    origin = ListOrigin(ways="none", heeds_last_key=False)
    for key in KEYS:
        origin.put(ObjectRef("bkt", key), b"abc")
    with engine(tmp_path / "c", origin) as room:
        now = room.clock()
        wanted = ObjectList((), (ObjectRef("bkt", "a/"),))
        warm_up = Warmup("", "", "mine", b"", now, wanted, lambda _: True, now, 0.0)
        room.warmup_runner.begin(warm_up)
        await room.tasks.settle()
    progress = warm_up.progress
    assert (progress.state, progress.objects) == (State.FAILED, 5)
    assert "does not go on" in progress.failures["s3://bkt/a/"]
