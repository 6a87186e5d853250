"""The proxy's own check of a request's framing, without aiohttp's check before it: each of the two suffices alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiohttp.http import HttpVersion, HttpVersion10, HttpVersion11

from outrider.core.errors import BadRequest
from outrider.http.wire.request_guards import well_framed

if TYPE_CHECKING:
    from outrider.core.model import Headers

HOST = ("host", "x")
CASES: list[tuple[Headers, HttpVersion]] = [
    ((HOST, ("content-length", "3"), ("transfer-encoding", "chunked")), HttpVersion11),
    ((HOST, ("content-length", "3"), ("content-length", "3")), HttpVersion11),
    ((HOST, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")), HttpVersion11),
    ((HOST, ("transfer-encoding", "gzip, chunked")), HttpVersion11),
    ((HOST, ("transfer-encoding", "identity")), HttpVersion11),
    ((HOST, ("transfer-encoding", "chunked")), HttpVersion10),
    ((HOST, ("host", "y")), HttpVersion11),
    ((), HttpVersion11),
    ((HOST, ("range", "bytes=0-1"), ("range", "bytes=2-3")), HttpVersion11),
    ((HOST, ("connection", "close, X-Amz-Acl")), HttpVersion11),
    ((HOST,), HttpVersion(2, 0)),
    ((HOST,), HttpVersion(0, 9)),
]


@pytest.mark.parametrize(("headers", "version"), CASES)
def test_a_framing_that_can_be_read_in_two_ways_is_refused(headers: Headers, version: HttpVersion) -> None:
    with pytest.raises(BadRequest):
        well_framed(headers, version)


def test_a_framing_that_can_be_read_in_one_way_is_accepted() -> None:
    for headers in ((HOST,), (HOST, ("content-length", "3")), (HOST, ("transfer-encoding", "Chunked")),
                    (HOST, ("connection", "keep-alive, Upgrade"))):  # fmt: skip
        well_framed(headers, HttpVersion11)
    well_framed((), HttpVersion10)


def test_headers_that_connection_names_are_for_this_connection_alone() -> None:
    headers: Headers = (HOST, ("connection", "Keep-Alive, X-Hop"), ("x-hop", "1"), ("x-other", "2"))
    assert well_framed(headers, HttpVersion11) == (HOST, ("connection", "Keep-Alive, X-Hop"), ("x-other", "2"))
