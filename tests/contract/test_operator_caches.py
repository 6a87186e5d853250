"""The operator's calls to the caches, against a proxy, and against caches of a release that it does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from outrider.adapters.kubernetes.caches import S3Caches
from outrider.core.operator.holdings import Held, NodeDatasets
from outrider.core.operator.warm_gate import ZoneWarmth, opening_of, progress_note, share_of
from outrider.core.operator.wishes import Wishes
from outrider.operator_ports import CacheError, CachePod, CacheRefusedError
from tests.support.bucket import Bucket
from tests.support.child import free_ports
from tests.support.fakes import ramp
from tests.support.proxy import ANY_KEYS, Proxy

BUCKET = "held"
DATA = f"s3://{BUCKET}/train/"
HERE = CachePod("127.0.0.1", "node-a", None)


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    bucket.make_bucket(BUCKET)
    s3 = bucket.client()
    for number in range(3):
        s3.put_object(Bucket=BUCKET, Key=f"train/{number}.tar", Body=ramp(50_000, number))
    s3.close()
    with Proxy(bucket) as running:
        yield running


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ANY_KEYS, strict=True):
        monkeypatch.setenv(name, value)


async def test_a_warmup_is_begun_reported_and_seen_in_what_the_cache_holds(proxy: Proxy) -> None:
    port = int(proxy.admin.rpartition(":")[2])
    caches = S3Caches(proxy.endpoint, s3_port=proxy.address[1], admin_port=port, admin_token=None)
    async with caches:
        assert await caches.progress("a") is None
        await caches.warm("a", [DATA])

        found = await ended(caches, "a")
        assert share_of(found) == 1.0
        assert progress_note(found).startswith("warm: 100 % of 150 kB")
        [held, _] = Held([NodeDatasets("node-a", None, await caches.datasets(HERE))]).of([DATA])
        assert held.share == 1.0
        await caches.warm("a", [DATA], at=HERE)


async def test_a_dataset_that_was_warmed_and_not_read_is_reported_however_many_were_read(proxy: Proxy) -> None:
    s3 = proxy.client()
    for number in range(14):
        s3.put_object(Bucket=BUCKET, Key=f"read-{chr(97 + number)}/0.tar", Body=b"x")
        s3.get_object(Bucket=BUCKET, Key=f"read-{chr(97 + number)}/0.tar")["Body"].read()
    s3.close()
    admin = int(proxy.admin.rpartition(":")[2])
    async with S3Caches(proxy.endpoint, s3_port=proxy.address[1], admin_port=admin, admin_token=None) as caches:
        await caches.warm("d", [DATA])
        await ended(caches, "d")
        [held, _] = Held([NodeDatasets("node-a", None, await caches.datasets(HERE))]).of([DATA])
    assert held.share == 1.0
    assert len(proxy.status()["datasets"]) == 12


async def ended(caches: S3Caches, name: str) -> Any:
    """The report of a warm-up that has ended."""
    while True:
        found = await caches.progress(name)
        assert found is not None
        if found["state"] != "running":
            return found
        await asyncio.sleep(0.02)


async def test_a_warmup_that_the_cache_refuses_is_refused_in_its_words(proxy: Proxy) -> None:
    async with S3Caches(proxy.endpoint, s3_port=1, admin_port=1, admin_token=None) as caches:
        with pytest.raises(CacheRefusedError, match="no bucket"):
            await caches.warm("b", ["s3://no bucket/"])


@pytest.mark.parametrize("url", ["s3://nowhere/train/", f"s3://{BUCKET}/none/", f"s3://{BUCKET}/none.tar"])
async def test_data_that_does_not_exist_opens_the_gate_with_the_reason(proxy: Proxy, url: str) -> None:
    async with S3Caches(proxy.endpoint, s3_port=1, admin_port=1, admin_token=None) as caches:
        await caches.warm("c", [url])
        warmth = ZoneWarmth(None, await ended(caches, "c"))
        opening = opening_of(Wishes((url,), is_near=True, warm=0.9), 0.0, [warmth])
        assert opening is not None
        assert opening.is_warning
        assert url in opening.note


async def test_a_cache_that_is_away_does_not_refuse() -> None:
    [port] = free_ports(1)
    async with S3Caches(f"http://127.0.0.1:{port}", s3_port=port, admin_port=port, admin_token=None) as caches:
        for call in (caches.warm("a", [DATA]), caches.progress("a"), caches.datasets(HERE)):
            with pytest.raises(CacheError) as raised:
                await call
            assert not isinstance(raised.value, CacheRefusedError)


UNKNOWN = [
    (200, "<html>"), (200, "[]"), (200, "{}"), (200, '{"datasets": 1}'), (200, '{"datasets": [{"name": 1}]}'),
    (200, '{"datasets": [{"bucket": "a", "name": "b", "objects": [[1, 2, 3]]}]}'), (200, '{"state": "done"}'),
    (200, '{"state": "running", "bytes": {"wanted": "1", "on_disk": null}}'), (503, "{}"), (500, ""),
]  # fmt: skip


async def test_an_answer_of_no_known_form_is_none() -> None:
    """Otherwise it would end a round of the operator, and keep pods behind their gates."""
    current: list[tuple[int, str]] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(status=current[-1][0], text=current[-1][1])

    runner = web.ServerRunner(web.Server(answer), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with S3Caches(f"http://127.0.0.1:{port}", s3_port=port, admin_port=port, admin_token="t") as caches:
            for unknown in UNKNOWN:
                current.append(unknown)
                for call in (caches.progress("a"), caches.datasets(HERE)):
                    with pytest.raises(CacheError) as raised:
                        await call
                    assert not isinstance(raised.value, CacheRefusedError)
    finally:
        await runner.cleanup()
