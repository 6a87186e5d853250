"""Metadata whose names are no HTTP tokens: clients get it from the bucket, from the cache, and after a restart."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

import pytest

from tests.support.fakes import RAMP
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import Oddities
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

ODD = {"x-amz-meta-a/b": "1", "x-amz-meta-(c)": "two"}
LINES = (*ODD.items(), ("x-amz-meta-spaced ", "3"), ("x-amz-meta-d e", "4"), ("x-amz-meta-cut", "a\rset-cookie: b"))


@pytest.fixture(scope="module")
def odd() -> Iterator[OddOrigin]:
    with OddOrigin(Oddities(more_headers=LINES)).on_thread() as origin:
        origin.put("train", "a.tar", RAMP)
        yield origin


@pytest.fixture(scope="module")
def proxy(bucket: Bucket, odd: OddOrigin) -> Iterator[Proxy]:
    with Proxy(bucket, odd.endpoint, prefetch="off") as running:
        yield running


def ask(proxy: Proxy, method: str = "GET", path: str = "/train/a.tar") -> tuple[http.client.HTTPResponse, bytes]:
    # The parser of botocore, which is as lenient as the one of most clients.
    connection = http.client.HTTPConnection(proxy.address[0], proxy.address[1], timeout=60)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_they_reach_the_client_from_the_bucket_the_cache_and_after_a_restart(proxy: Proxy, odd: OddOrigin) -> None:
    seen = []
    for method in ("GET", "GET", "HEAD", "restart", "GET", "GET ?acl"):
        if method == "restart":
            proxy.restart()
            continue
        verb, _, query = method.partition(" ")
        response, body = ask(proxy, verb, f"/train/a.tar{query}")
        assert response.status == 200
        assert body == (RAMP if verb == "GET" else b"")
        assert {name: response.headers[name] for name in ODD} == ODD, method
        assert response.headers["x-amz-meta-spaced"] == "3"
        assert response.headers["set-cookie"] is None
        assert response.headers["content-length"] == str(len(RAMP)), "no header cut the head short"
        seen.append(response.headers["x-cache"])
        # Only a block whose fill has ended is a hit.
        proxy.settle()
    assert seen == ["MISS", "HIT", "HIT", "HIT", "BYPASS"]
    assert odd.sent_bytes == 2 * len(RAMP), "the cache and the forwarded request"
    assert proxy.metric("outrider_origin_oddities_total", kind="header_malformed") > 0
