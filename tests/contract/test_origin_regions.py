"""Buckets in another region: a region hint is followed for reads, passed on for writes, and never leads elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from outrider.adapters.origin.endpoint import endpoint_in
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.ports import OriginRequest
from tests.contract.http_origins import FixedKeys, answering, opened
from tests.support.fakes import pieces_of, reply_to

BODY = b"0123456789"


@dataclass
class Store:
    """A store whose bucket is in `region`, and which answers a signature for another region with `status`."""

    region: str
    status: int
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        signed_for = request.headers["authorization"].split("/")[2]
        self.asked.append((request.method, signed_for))
        if signed_for != self.region:
            headers = {"x-amz-bucket-region": self.region, "location": "http://stranger.example/"}
            return web.Response(status=self.status, headers=headers)
        return web.Response(body=BODY)


@asynccontextmanager
async def before(store: Store) -> AsyncIterator[HttpOrigin]:
    async with answering(store.answer) as port, opened(port, FixedKeys()) as origin:
        yield origin


async def ask(origin: HttpOrigin, method: str) -> tuple[int, bytes]:
    async with reply_to(origin, OriginRequest(method, "bucket", "key")) as reply, aclosing(pieces_of(reply)) as chunks:
        return reply.status, b"".join([chunk async for chunk in chunks])


@pytest.mark.parametrize("status", [301, 307, 400])
async def test_a_region_hint_is_followed_once_and_remembered(status: int) -> None:
    store = Store("eu-central-1", status)
    async with before(store) as origin:
        assert await ask(origin, "GET") == (200, BODY)
        assert await ask(origin, "GET") == (200, BODY)
        # A write uses the region that a read has found.
        assert (await ask(origin, "PUT"))[0] == 200
    assert store.asked == [
        ("GET", "us-east-1"),
        ("GET", "eu-central-1"),
        ("GET", "eu-central-1"),
        ("PUT", "eu-central-1"),
    ]


async def test_a_write_gets_the_redirect_itself() -> None:
    store = Store("eu-central-1", 307)
    async with before(store) as origin:
        assert (await ask(origin, "PUT"))[0] == 307
    assert len(store.asked) == 1


@pytest.mark.parametrize("region", ["", "us-east-1", "evil.example/x?", "a" * 200, "UPPER", "eu_1"])
async def test_a_hint_that_is_no_region_is_passed_on(region: str) -> None:
    store = Store(region, 301)
    async with before(store) as origin:
        assert (await ask(origin, "GET"))[0] == (200 if region == "us-east-1" else 301)
    assert len(store.asked) == 1


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("https://s3.us-east-1.amazonaws.com", "https://s3.eu-west-3.amazonaws.com"),
        ("https://s3.amazonaws.com", "https://s3.eu-west-3.amazonaws.com"),
        ("https://s3-us-west-2.amazonaws.com", "https://s3.eu-west-3.amazonaws.com"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "https://s3.eu-west-3.amazonaws.com.cn"),
        ("https://s3-fips.us-east-1.amazonaws.com", "https://s3-fips.eu-west-3.amazonaws.com"),
        ("https://s3.dualstack.us-east-1.amazonaws.com", "https://s3.dualstack.eu-west-3.amazonaws.com"),
        ("https://s3-fips.dualstack.us-west-2.amazonaws.com", "https://s3-fips.dualstack.eu-west-3.amazonaws.com"),
        ("http://127.0.0.1:9000/prefix", "http://127.0.0.1:9000/prefix"),
        ("https://s3.us-east-1.amazonaws.com.evil.example", "https://s3.us-east-1.amazonaws.com.evil.example"),
    ],
)
def test_only_aws_has_an_endpoint_for_each_region(endpoint: str, expected: str) -> None:
    assert endpoint_in(endpoint, "eu-west-3") == expected
