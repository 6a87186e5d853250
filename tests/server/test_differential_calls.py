"""Differential test of versioned buckets, parts, CORS and the settings of buckets and objects, at bucket and proxy.

`OUTRIDER_DIFFERENTIAL` and `OUTRIDER_DIFFERENTIAL_SEED` work as in `test_differential`; each kind of call gets a tenth.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.server.differential import RAMP, Requester, Shape, object_shapes
from tests.server.differential_calls import OF_BUCKETS, Call, Change, calls, changes, cors_questions
from tests.server.test_differential import EXAMPLES, SEED, Pair, generated
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.rawhttp import Answer

TENTH = max(1, EXAMPLES // 10)
VERSIONS, PARTS = "differential-versions", "differential-parts"
# Two buckets with the same history, one asked directly and one through the proxy; names of one length, so that a
# Content-Length is the same.
TWINS = ("differential-twin-a", "differential-twin-b")
# SeaweedFS takes no smaller part, except as the last.
PART_BYTES = 5 * 1024 * 1024
pytestmark = pytest.mark.timeout(120 + EXAMPLES)


@pytest.fixture(scope="module")
def pair(bucket: Bucket) -> Iterator[Pair]:
    for name in (VERSIONS, PARTS, *TWINS):
        bucket.make_bucket(name)
    keys = (bucket.access_key, bucket.secret_key)
    with Proxy(bucket, block_size="1MiB", cross_site=True) as proxy:
        both = Pair(Requester(bucket.endpoint, keys), Requester(proxy.endpoint, keys))
        enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        assert both.proxied.ask("PUT", VERSIONS, None, "versioning=", body=enabled).status == 200
        whole = RAMP * 21
        both.direct.put(PARTS, "two", (("content-type", "a/b"),), whole[:PART_BYTES], whole[PART_BYTES:][:100_000])
        try:
            yield both
        finally:
            both.direct.close()
            both.proxied.close()


def version_ids(pair: Pair, key: str) -> list[str]:
    """The ids of the versions of `key` and of its delete markers, the newest first."""
    listed = pair.direct.ask("GET", VERSIONS, None, f"versions=&prefix={quote(key, safe='')}")
    root = ElementTree.fromstring(listed.body)
    return [str(entry.findtext("{*}VersionId")) for entry in root if entry.tag.endswith(("}Version", "}DeleteMarker"))]


def compare_all(pair: Pair, key: str, when: str) -> None:
    """Send every request about a key with versions, twice: the second time the cache may answer."""
    queries = ["", *(f"versionId={version}" for version in (*version_ids(pair, key)[:4], "null", "no-such-version"))]
    asks: list[tuple[str, str | None, str]] = [(method, key, q) for q in queries for method in ("HEAD", "GET", "GET")]
    asks += [("GET", key, "tagging="), ("GET", None, f"versions=&prefix={key}"), ("GET", None, f"prefix={key}")]
    for method, at, query in asks:
        wanted, got = pair.direct.ask(method, VERSIONS, at, query), pair.proxied.ask(method, VERSIONS, at, query)
        pair.compare(wanted, got, f"{when}: {method} {query}")


@seed(SEED)
@settings(generated, max_examples=TENTH)
@given(changes)
def _ask_about_versions(pair: Pair, made: list[Change]) -> None:
    key = f"v{next(pair.numbers)}"
    for number, change in enumerate(made):
        known = version_ids(pair, key)
        query = ""
        if change.version is not None:
            query = f"versionId={known[change.version]}" if change.version < len(known) else "versionId=null"
        body, named = RAMP[number : number + 1000], (("x-amz-meta-number", str(number)),)
        tags = b"<Tagging><TagSet><Tag><Key>n</Key><Value>%d</Value></Tag></TagSet></Tagging>" % number
        if change.kind == "put":
            pair.proxied.ask("PUT", VERSIONS, key, "", named, body=body)
        elif change.kind == "multipart":
            pair.proxied.put(VERSIONS, key, named, body)
        elif change.kind == "tag":
            pair.proxied.ask("PUT", VERSIONS, key, "&".join(filter(None, ("tagging=", query))), body=tags)
        elif change.kind == "copy":
            source = (("x-amz-copy-source", f"{VERSIONS}/{key}?{query}"), ("x-amz-metadata-directive", "COPY"))
            pair.proxied.ask("PUT", VERSIONS, key, "", source)
        elif change.kind == "delete many":
            listed = f"<Delete><Object><Key>{key}</Key></Object></Delete>".encode()
            pair.proxied.ask("POST", VERSIONS, None, "delete=", body=listed)
        else:
            pair.proxied.ask("DELETE", VERSIONS, key, query)
        compare_all(pair, key, f"after {made[: number + 1]}")


@seed(SEED)
@settings(generated, max_examples=TENTH)
@given(object_shapes(), st.sampled_from(("partNumber=1", "partNumber=2", "partNumber=3", "", "x-id=GetObject")))
def _ask_about_parts(pair: Pair, shape: Shape, query: str) -> None:
    asked = replace(shape, query=query).filled(pair.direct.ask("HEAD", PARTS, "two").headers)
    answers = [
        requester.ask(asked.method, PARTS, "two", asked.query, asked.headers, presigned=asked.presigned)
        for requester in (pair.direct, pair.proxied)
    ]
    pair.compare(answers[0], answers[1], "parts")


_RANDOM = re.compile(rb"<(LastModified|RequestId|HostId|RetainUntilDate)>[^<]*<")


def same_name(answer: Answer) -> Answer:
    """The answer as if both twins had one name, and were asked at the same moment."""
    body = _RANDOM.sub(rb"<\1><", answer.body.replace(TWINS[1].encode(), TWINS[0].encode()))
    headers = {
        name: value.replace(TWINS[1], TWINS[0]) for name, value in answer.headers.items() if name != "last-modified"
    }
    return replace(answer, body=body, headers=headers)


def ask_twins(pair: Pair, call: Call) -> None:
    wanted, got = (
        same_name(requester.ask(call.method, name, call.key, call.query, call.headers, body=call.body))
        for requester, name in zip((pair.direct, pair.proxied), TWINS, strict=True)
    )
    pair.compare(wanted, got, str(call))


@seed(SEED)
@settings(generated, max_examples=TENTH)
@given(calls())
def _ask_about_settings(pair: Pair, made: list[Call]) -> None:
    for key in ("kept", "a b/é"):
        ask_twins(pair, Call("PUT", key, "", (), b"kept"))
    for call in made:
        ask_twins(pair, call)
    for method in ("HEAD", "GET", "GET"):
        ask_twins(pair, Call(method, "kept", "", (), b""))


@seed(SEED)
@settings(generated, max_examples=TENTH)
@given(cors_questions())
def _ask_as_a_browser(pair: Pair, call: Call) -> None:
    ask_twins(pair, call)


def test_versions_do_not_distinguish_the_proxy_from_the_bucket(pair: Pair) -> None:
    _ask_about_versions(pair)
    print(f"seed {SEED}: {TENTH} histories, {pair.direct.asked + pair.proxied.asked} requests, {pair.x_cache}")


def test_parts_do_not_distinguish_the_proxy_from_the_bucket(pair: Pair) -> None:
    for _ in range(2):
        pair.compare(pair.direct.ask("GET", PARTS, "two"), pair.proxied.ask("GET", PARTS, "two"), "whole")
    _ask_about_parts(pair)


def test_settings_do_not_distinguish_the_proxy_from_the_bucket(pair: Pair) -> None:
    _ask_about_settings(pair)


def test_browsers_cannot_distinguish_the_proxy_from_the_bucket(pair: Pair) -> None:
    """Once without CORS rules, and once with some."""
    _ask_as_a_browser(pair)
    ask_twins(pair, Call("PUT", None, "cors=", (), OF_BUCKETS["cors"].encode()))
    _ask_as_a_browser(pair)


def test_the_bucket_keeps_versions(pair: Pair) -> None:
    """Checks that SeaweedFS keeps versions: otherwise the generated requests would show nothing."""
    key = "own"
    for body in (b"one", b"two"):
        assert pair.proxied.ask("PUT", VERSIONS, key, body=body).status == 200
    newest, oldest = version_ids(pair, key)
    for _ in range(2):
        assert pair.proxied.ask("GET", VERSIONS, key, f"versionId={oldest}").body == b"one"
        assert pair.proxied.ask("GET", VERSIONS, key, f"versionId={newest}").body == b"two"
        assert pair.proxied.ask("GET", VERSIONS, key).body == b"two"
    assert pair.proxied.ask("DELETE", VERSIONS, key).status == 204
    assert pair.proxied.ask("GET", VERSIONS, key).status == 404
    marker = version_ids(pair, key)[0]
    assert pair.proxied.ask("DELETE", VERSIONS, key, f"versionId={marker}").status == 204
    assert pair.proxied.ask("GET", VERSIONS, key).body == b"two"
    assert pair.proxied.ask("DELETE", VERSIONS, key, f"versionId={newest}").status == 204
    assert pair.proxied.ask("GET", VERSIONS, key).body == b"one"
