"""Differential test: the same requests to the bucket and through the proxy get answers that no client can tell apart.

`OUTRIDER_DIFFERENTIAL=10000` generates that many requests, `OUTRIDER_DIFFERENTIAL_SEED=N` others than the usual ones.
Each request goes to the bucket and, in several states of the cache, to the proxy.
"""

from __future__ import annotations

import http.client
import itertools
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.server.differential import (
    BLOCK,
    LISTED_KEYS,
    RAMP,
    Asker,
    BucketShape,
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

# 200 take some ten seconds on two cores, histories and all; 10,000 take four minutes.
EXAMPLES = int(os.environ.get("OUTRIDER_DIFFERENTIAL", "200"))
SEED = int(os.environ.get("OUTRIDER_DIFFERENTIAL_SEED", "20261121"))
# One request in five is about a bucket: those are forwarded, so less can go wrong.
BUCKET_EXAMPLES = max(1, EXAMPLES // 5)
OBJECT_EXAMPLES = max(1, EXAMPLES - BUCKET_EXAMPLES)

NAME, LISTED, MISSING = "differential", "differential-listed", "differential-missing"
HISTORY = "differential-history"

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

    def __init__(self, direct: Asker, proxied: Asker) -> None:
        self.direct = direct
        self.proxied = proxied
        self.numbers = itertools.count()
        self.x_cache: Counter[str] = Counter()

    def compare(self, wanted: Answer, got: Answer, when: str) -> None:
        self.x_cache[got.headers.get("x-cache", "none")] += 1
        told = difference(wanted, got)
        assert told is None, f"{when}, bucket != proxy: {told}"


@pytest.fixture(scope="module")
def pair(bucket: Bucket) -> Iterator[Pair]:
    bucket.make_bucket(NAME)
    bucket.make_bucket(LISTED)
    keys = (bucket.access_key, bucket.secret_key)
    with Proxy(bucket, block_size="64KiB", prefetch="epoch", cross_site=True) as proxy:
        both = Pair(Asker(bucket.endpoint, keys), Asker(proxy.endpoint, keys))
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

    def asked_of(asker: Asker) -> Answer:
        return asker.ask(meant.method, NAME, key, meant.query, meant.headers, presigned=meant.presigned)

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
        asker.ask(shape.method, name, key, shape.query, shape.headers, presigned=shape.presigned)
        for asker in (pair.direct, pair.proxied)
    ]
    pair.compare(answers[0], answers[1], "a bucket")


def test_no_read_of_an_object_can_tell_the_proxy_from_the_bucket(pair: Pair) -> None:
    _ask_about_objects(pair)
    print(f"seed {SEED}: {OBJECT_EXAMPLES} reads, {pair.direct.asked + pair.proxied.asked} requests, {pair.x_cache}")
    assert pair.x_cache["HIT"] > OBJECT_EXAMPLES // 2, "the cache was hardly used"


def test_no_read_of_a_bucket_can_tell_the_proxy_from_the_bucket(pair: Pair) -> None:
    _ask_about_buckets(pair)


def test_a_difference_is_seen(pair: Pair) -> None:
    key = "seen/one"
    pair.direct.ask("PUT", NAME, key, body=RAMP[:10], headers=(("content-type", "text/plain"),))
    before = pair.direct.ask("GET", NAME, key)
    assert difference(before, before) is None
    pair.direct.ask("PUT", NAME, key, body=RAMP[:10], headers=(("content-type", "text/html"),))
    assert "content-type" in str(difference(before, pair.direct.ask("GET", NAME, key)))
    pair.direct.ask("PUT", NAME, key, body=RAMP[1:11], headers=(("content-type", "text/plain"),))
    told = str(difference(before, pair.direct.ask("GET", NAME, key)))
    assert "etag" in told
    assert "body" in told
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


# -- many clients at once, against a model ----------------------------------------------------------------------------

KEYS = ("a", "b/c", "ü d")
CLIENTS = 4
# Below a block, one more than a block, several: fills of one and of many blocks are under way when a write comes.
SIZES = (64, 8 * 1000, BLOCK + 8, 3 * BLOCK + 64)


class History:
    """The writes to one key. Versions count up. A version's bytes repeat its own number in groups of eight, so that any
    cut shows.

    Writes of one key come one after the other, since S3 orders concurrent ones as it likes. Reads come at any time.
    """

    def __init__(self) -> None:
        self.writing = threading.Lock()
        self.begun = 0
        self.done = 0
        self.done_by_us = 0
        self.gone: set[int] = {0}

    @staticmethod
    def body(number: int) -> bytes:
        size = SIZES[number % len(SIZES)]
        return f"{number:08d}".encode() * (size // 8)


class Client:
    """One client of the bucket and of the proxy, with a random generator of its own."""

    def __init__(self, name: str, bucket: Bucket, proxy: Proxy, histories: dict[str, History], chance: Random) -> None:
        keys = (bucket.access_key, bucket.secret_key)
        self._name = name
        self._direct, self._proxied = Asker(bucket.endpoint, keys), Asker(proxy.endpoint, keys)
        self._histories = histories
        self._chance = chance
        self.reads = 0
        self.writes = 0

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                key = self._chance.choice(KEYS)
                if self._chance.random() < 0.25:
                    self._write(key)
                else:
                    self._read(key)
        finally:
            self._direct.close()
            self._proxied.close()

    def _write(self, key: str) -> None:
        history = self._histories[key]
        through_us = self._chance.random() < 0.8
        asker = self._proxied if through_us else self._direct
        kind = self._chance.choice(("put", "put", "copy", "delete", "delete many"))
        with history.writing:
            number = history.begun + 1
            body, named = History.body(number), (("x-amz-meta-number", str(number)),)
            source = f"source/{self._name}/{number}"
            if kind == "copy":
                assert self._direct.ask("PUT", HISTORY, source, "", named, body=body).status == 200
            if kind.startswith("delete"):
                history.gone.add(number)
            history.begun = number
            if kind == "put":
                answer = asker.ask("PUT", HISTORY, key, "", named, body=body)
            elif kind == "copy":
                answer = asker.ask("PUT", HISTORY, key, "", (("x-amz-copy-source", quote(f"{HISTORY}/{source}")),))
            elif kind == "delete":
                answer = asker.ask("DELETE", HISTORY, key)
            else:
                listed = f"<Delete><Object><Key>{key}</Key></Object><Quiet>true</Quiet></Delete>".encode()
                answer = asker.ask("POST", HISTORY, None, "delete=", body=listed)
                assert b"<Error>" not in answer.body
            assert answer.status in (200, 204), (kind, answer)
            history.done = number
            if through_us:
                history.done_by_us = number
        self.writes += 1

    def _read(self, key: str) -> None:
        history = self._histories[key]
        through_us = self._chance.random() < 0.9
        method = self._chance.choice(("GET", "GET", "HEAD"))
        asked = self._chance.choice((None, "bytes=0-63", "bytes=-16", "bytes=8-")) if method == "GET" else None
        oldest = history.done_by_us if through_us else history.done
        asker = self._proxied if through_us else self._direct
        try:
            answer = asker.ask(method, HISTORY, key, "", () if asked is None else (("range", asked),))
        except (http.client.IncompleteRead, ConnectionError):
            # Overwritten in mid-body: cut, since a body of two versions would be worse.
            return
        newest = history.begun
        self.reads += 1
        if answer.status == 404:
            assert history.gone & set(range(oldest, newest + 1)), f"{key}: gone, though {oldest} to {newest} are there"
            return
        assert answer.status == (200 if asked is None else 206), answer
        number = int(answer.headers["x-amz-meta-number"])
        assert oldest <= number <= newest, f"{key}: {number} read, {oldest} was answered before ({method}, {asked})"
        whole = History.body(number)
        parts = {None: whole, "bytes=0-63": whole[:64], "bytes=-16": whole[-16:], "bytes=8-": whole[8:]}
        if method == "GET":
            assert answer.body == parts[asked], f"{key}: the head is of {number}, the body is not"
        else:
            assert answer.headers["content-length"] == str(len(whole))


@pytest.mark.parametrize("freshness", ["immutable", "ttl:60", "always"])
def test_after_the_proxy_has_answered_a_write_no_read_through_it_sees_an_older_version(
    bucket: Bucket, freshness: str
) -> None:
    bucket.make_bucket(HISTORY)
    direct = Asker(bucket.endpoint, (bucket.access_key, bucket.secret_key))
    for key in KEYS:
        direct.ask("DELETE", HISTORY, key)
    direct.close()
    histories = {key: History() for key in KEYS}
    proxying = Proxy(bucket, block_size="64KiB", freshness=freshness, prefetch="epoch", cross_site=True)
    with proxying as proxy, ThreadPoolExecutor(CLIENTS) as pool:
        clients = [Client(str(n), bucket, proxy, histories, Random(SEED + n)) for n in range(CLIENTS)]
        for running in [pool.submit(client.run, max(1, EXAMPLES // CLIENTS)) for client in clients]:
            running.result()
        hits = proxy.metric("outrider_requests_total", cache="HIT")
    assert sum(client.reads for client in clients) > EXAMPLES // 2
    assert sum(client.writes for client in clients) > EXAMPLES // 10
    assert freshness == "always" or hits > 0
