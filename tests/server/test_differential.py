"""Differential test: the same requests to the bucket and through the proxy get answers that no client can distinguish.

`OUTRIDER_DIFFERENTIAL=10000` generates that many requests, `OUTRIDER_DIFFERENTIAL_SEED=N` others than the usual ones.
Each request goes to the bucket and, in several states of the cache, to the proxy.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.server.differential import (
    LISTED_KEYS,
    RAMP,
    BucketShape,
    Requester,
    Shape,
    Stored,
    bucket_shapes,
    difference,
    object_shapes,
    objects,
    seen,
)
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.rawhttp import Answer

# 200 take some seconds on two cores; 10,000 take minutes.
EXAMPLES = int(os.environ.get("OUTRIDER_DIFFERENTIAL", "200"))
SEED = int(os.environ.get("OUTRIDER_DIFFERENTIAL_SEED", "20261121"))
# One request in five is about a bucket: those are forwarded, so less can go wrong.
BUCKET_EXAMPLES = max(1, EXAMPLES // 5)
OBJECT_EXAMPLES = max(1, EXAMPLES - BUCKET_EXAMPLES)

NAME, LISTED, MISSING = "differential", "differential-listed", "differential-missing"

generated = settings(
    deadline=None,
    database=None,
    print_blob=False,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.timeout(120 + EXAMPLES)


class Pair:
    """The bucket and the proxy in front of it; each request goes to both."""

    def __init__(self, direct: Requester, proxied: Requester) -> None:
        self.direct = direct
        self.proxied = proxied
        self.numbers = itertools.count()
        self.x_cache: Counter[str] = Counter()

    def compare(self, wanted: Answer, got: Answer, when: str) -> None:
        self.x_cache[got.headers.get("x-cache", "none")] += 1
        found = difference(wanted, got)
        assert found is None, f"{when}, bucket != proxy: {found}"


@pytest.fixture(scope="module")
def pair(bucket: Bucket) -> Iterator[Pair]:
    bucket.make_bucket(NAME)
    bucket.make_bucket(LISTED)
    keys = (bucket.access_key, bucket.secret_key)
    with Proxy(bucket, block_size="64KiB", prefetch="epoch", cross_site=True) as proxy:
        both = Pair(Requester(bucket.endpoint, keys), Requester(proxy.endpoint, keys))
        for key in LISTED_KEYS:
            assert both.direct.ask("PUT", LISTED, key, body=key.encode() * (not key.endswith("/"))).status == 200
        try:
            yield both
        finally:
            both.direct.close()
            both.proxied.close()


@seed(SEED)
@settings(generated, max_examples=OBJECT_EXAMPLES)
@given(object_shapes(), objects)
def _ask_about_objects(pair: Pair, shape: Shape, stored: Stored) -> None:
    """Each request is sent cold, once more, after the whole object was read, and after a write through the proxy."""
    key = shape.key_of(next(pair.numbers))
    known: dict[str, str] = {}
    if shape.exists:
        if stored.multipart and not key.endswith("/"):
            # A checksum belongs to a part, not to the start of an upload.
            plain = [header for header in stored.headers if header[0] != "x-amz-sdk-checksum-algorithm"]
            pair.direct.put(NAME, key, plain, stored.body(key, 0))
        else:
            assert pair.direct.ask("PUT", NAME, key, "", stored.headers, body=stored.body(key, 0)).status == 200
        known = pair.direct.ask("HEAD", NAME, key).headers
    meant = shape.filled(known)

    def asked_of(requester: Requester) -> Answer:
        return requester.ask(meant.method, NAME, key, meant.query, meant.headers, presigned=meant.presigned)

    before = asked_of(pair.direct)
    pair.compare(before, asked_of(pair.proxied), "cold")
    pair.compare(before, asked_of(pair.proxied), "asked again")
    pair.compare(pair.direct.ask("GET", NAME, key), pair.proxied.ask("GET", NAME, key), "whole")
    pair.compare(before, asked_of(pair.proxied), "warm")
    written = pair.proxied.ask("PUT", NAME, key, "", stored.headers, body=stored.body(key, 1))
    assert written.status == 200
    after = asked_of(pair.direct)
    pair.compare(after, asked_of(pair.proxied), "after a write through the proxy")
    pair.compare(after, asked_of(pair.proxied), "again after a write through the proxy")


@seed(SEED)
@settings(generated, max_examples=BUCKET_EXAMPLES)
@given(bucket_shapes())
def _ask_about_buckets(pair: Pair, shape: BucketShape) -> None:
    name, key = LISTED if shape.there else MISSING, "" if shape.slash else None
    answers = [
        requester.ask(shape.method, name, key, shape.query, shape.headers, presigned=shape.presigned)
        for requester in (pair.direct, pair.proxied)
    ]
    pair.compare(answers[0], answers[1], "a bucket")


def test_no_read_of_an_object_distinguishes_the_proxy_from_the_bucket(pair: Pair) -> None:
    _ask_about_objects(pair)
    print(f"seed {SEED}: {OBJECT_EXAMPLES} reads, {pair.direct.asked + pair.proxied.asked} requests, {pair.x_cache}")
    assert pair.x_cache["HIT"] > OBJECT_EXAMPLES // 2, "the cache was hardly used"


def test_no_read_of_a_bucket_distinguishes_the_proxy_from_the_bucket(pair: Pair) -> None:
    _ask_about_buckets(pair)


def test_a_difference_is_seen(pair: Pair) -> None:
    key = "seen/one"
    pair.direct.ask("PUT", NAME, key, body=RAMP[:10], headers=(("content-type", "text/plain"),))
    before = pair.direct.ask("GET", NAME, key)
    assert difference(before, before) is None
    pair.direct.ask("PUT", NAME, key, body=RAMP[:10], headers=(("content-type", "text/html"),))
    assert "content-type" in str(difference(before, pair.direct.ask("GET", NAME, key)))
    pair.direct.ask("PUT", NAME, key, body=RAMP[1:11], headers=(("content-type", "text/plain"),))
    found = str(difference(before, pair.direct.ask("GET", NAME, key)))
    assert "etag" in found
    assert "body" in found
    missing = pair.direct.ask("GET", NAME, "seen/none")
    assert seen(missing).body == b"code NoSuchKey"
    assert "status" in str(difference(before, missing))


def test_the_same_bytes_put_again_with_other_headers_show_the_new_ones(pair: Pair) -> None:
    key = "renamed"
    for kind in ("text/plain", "text/html"):
        headers = (("content-type", kind), ("x-amz-meta-note", kind))
        assert pair.proxied.ask("PUT", NAME, key, "", headers, body=RAMP[:100]).status == 200
        for method in ("GET", "HEAD", "GET"):
            pair.compare(pair.direct.ask(method, NAME, key), pair.proxied.ask(method, NAME, key), kind)
