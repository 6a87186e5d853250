"""What a request leaves behind goes by counting references: what the collector has set aside, it would never find."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

NAME = "garbage"
BODY = bytes(range(256)) * 1024
# What comes once a second or so beside the requests, in libraries' code, is no matter of theirs.
_BESIDE = 40
_TIMES = 50


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    bucket.make_bucket(NAME)
    client = bucket.client()
    for number in range(2 * _TIMES + 1):
        client.put_object(Bucket=NAME, Key=f"cold/{number}", Body=BODY)
    client.close()
    with Proxy(bucket, freshness="immutable", prefetch="epoch") as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "cold/{}", (), 200),
        ("GET", "cold/0", (), 200),
        ("GET", "cold/0", (("range", "bytes=5-99"),), 206),
        ("GET", "cold/0", (("range", "bytes=999999999-"),), 416),
        ("GET", "cold/0", (("if-match", '"other"'),), 412),
        ("GET", "none/{}", (), 404),
        ("HEAD", "none/{}", (), 404),
        ("GET", "?list-type=2&prefix=cold/{}", (), 200),
        ("PUT", "new/{}", (), 200),
        ("DELETE", "new/{}", (), 204),
    ],
)
def test_a_request_leaves_no_cycle(
    proxy: Proxy, method: str, path: str, headers: tuple[tuple[str, str], ...], status: int
) -> None:
    with RawConnection(proxy.address) as connection:

        def ask(number: int) -> None:
            body = BODY if method == "PUT" else b""
            length = (("content-length", str(len(body))),) if body else ()
            answer = connection.ask(method, f"/{NAME}/{path.format(number)}", (*headers, *length), body)
            assert answer.status == status

        ask(0)  # what is imported and made at the first
        proxy.settle()
        gc.collect()
        gc.disable()
        try:
            for number in range(1, _TIMES + 1):
                ask(number)
            proxy.settle()
            left = gc.collect()
        finally:
            gc.enable()
    assert left <= _BESIDE, f"{left / _TIMES:.1f} objects a request"
