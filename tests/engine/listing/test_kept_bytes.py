"""The memory of kept LIST pages: what is counted is what they take, measured by tracemalloc."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from hashlib import md5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.model import Headers, ObjectRef
from outrider.engine.listing.kept_pages import KeptPage, KeptPages, ListingKey, may_show
from outrider.engine.read.version_rows import Mark

ENTRY = (
    "<Contents><Key>{0}{1:04}.jpg</Key><LastModified>2026-11-23T20:00:07.000Z</LastModified><ETag>&quot;{2}&quot;</ETag>"
    "<Size>{1}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def own(text: str) -> str:
    """A text of its own, as each request and reply brings."""
    return text.encode().decode()


def page_of(number: int, names: int) -> tuple[ListingKey, KeptPage]:
    """As S3 sends it, under a prefix of its own."""
    prefix = f"train/{number:07}/"
    entries = "".join(ENTRY.format(prefix, each, md5(f"{prefix}{each}".encode()).hexdigest()) for each in range(names))
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>train</Name><Prefix>{prefix}</Prefix><KeyCount>{names}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    ).encode()
    headers: Headers = (
        ("x-amz-id-2", f"{number:076}"), ("x-amz-request-id", f"{number:016}"),
        ("date", "Tue, 24 Nov 2026 00:00:00 GMT"), ("x-amz-bucket-region", "us-east-1"),
        ("content-type", "application/xml"), ("content-length", str(len(body))), ("server", "AmazonS3"),
    )  # fmt: skip
    query = (("delimiter", "/"), ("encoding-type", "url"), ("list-type", "2"), ("prefix", prefix))
    key = own("train"), tuple((own(name), own(value)) for name, value in query)
    headers = tuple((own(name), own(value)) for name, value in headers)
    return key, KeptPage(headers, body, Mark(1_000_000 + number, 0.5 + number), 60.0)


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("capacity_bytes", "names", "count"),
    [(1 << 20, 0, 1500), (1 << 20, 1, 1500), (1 << 20, 20, 1000), (1 << 20, 1000, 45)],
)
def test_pages_take_the_memory_that_they_may_be_they_small_or_large(
    capacity_bytes: int, names: int, count: int, traced: None
) -> None:
    pages, before, ratios = KeptPages(capacity_bytes), tracemalloc.get_traced_memory()[0], []
    for number in range(count):
        pages.keep(*page_of(number, names))
        if number % 10 == 0:
            ratios.append((tracemalloc.get_traced_memory()[0] - before) / capacity_bytes)
    assert pages.used_bytes <= capacity_bytes
    assert max(ratios) < 1.2
    assert ratios[-1] > 0.7


def test_the_keys_that_were_written_count_too(traced: None) -> None:
    pages, before = KeptPages(1 << 20), tracemalloc.get_traced_memory()[0]
    for number in range(600):
        pages.keep(*page_of(number, 0))
    for write in range(8):
        for number in range(600):
            pages.change(ObjectRef("train", f"train/{number:07}/{write:0500}"))
    assert pages.used_bytes <= 1 << 20
    # Tuples that the interpreter keeps for reuse are no page's.
    gc.collect()
    assert 0.7 < (tracemalloc.get_traced_memory()[0] - before) / (1 << 20) < 1.2


PREFIXES = st.sampled_from(["", "a", "a/", "a/b", "b", "b/"])
KEYS = st.tuples(
    st.sampled_from(["train", "tenant:train", "other"]),
    st.lists(st.tuples(st.just("prefix"), PREFIXES), max_size=2).map(tuple),
)
REFS = st.builds(ObjectRef, st.sampled_from(["train", "tenant:train"]), st.sampled_from(["a", "a/1", "a/b/1", "c"]))


@given(st.lists(st.tuples(st.sampled_from(["keep", "drop", "use"]), KEYS, REFS), max_size=60), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_a_write_changes_the_pages_that_may_show_it_and_no_others(
    steps: list[tuple[str, ListingKey, ObjectRef]], room: int
) -> None:
    """Beside a plain list of pages in the order of their use. Each write has a key of its own."""
    capacity_bytes = room * page_of(0, 0)[1].bytes_by(("tenant:train", (("prefix", "a/b"),) * 2))
    pages, model = KeptPages(capacity_bytes), dict[ListingKey, set[str]]()
    for written, (step, key, ref) in enumerate(steps):
        if step == "keep":
            pages.keep(key, page_of(0, 0)[1])
            model.pop(key, None)
            model[key] = set()
        elif step == "drop":
            pages.drop(key)
            model.pop(key, None)
        elif key in model:
            pages.used(key)
            model[key] = model.pop(key)
        ref = ObjectRef(ref.bucket, f"{ref.key}{written}")
        pages.change(ref)
        for each in [each for each in model if may_show(each, ref)]:
            model[each].add(ref.key)
            if len(model[each]) > 8:
                del model[each]
        kept = {each: page for each in model if (page := pages.get(each)) is not None}
        assert list(model)[len(model) - len(kept) :] == list(kept), "those that were used long ago are evicted"
        model = {each: model[each] for each in kept}
        assert {each: set(page.changed) for each, page in kept.items()} == model
        assert pages.used_bytes == sum(page.bytes_by(each) for each, page in kept.items()) <= capacity_bytes
        prefixes = {prefix for _, query in kept for prefix in dict(query).values() or [""]}
        assert {prefix for _, prefix in pages._by_prefix} >= prefixes
        assert bool(pages._by_prefix) == bool(pages._lengths) == bool(kept)
