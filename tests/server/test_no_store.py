"""`Cache-Control` of an object: `no-store` is heeded, whatever else it says is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

NAME = "no-store"
BODY = bytes(range(250)) * 40


@pytest.mark.parametrize("first", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("says", "is_kept"),
    [
        ("no-store", False), ("No-Store", False), ("private, no-store", False), ("max-age=0,no-store , x=1", False),
        ("private", True), ("no-cache", True), ("private, max-age=0", True), ("x-no-store", True),
    ],
)  # fmt: skip
def test_an_object_that_is_not_to_be_stored_is_relayed_each_time(
    says: str, is_kept: bool, first: str, bucket: Bucket
) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="k", Body=BODY, CacheControl=says)
    client.close()
    with Proxy(bucket, freshness="immutable") as proxy, RawConnection(proxy.address) as connection:
        assert connection.ask(first, f"/{NAME}/k").status == 200
        given = []
        for _ in range(3):
            proxy.settle()
            given.append(connection.ask("GET", f"/{NAME}/k"))
        assert [(answer.body, answer.headers["cache-control"]) for answer in given] == [(BODY, says)] * 3
        assert [answer.headers["x-cache"] for answer in given[1:]] == ["HIT" if is_kept else "BYPASS"] * 2
        assert len(list((proxy.cache_dir / "v2").glob("*/*"))) == is_kept
        assert bool(proxy.metric("outrider_uncached_reads_total", reason="no_store")) is not is_kept
