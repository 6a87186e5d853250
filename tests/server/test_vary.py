"""`Vary` of the origin: cached replies repeat it, and a reply that varies with the client's request is not kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outrider.core.s3.headers import varies_with_clients
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import Oddities
from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, ask

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

pytestmark = pytest.mark.lowest

RAMP = bytes(range(251)) * 40
CORS = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"


def answers(bucket: Bucket, vary: tuple[str, ...], headers: tuple[tuple[str, str], ...] = ()) -> list[Answer]:
    """The answers to three GETs of an object whose origin sends these values of Vary."""
    odd = Oddities(more_headers=tuple(("Vary", value) for value in vary))
    with OddOrigin(odd).on_thread() as origin, Proxy(bucket, origin.endpoint) as proxy:
        origin.put("bkt", "k", RAMP)
        given = []
        for _ in range(3):
            given.append(ask(proxy.address, "GET", "/bkt/k", headers))
            proxy.settle()
        return given


@pytest.mark.parametrize("vary", [(CORS,), ("Origin", "Accept-Encoding"), ("accept-encoding,, ORIGIN",), ("X-Origin",)])
@pytest.mark.parametrize("headers", [(), (("x-custom", "past the fast path"),), (("range", "bytes=5-9"),)])
def test_a_hit_has_the_vary_of_the_miss(
    bucket: Bucket, vary: tuple[str, ...], headers: tuple[tuple[str, str], ...]
) -> None:
    given = answers(bucket, vary, headers)
    assert [answer.headers["x-cache"] for answer in given] == ["MISS", "HIT", "HIT"]
    assert {answer.headers["vary"] for answer in given} == {",".join(vary)}


def test_a_304_from_the_cache_has_the_vary_too(bucket: Bucket) -> None:
    odd = Oddities(more_headers=(("Vary", "Origin"),))
    with OddOrigin(odd).on_thread() as origin, Proxy(bucket, origin.endpoint) as proxy:
        origin.put("bkt", "k", RAMP)
        etag = ask(proxy.address, "GET", "/bkt/k").headers["etag"]
        given = ask(proxy.address, "GET", "/bkt/k", [("if-none-match", etag)])
    assert (given.status, given.headers["x-cache"], given.headers["vary"]) == (304, "HIT", "Origin")


@pytest.mark.parametrize("vary", [("*",), ("Origin, *",), ("Origin", "Cookie"), ("User-Agent",), ("Accept-Language",)])
def test_an_object_that_varies_with_the_client_is_relayed_and_not_kept(bucket: Bucket, vary: tuple[str, ...]) -> None:
    given = answers(bucket, vary)
    assert [(answer.status, answer.body) for answer in given] == [(200, RAMP)] * 3
    assert [answer.headers["x-cache"] for answer in given] == ["BYPASS"] * 3
    assert {answer.headers["vary"] for answer in given} == {",".join(vary)}


def test_the_proxy_answers_for_the_headers_that_it_sets_itself() -> None:
    for name in ("Authorization", "Host", "Accept-Encoding", "X-Forwarded-Proto", "x-amz-date", "Forwarded", "Origin"):
        assert not varies_with_clients((("vary", name),)), name
    assert not varies_with_clients((("vary", ""), ("etag", "*")))
    for name in ("*", "Accept", "User-Agent", "Range, Cookie", "x-amz-meta-a"):
        assert varies_with_clients((("vary", name),)), name
