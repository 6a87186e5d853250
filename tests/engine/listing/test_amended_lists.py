"""A LIST that is answered from kept pages after writes is the one that S3 would send."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.model import ObjectRef
from outrider.core.s3.list_amendment import ListedFacts, amended
from outrider.core.s3.list_page import ListPage, parse_page
from outrider.core.s3.operation import Query, classify
from outrider.engine.listing.kept_pages import ListingKey
from outrider.engine.listing.list_cache import ListCache
from tests.engine.listing.test_list_cache import chunks_of
from tests.support.fakes import FakeClock

BUCKET = "train"


@dataclass
class ModelBucket:
    """S3 as its API reference describes it. `is_inclusive`: a token names the first key of the next page, as some
    stores do; otherwise the last name of the page before."""

    is_inclusive: bool = False
    objects: dict[str, ListedFacts] = field(default_factory=dict)
    writes: int = 0
    lists: int = 0

    def put(self, key: str) -> None:
        self.writes += 1
        minutes, second = divmod(self.writes, 60)
        date = f"2026-11-23T20:{minutes % 60:02}:{second:02}"
        self.objects[key] = ListedFacts(self.writes, f'"{self.writes:032x}"', date)

    def page(self, asked: dict[str, str]) -> bytes:
        self.lists += 1
        prefix, delimiter, token = (asked.get(name, "") for name in ("prefix", "delimiter", "continuation-token"))
        after = asked.get("start-after", "") if "list-type" in asked else asked.get("marker", "")
        limit, shown, last, rest = int(asked.get("max-keys", "1000")), list[str](), "", ""
        for key in sorted(self.objects):
            before, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            name = f"{prefix}{before}{delimiter}" if found else key
            is_behind = key > after if "list-type" in asked else name > after
            if token:
                is_behind = name >= token[1:] if self.is_inclusive else name > token[1:]
            if not key.startswith(prefix) or not is_behind or name == last:
                continue
            if len(shown) == limit:
                rest = name
                break
            last = name
            shown.append(name)
        objects = "".join(
            f"<Contents><Key>{name}</Key><LastModified>{facts.seconds}.000Z</LastModified>"
            f"<ETag>&quot;{facts.etag[1:-1]}&quot;</ETag><Size>{facts.size}</Size>"
            f"<StorageClass>STANDARD</StorageClass></Contents>"
            for name in shown if not (delimiter and name.endswith(delimiter)) and (facts := self.objects[name])
        )  # fmt: skip
        groups = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
                         for name in shown if delimiter and name.endswith(delimiter))  # fmt: skip
        way_on = f"T{rest if self.is_inclusive else last}"
        token_of = f"<NextContinuationToken>{way_on}</NextContinuationToken>" if rest and "list-type" in asked else ""
        marker = f"<NextMarker>{last}</NextMarker>" if rest and "list-type" not in asked and delimiter else ""
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{prefix}</Prefix>{token_of}{marker}<KeyCount>{len(shown)}</KeyCount>"
            f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(bool(rest)).lower()}</IsTruncated>{objects}{groups}"
            "</ListBucketResult>"
        ).encode()

    def all(self, prefix: str, delimiter: str, after: str) -> list[Any]:
        """All that a LIST shows, in one page."""
        asked = {"list-type": "2", "prefix": prefix, "delimiter": delimiter, "start-after": after, "max-keys": "100000"}
        self.lists -= 1
        return shown_in([read(self.page(asked))])


def read(body: bytes) -> ListPage:
    page = parse_page(body)
    assert page is not None
    return page


def shown_in(pages: list[ListPage]) -> list[Any]:
    return sorted(
        [(listed.key, listed.size, listed.etag, listed.modified) for page in pages for listed in page.objects]
        + [(group,) for page in pages for group in page.groups]
    )


class Client:
    """Walks a LIST through the cache, as `Lists` does."""

    def __init__(self, model: ModelBucket) -> None:
        self.model = model
        self.cache = ListCache(lambda prefix: 60.0, FakeClock(), 1 << 20, MemoryBudget(1 << 20))
        self.heads = self.hits = 0

    async def walk(self, asked: dict[str, str]) -> list[Any]:
        pages, way_on = [], dict[str, str]()
        while True:
            body = await self._page(asked | way_on)
            page = read(body)
            pages.append(page)
            assert len(pages) < 100
            limit, count = int(asked["max-keys"]), len(page.objects) + len(page.groups)
            assert count <= limit
            assert b"<KeyCount>%d<" % count in body
            if not page.is_truncated:
                return shown_in(pages)
            names = sorted([listed.key for listed in page.objects] + list(page.groups))
            marker = page.next_marker or names[-1]
            way_on = {"continuation-token": page.next_token} if page.next_token else {"marker": marker}

    async def _page(self, asked: dict[str, str]) -> bytes:
        operation = classify("GET", f"/{BUCKET}?" + "&".join(f"{name}={value}" for name, value in asked.items()), ())
        key = self.cache.key_of(operation, ())
        assert key is not None
        page = self.cache.get(key)
        if page is None and (names := self.cache.changed(key)) is not None:
            self.heads += len(names)
            page = self.cache.amend(key, self.cache.mark(), {name: self.model.objects.get(name) for name in names})
        if page is not None:
            self.hits += 1
            return page.body
        mark, body = self.cache.mark(), self.model.page(asked)
        async for _ in self.cache.keeping(key, mark, (), chunks_of(body)):
            pass
        return body

    def write(self, key: str, *, is_put: bool) -> None:
        self.cache.forget(ObjectRef(BUCKET, key))
        if is_put:
            self.model.put(key)
        else:
            self.model.objects.pop(key, None)
        self.cache.forget(ObjectRef(BUCKET, key))


KEYS = st.builds("{}{}{}".format, st.sampled_from(["", "a/", "b/", "a/b/"]), st.sampled_from("abcdkz"),
                 st.sampled_from(["", "0", "1", "5", "-", "."]))  # fmt: skip
ASKED = st.tuples(
    st.sampled_from(["", "a/", "a", "b/"]), st.sampled_from(["", "/"]), st.sampled_from(["", "a", "b/c", "k"]),
    st.sampled_from([2, 4, 7, 1000]), st.booleans(),
)  # fmt: skip


@given(st.lists(KEYS, min_size=4, max_size=40, unique=True), ASKED, st.booleans(), st.data())
@settings(max_examples=40, deadline=None)
async def test_a_walk_over_kept_pages_shows_what_the_bucket_has_after_each_write(
    keys: list[str], chosen: tuple[str, str, str, int, bool], is_inclusive: bool, data: st.DataObject
) -> None:
    prefix, delimiter, after, limit, is_second = chosen
    after = after if is_second else ""
    model = ModelBucket(is_inclusive)
    for key in keys:
        model.put(key)
    client = Client(model)
    asked = {"prefix": prefix, "delimiter": delimiter, "start-after": after, "max-keys": str(limit), "list-type": "2"}
    asked = {name: value for name, value in asked.items() if value and (is_second or name != "list-type")}
    assert await client.walk(asked) == model.all(prefix, delimiter, after)
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(1, 3))):
            key = data.draw(st.one_of(KEYS, st.sampled_from(keys)))
            client.write(key, is_put=data.draw(st.booleans()))
        assert await client.walk(asked) == model.all(prefix, delimiter, after)


async def listing_of(count: int, limit: int = 1000) -> tuple[Client, dict[str, str]]:
    client, asked = Client(ModelBucket()), {"list-type": "2", "prefix": "a/", "max-keys": str(limit)}
    for number in range(count):
        client.model.put(f"a/{number:04}")
    await client.walk(asked)
    return client, asked


@pytest.mark.parametrize(
    ("key", "is_put", "limit"),
    [("a/0005", True, 1000), ("a/0005", False, 1000), ("a/0005x", True, 1000), ("a/9", True, 1000),
     ("a/0", True, 1000), ("a/0014", True, 10), ("a/0014", False, 10), ("a/9", True, 10)],
)  # fmt: skip
async def test_a_write_of_one_object_costs_a_head_and_no_list(key: str, is_put: bool, limit: int) -> None:
    client, asked = await listing_of(35, limit)
    lists = client.model.lists
    client.write(key, is_put=is_put)
    assert await client.walk(asked) == client.model.all("a/", "", "")
    assert (client.model.lists, client.heads) == (lists, 1)
    assert await client.walk(asked) == client.model.all("a/", "", "")
    assert (client.model.lists, client.heads) == (lists, 1)


async def test_a_page_that_others_follow_keeps_a_name() -> None:
    client, asked = await listing_of(4, 1)
    asked.pop("list-type")
    await client.walk(asked)
    client.write("a/0001", is_put=False)
    assert await client.walk(asked) == client.model.all("a/", "", "")


async def test_writes_under_common_prefixes_show_them() -> None:
    client, asked = await listing_of(10)
    asked = {"list-type": "2", "delimiter": "/", "max-keys": "1000"}
    await client.walk(asked)
    lists = client.model.lists
    client.write("a/new", is_put=True)
    assert await client.walk(asked) == [("a/",)]
    client.write("b/1", is_put=True)
    assert await client.walk(asked) == client.model.all("", "/", "")
    assert client.model.lists == lists
    client.write("b/1", is_put=False)
    assert await client.walk(asked) == [("a/",)]
    assert client.model.lists == lists + 1, "other keys may be left under the prefix"


async def test_more_writes_than_are_worth_a_head_each_drop_the_page() -> None:
    client, asked = await listing_of(20)
    lists = client.model.lists
    for number in range(9):
        client.write(f"a/{number:04}", is_put=False)
    assert await client.walk(asked) == client.model.all("a/", "", "")
    assert (client.model.lists, client.heads) == (lists + 1, 0)


async def test_a_page_whose_object_is_written_while_a_head_is_under_way_is_dropped() -> None:
    client, asked = await listing_of(20)
    key: ListingKey = BUCKET, tuple(sorted(asked.items()))
    client.write("a/0003", is_put=True)
    changed, mark = client.cache.changed(key), client.cache.mark()
    assert changed == ["a/0003"]
    (name,) = changed
    facts = client.model.objects[name]
    client.write("a/0003", is_put=True)
    assert client.cache.amend(key, mark, {name: facts}) is None
    await client.walk(asked)
    client.write("a/0003", is_put=True)
    mark, facts = client.cache.mark(), client.model.objects[name]
    client.write("a/0004", is_put=False)
    assert client.cache.amend(key, mark, {name: facts}) is None, "another object was written meanwhile"
    assert await client.walk(asked) == client.model.all("a/", "", "")


@pytest.mark.parametrize("bucket", [BUCKET, f"tenant:{BUCKET}"])
async def test_a_write_while_a_head_is_under_way_counts_by_each_name_of_the_bucket(bucket: str) -> None:
    client, asked = await listing_of(20)
    key: ListingKey = BUCKET, tuple(sorted(asked.items()))
    client.write("a/0003", is_put=True)
    mark, facts = client.cache.mark(), client.model.objects["a/0003"]
    client.cache.forget(ObjectRef(bucket, "a/0003"))
    assert client.cache.amend(key, mark, {"a/0003": facts}) is None


@pytest.mark.parametrize("forgets", [ObjectRef(BUCKET, "a/0003"), BUCKET, None])
async def test_facts_that_are_older_than_a_page_that_came_meanwhile_do_not_amend_it(
    forgets: ObjectRef | str | None,
) -> None:
    """As those of a client whose HEADs take long, while another one has the page amended, or requests it anew."""
    client, asked = await listing_of(20)
    key: ListingKey = BUCKET, tuple(sorted(asked.items()))
    client.write("a/0003", is_put=True)
    mark, facts = client.cache.mark(), client.model.objects["a/0003"]
    client.model.put("a/0003")
    client.cache.forget_all() if forgets is None else client.cache.forget(forgets)
    assert await client.walk(asked) == client.model.all("a/", "", "")
    assert client.cache.amend(key, mark, {"a/0003": facts}) is None
    assert await client.walk(asked) == client.model.all("a/", "", "")


FACTS = ListedFacts(7, '"e7"', "2026-11-24T00:00:00")
QUERY: Query = (("list-type", "2"), ("prefix", "a/"))


def page_with(old: str, new: str, count: int = 4) -> bytes:
    model = ModelBucket()
    for number in range(count):
        model.put(f"a/{number}")
    return model.page(dict(QUERY)).replace(old.encode(), new.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [(".000Z", ".123Z"), ("<StorageClass>STANDARD", "<StorageClass>GLACIER"), ("a/1<", "a/%201<"), ("a/1<", "a/é<"),
     ("</Size>", "</Size><Owner><ID>o</ID></Owner>"), ("a/1<", "a/1 <"), ("a/1<", "a/0<"), ("<Size>2</Size>", ""),
     ("ListBucketResult", "ListVersionsResult"), ("</Contents>", "</Contents><Odd/>"),
     ("</Size>", "</Size><ChecksumAlgorithm>CRC32</ChecksumAlgorithm><Other/>")],
)  # fmt: skip
def test_a_page_of_a_form_that_is_not_known_is_not_amended(old: str, new: str) -> None:
    assert amended(page_with("", ""), QUERY, {"a/2": FACTS}, lambda name: False) is not None
    assert amended(page_with(old, new), QUERY, {"a/2": FACTS}, lambda name: False) is None


def test_a_page_with_few_objects_does_not_show_how_the_store_lists_dates() -> None:
    assert amended(page_with("", "", 2), QUERY, {"a/1": FACTS}, lambda name: False) is None
    assert amended(page_with("", "", 2), QUERY, {"a/1": None}, lambda name: False) is not None


@pytest.mark.parametrize(
    "query",
    [
        (*QUERY, ("prefix", "b/")),
        (*QUERY, ("marker", "a/0")),
        (*QUERY, ("start-after", "é")),
        (*QUERY, ("max-keys", "x")),
    ],
)
def test_a_page_of_an_odd_request_is_not_amended(query: Query) -> None:
    assert amended(page_with("", ""), query, {"a/2x": FACTS}, lambda name: False) is None


def test_a_page_with_an_object_by_the_name_of_a_common_prefix_is_not_amended() -> None:
    query: Query = (*QUERY, ("delimiter", "/"))
    assert amended(page_with("a/2<", "a/2/<"), query, {"a/2x/y": FACTS}, lambda name: False) is not None
    for facts in (FACTS, None):
        assert amended(page_with("a/2<", "a/2/<"), query, {"a/2/x": facts}, lambda name: False) is None


CHECKSUM = "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType><Size>"


def test_checksums_are_shown_as_the_store_shows_them() -> None:
    headers = (("etag", '"e"'), ("last-modified", "Tue, 24 Nov 2026 00:00:00 GMT"), ("x-amz-checksum-crc32", "AAAA=="))
    facts = ListedFacts.of((*headers, ("x-amz-checksum-type", "FULL_OBJECT")), 7)
    assert facts == ListedFacts(7, '"e"', "2026-11-24T00:00:00", "STANDARD", ("CRC32", "FULL_OBJECT"))
    page = amended(page_with("<Size>", CHECKSUM), QUERY, {"a/2": facts}, lambda name: False)
    assert page is not None
    assert CHECKSUM.encode() + b"7<" in page
    assert amended(page_with("", ""), QUERY, {"a/2": facts}, lambda name: False) is None


@pytest.mark.parametrize(
    "headers",
    [(("etag", '"e"'),), (("etag", 'W/"e"'), ("last-modified", "Tue, 24 Nov 2026 00:00:00 GMT")),
     (("etag", '"a&b"'), ("last-modified", "Tue, 24 Nov 2026 00:00:00 GMT")),
     (("etag", '"e"'), ("last-modified", "yesterday"))],
)  # fmt: skip
def test_a_reply_that_does_not_state_enough_gives_no_facts(headers: tuple[tuple[str, str], ...]) -> None:
    assert ListedFacts.of(headers, 7) is None
