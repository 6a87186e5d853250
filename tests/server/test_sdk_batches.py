"""The SDK's batches before a real proxy, an older one, and a bare bucket; and a real DataLoader."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from outrider_sdk import AsyncClient, Client, ObjectError, ProxyNotFound, ProxyRefused
from outrider_sdk.samples import BatchedObjects
from outrider_sdk.torch import AnnouncingSampler
from tests.support.child import free_ports
from tests.support.client_access import HAS_TORCH
from tests.support.conditions import Fault, FaultKind
from tests.support.fakes import ramp
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import Oddities
from tests.support.proxy import Proxy
from tests.support.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from outrider_sdk.batch import Key, Sample
    from tests.support.bucket import Bucket
    from tests.support.tls import Certificate

NAME = "sdk-batches"
RAMP = ramp(2**20)
SMALL = 64
OBJECTS = {f"{number:04}": RAMP[number : number + 10_000] for number in range(SMALL)} | {
    "ä b+c%2F.jpg": b"awkward", "empty": b"", "large": RAMP,
}  # fmt: skip
KEYS = list(OBJECTS)


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, OBJECTS)


@pytest.fixture(autouse=True)
def environment(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "OUTRIDER_STATUS_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket) as running:
        yield running


@pytest.fixture
def front(proxy: Proxy) -> Iterator[Simulator]:
    """A line to the proxy that counts requests and may break."""
    with Simulator(f"{proxy.address[0]}:{proxy.address[1]}") as running:
        yield running


@pytest.fixture
def line(bucket: Bucket) -> Iterator[Simulator]:
    """The bare bucket."""
    with Simulator(bucket.address) as running:
        yield running


def posts(simulator: Simulator) -> int:
    return sum(request.method == "POST" for request in simulator.log())


def read(client: Client, keys: Sequence[Key]) -> list[Sample]:
    return list(client.get_batch(NAME, keys))


@pytest.mark.parametrize("by", ["proxy", "bucket"])
def test_contents_come_in_order_with_ranges_and_errors(proxy: Proxy, line: Simulator, by: str) -> None:
    client = Client(proxy.endpoint if by == "proxy" else line.endpoint)
    keys: list[Key] = [*KEYS[::-1], ("large", 5, 700_000), "missing", ("0007", 20_000, 20_001), KEYS[0]]
    for _ in ("cold", "warm"):
        *whole, part, missing, beyond, last = read(client, keys)
        assert whole == [(key, OBJECTS[key]) for key in KEYS[::-1]]
        assert part == (("large", 5, 700_000), RAMP[5:700_000])
        assert isinstance(missing[1], ObjectError)
        assert (missing[0], missing[1].status, missing[1].code) == ("missing", 404, "NoSuchKey")
        assert isinstance(beyond[1], ObjectError)
        assert (beyond[1].key, beyond[1].status) == (("0007", 20_000, 20_001), 416)
        assert last == (KEYS[0], OBJECTS[KEYS[0]])
    # A plain GET would bring a LIST, or all bytes.
    for key in ("", ("", 0, 1), ("large", 0, 0), ("large", 5, 3), ("large", -5, 3)):
        with pytest.raises(ValueError, match="start < stop"):
            read(client, ["0001", key])


def test_a_batch_is_one_request(front: Simulator) -> None:
    client = Client(front.endpoint)
    for _ in range(3):
        assert read(client, KEYS) == list(OBJECTS.items())
    assert (len(front.log()), posts(front)) == (3, 3)
    assert front.counts().connections == 1
    assert read(client, []) == []


def test_a_long_list_is_sent_in_parts(front: Simulator) -> None:
    keys = KEYS[:SMALL] * 20
    assert [key for key, _ in read(Client(front.endpoint), keys)] == keys
    assert posts(front) == -(-len(keys) // 1000)


def test_a_bucket_without_a_proxy_is_asked_once_for_a_batch(line: Simulator) -> None:
    client = Client(line.endpoint)
    for _ in range(2):
        assert read(client, KEYS) == list(OBJECTS.items())
    assert posts(line) == 1
    assert line.counts().gets == 2 * len(KEYS)
    assert line.counts().concurrent_max > 1, "side by side"
    copied: Client = pickle.loads(pickle.dumps(client))
    assert read(copied, KEYS[:2]) == list(OBJECTS.items())[:2]
    assert posts(line) == 1, "a worker knows what its parent found out"


def test_servers_that_know_no_batches_are_asked_by_gets(line: Simulator, proxy: Proxy) -> None:
    for status in (403, 404, 405, 501):
        line.conditions.faults = [Fault(FaultKind.STATUS, method="POST", status=status, times=None)]
        assert read(Client(line.endpoint), KEYS[:20]) == list(OBJECTS.items())[:20]
    with OddOrigin(Oddities(ignores_range=True)).on_thread() as origin:
        origin.put(NAME, "large", RAMP)
        assert read(Client(origin.endpoint), [("large", 5, 700)]) == [(("large", 5, 700), RAMP[5:700])]
    # A refusal of the proxy itself is no reason for GETs, and no server is an error that says so.
    with pytest.raises(ProxyRefused, match=r"reads\[0\]"):
        list(Client(proxy.endpoint).get_batch("not a bucket", ["k"]))
    assert proxy.metric("outrider_requests_total", op="get") == 0
    with pytest.raises(ProxyNotFound, match="nothing listens"):
        read(Client(f"http://127.0.0.1:{free_ports(1)[0]}"), KEYS[:1])


def test_a_batch_that_breaks_off_goes_on_where_it_was(front: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_sdk.batch._PAUSE_S", 0.0)
    client = Client(front.endpoint)
    read(client, KEYS[:1])
    front.reset()
    front.conditions.faults = [Fault(FaultKind.RESET, method="POST", after_bytes=250_000, times=2)]
    assert read(client, KEYS) == list(OBJECTS.items())
    assert posts(front) == 3
    front.conditions.faults = [Fault(FaultKind.STATUS, method="POST", status=503, times=2)]
    assert read(client, KEYS[:9]) == list(OBJECTS.items())[:9]


def test_a_reader_that_stops_ends_the_request(front: Simulator, proxy: Proxy) -> None:
    reading = Client(front.endpoint).get_batch(NAME, KEYS)
    assert next(reading) == (KEYS[0], OBJECTS[KEYS[0]])
    reading.close()
    proxy.settle()
    assert proxy.outrider.server.in_flight == 0


def test_grants_and_signatures_hold_for_batches_also_over_tls(
    bucket: Bucket, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
    tls: dict[str, Any] = {"tls_cert": certificate.chain, "tls_key": certificate.key}
    (tmp_path / "clients.toml").write_text(
        '[[client]]\naccess_key = "SDKBATCHES"\nsecret_key = "sdk/secret"\n'
        f'grants = [{{bucket = "{NAME}", prefix = "00"}}]\n'
    )
    with Proxy(bucket, auth="sigv4", clients=tmp_path / "clients.toml", **tls) as proxy:
        client = Client(proxy.endpoint.replace("http:", "https:"))
        with pytest.raises(ProxyRefused, match="403 InvalidAccessKeyId"):
            read(client, KEYS[:2])
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SDKBATCHES")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sdk/secret")
        own, other = read(client, ["0001", "large"])
        assert own == ("0001", OBJECTS["0001"])
        assert isinstance(other[1], ObjectError)
        assert (other[1].status, other[1].code) == (403, "AccessDenied")
        client.batches.close()


# -- asyncio ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["proxy", "bucket"])
def test_batches_of_one_async_client_run_side_by_side(proxy: Proxy, line: Simulator, by: str) -> None:
    async def every(client: AsyncClient, keys: Sequence[Key]) -> list[Sample]:
        return [sample async for sample in client.get_batch(NAME, keys)]

    async def both() -> list[list[Sample]]:
        client = AsyncClient(proxy.endpoint if by == "proxy" else line.endpoint)
        try:
            lists = KEYS, KEYS[::-1], ["missing"]
            return list(await asyncio.gather(*[every(client, keys) for keys in lists]))
        finally:
            client.close()

    one, other, missing = asyncio.run(both())
    assert one == list(OBJECTS.items())
    assert other == one[::-1]
    assert isinstance(missing[0][1], ObjectError)


def test_an_async_reader_that_leaves_ends_the_request(proxy: Proxy) -> None:
    async def some() -> None:
        samples = AsyncClient(proxy.endpoint).get_batch(NAME, KEYS)
        assert await anext(samples) == (KEYS[0], OBJECTS[KEYS[0]])
        await samples.aclose()

    asyncio.run(some())
    proxy.settle()
    assert proxy.outrider.server.in_flight == 0


# -- PyTorch ----------------------------------------------------------------------------------------------------------


def test_a_dataset_needs_no_torch(proxy: Proxy) -> None:
    keys = [*KEYS, "missing"]
    samples = BatchedObjects(NAME, keys, lambda key, body: (key, len(body)), client=Client(proxy.endpoint))
    assert len(samples) == len(keys)
    assert samples[3] == (KEYS[3], 10_000)
    assert samples.__getitems__([5, 2]) == [(KEYS[5], 10_000), (KEYS[2], 10_000)]
    assert samples.url(1) == f"s3://{NAME}/0001"
    with pytest.raises(ObjectError, match="missing: 404 NoSuchKey"):
        samples.__getitems__([0, len(KEYS)])


@pytest.mark.skipif(not HAS_TORCH, reason="torch is pinned to a release without a wheel for this Python")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_data_loader_sends_one_request_a_batch_from_each_worker(proxy: Proxy, context: str) -> None:
    from torch.utils.data import DataLoader, RandomSampler

    client = Client(proxy.endpoint)
    keys = KEYS[:SMALL]
    samples = BatchedObjects(NAME, keys, client=client)
    read(client, keys[:1])  # the parent has a connection, which no worker must use
    proxy.settle()
    before = proxy.metric("outrider_requests_total", op="steer")
    sampler = AnnouncingSampler(RandomSampler(range(len(keys))), samples.url, client=Client("http://127.0.0.1:9"))
    # A spawned worker imports torch anew in each epoch.
    epochs, workers = (2, 2) if context == "fork" else (1, 1)
    loader = DataLoader(
        samples, batch_size=8, num_workers=workers, sampler=sampler, multiprocessing_context=context, collate_fn=list
    )
    for _ in range(epochs):
        seen = [body for batch in loader for body in batch]
        assert sorted(seen) == sorted(OBJECTS[key] for key in keys)
    proxy.settle()
    assert proxy.metric("outrider_requests_total", op="steer") - before == epochs * SMALL / 8
