"""`Cache-Control` of an object: `no-store` is heeded, whatever else it says is not."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

NAME = "no-store"
BODY = bytes(range(250)) * 40


def test_an_object_that_is_not_to_be_stored_is_relayed_each_time(bucket: Bucket) -> None:
    says = {
        "no-store": False, "No-Store": False, "private, no-store": False, "max-age=0,no-store , x=1": False,
        "private": True, "no-cache": True, "private, max-age=0": True, "x-no-store": True,
    }  # fmt: skip
    with Proxy(bucket, freshness="immutable") as proxy, RawConnection(proxy.address) as connection:
        for number, ((value, is_kept), first) in enumerate(product(says.items(), ("GET", "HEAD"))):
            bucket.store(NAME, {f"{number}": BODY}, CacheControl=value)
            blocks = len(proxy.outrider.store)
            uncached = proxy.metric("outrider_uncached_reads_total", reason="no_store")
            assert connection.ask(first, f"/{NAME}/{number}").status == 200
            given = []
            for _ in range(3):
                proxy.settle()
                given.append(connection.ask("GET", f"/{NAME}/{number}"))
            assert [(answer.body, answer.headers["cache-control"]) for answer in given] == [(BODY, value)] * 3
            assert [answer.headers["x-cache"] for answer in given[1:]] == ["HIT" if is_kept else "BYPASS"] * 2, value
            assert len(proxy.outrider.store) == blocks + is_kept
            assert (proxy.metric("outrider_uncached_reads_total", reason="no_store") > uncached) is not is_kept
