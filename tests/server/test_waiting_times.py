"""Waiting times over real sockets, by reader and by origin; and each byte is counted once, on either path."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from outrider.http.wire.sender import SocketSender
from outrider.metrics import SOURCES
from tests.support.conditions import Fault, FaultKind
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask, request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "stalls"
# Far more than the sockets of both sides take at once.
LARGE = bytes(range(250)) * (16 * 4000)
SMALL = LARGE[:10_000]
CLIENTS = """
[[client]]
name = "alice"
access_key = "ALICEKEY"
secret_key = "alice/secret"
grants = [{bucket = "stalls", access = "read"}]
"""


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {"large-001.tar": LARGE} | {f"small-{number:03d}.tar": SMALL for number in range(4)})


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    # No HEAD for a checksum comes between two looks at a count.
    with Proxy(bucket, freshness="immutable", verify_origin="off") as running:
        yield running


def status(proxy: Proxy) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(proxy.status()))
    return document


def reader(proxy: Proxy, dataset: str) -> dict[str, Any]:
    found = [reader for reader in status(proxy)["readers"] if reader["dataset"] == dataset]
    return dict(found[0]) if found else {"requests": 0}


def counted(proxy: Proxy, dataset: str, requests: int) -> dict[str, Any]:
    """The status of its reader, once this many of its requests are counted: an answer is counted after it was sent."""
    give_up_at = time.monotonic() + 60
    while (found := reader(proxy, dataset))["requests"] < requests:
        assert time.monotonic() < give_up_at
    assert found["requests"] == requests
    return found


class MovedClock:
    """A clock that the test moves: `time.perf_counter` plus an offset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = time.perf_counter
        self._more = 0.0
        monkeypatch.setattr(time, "perf_counter", self)

    def __call__(self) -> float:
        return self._real() + self._more

    def push(self, seconds: float) -> None:
        self._more += seconds


def test_a_pause_between_requests_counts_as_the_readers_pause(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MovedClock(monkeypatch)
    with RawConnection(proxy.address) as connection:

        def after(pause_s: float, requests: int) -> dict[str, Any]:
            proxy.settle()
            clock.push(pause_s)
            connection.ask("GET", f"/{NAME}/small-000.tar")
            return counted(proxy, "small-{}.tar", requests)

        after(0.0, 1)
        before = after(20.0, 2)
        found = after(30.0, 3)
        assert 30 <= found["away_s"] - before["away_s"] < 45
        assert found["wait_s"] - before["wait_s"] < 15
        assert after(5000.0, 4)["away_s"] - found["away_s"] < 61, "an idle connection counts for little"


class Pauses:
    """The senders' waits for a full socket. The next one after `arm` is long: the clock moves within it."""

    def __init__(self, clock: MovedClock) -> None:
        self._clock = clock
        self._long = False
        self.seen = threading.Event()

    def arm(self) -> None:
        self._long = True

    def begun(self) -> None:
        """A wait has begun, and cannot end before this returns."""
        if self._long:
            self._long = False
            self._clock.push(40.0)
            self.seen.set()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    found, wait = Pauses(MovedClock(monkeypatch)), SocketSender._writable

    async def waited_for(wire: SocketSender) -> None:
        # Runs on the sender's own loop, once the wait below has begun. A client's thread would be too late: while its
        # side of the connection takes bytes, each wait is short.
        asyncio.get_running_loop().call_soon(found.begun)
        await wait(wire)

    monkeypatch.setattr(SocketSender, "_writable", waited_for)
    return found


@pytest.mark.parametrize("warm", [True, False])
def test_a_full_socket_counts_as_the_readers_pause(proxy: Proxy, pauses: Pauses, *, warm: bool) -> None:
    before: dict[str, Any] = {"away_s": 0.0, "wait_s": 0.0, "requests": 0}
    with RawConnection(proxy.address) as connection:
        if warm:
            ask(proxy.address, "GET", f"/{NAME}/large-001.tar")
            before = counted(proxy, "large-{}.tar", 1)
        pauses.arm()
        connection.send(request("GET", f"/{NAME}/large-001.tar"))
        answer = connection.read_head()
        assert pauses.seen.wait(60)
        assert len(answer.read()) == len(LARGE)
    after = counted(proxy, "large-{}.tar", before["requests"] + 1)
    assert 40 <= after["away_s"] - before["away_s"] < 80
    assert after["wait_s"] - before["wait_s"] < 40


def test_a_slow_bucket_counts_as_the_readers_wait(
    bucket: Bucket, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovedClock(monkeypatch)
    with Proxy(bucket, origin=simulator.endpoint) as proxy, RawConnection(proxy.address) as connection:
        simulator.conditions.faults.append(Fault(FaultKind.ACT, after_bytes=100, act=lambda: clock.push(40.0)))
        connection.send(request("GET", f"/{NAME}/small-001.tar"))
        assert connection.read_answer().body == SMALL
        found = counted(proxy, "small-{}.tar", 1)
    assert 40 <= found["wait_s"] < 80
    assert found["away_s"] < 40


def test_every_byte_is_counted_once_by_dataset_and_by_reader(proxy: Proxy) -> None:
    with RawConnection(proxy.address) as connection:
        for _ in range(3):
            for number in range(4):
                assert connection.ask("GET", f"/{NAME}/small-{number:03d}.tar").status == 200
                connection.ask("GET", f"/{NAME}/small-{number:03d}.tar", [("range", "bytes=5-104")])
                connection.ask("HEAD", f"/{NAME}/small-{number:03d}.tar")
                proxy.settle()
    for _ in range(2):
        assert len(ask(proxy.address, "GET", f"/{NAME}/large-001.tar").body) == len(LARGE)
        proxy.settle()
    counted(proxy, "small-{}.tar", 36)
    counted(proxy, "large-{}.tar", 2)
    document = status(proxy)
    by_source = {source: proxy.metric("outrider_served_bytes_total", source=source) for source in SOURCES}
    assert sum(by_source.values()) == 12 * (len(SMALL) + 100) + 2 * len(LARGE)
    datasets = {dataset["name"]: dataset for dataset in document["datasets"]}
    assert datasets["small-{}.tar"]["requests"] == 36
    # The usage counts the bytes of peers as those of a flight.
    assert by_source.pop("peer") == 0
    for rows in (document["datasets"], document["readers"], [document["reads"]]):
        assert {source: sum(row["served_bytes"][source] for row in rows) for source in by_source} == by_source
    assert sum(dataset["bucket_bytes"] for dataset in document["datasets"]) == proxy.metric(
        "outrider_origin_bytes_total"
    )
    assert sum(dataset["bucket_gets"] for dataset in document["datasets"]) == proxy.metric(
        "outrider_origin_requests_total"
    )
    assert document["saved"]["egress_bytes"] == sum(by_source.values()) - proxy.metric("outrider_origin_bytes_total")
    assert document["saved"]["gets"] == 38 - proxy.metric("outrider_origin_requests_total")
    look_twice = status(proxy)
    assert look_twice["reads"] == document["reads"]


def test_forwarded_requests_save_nothing_and_cost_nothing(proxy: Proxy) -> None:
    """The proxy forwards as many GETs and HEADs of objects as it received, errors and uncacheable requests included."""
    large, small = f"/{NAME}/large-001.tar", f"/{NAME}/small-000.tar"
    for method, target in (
        ("GET", f"{small}?response-content-type=text/plain"), ("GET", f"{small}?tagging"), ("HEAD", f"/{NAME}/none"),
        ("GET", f"/{NAME}/none"), ("HEAD", f"{small}?partNumber=1"), ("GET", f"{large}?partNumber=1"),
        ("GET", f"/{NAME}?list-type=2"), ("GET", "/"), ("PUT", f"/{NAME}/other"), ("DELETE", f"/{NAME}/other"),
        ("GET", "/_outrider/status.json"),
    ):  # fmt: skip
        ask(proxy.address, method, target)
        proxy.settle()
    saved = status(proxy)["saved"]
    assert saved["gets"] == 0
    assert ask(proxy.address, "GET", large).body == LARGE
    proxy.settle()
    document = status(proxy)
    # One GET of a client is many of the proxy's, and no byte is read twice.
    assert document["saved"]["gets"] < 0
    assert document["saved"]["egress_bytes"] == saved["egress_bytes"] <= 0


def test_a_reader_is_shown_by_name_and_tenants_see_no_other(bucket: Bucket, tmp_path: Path) -> None:
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=clients) as proxy:
        client = proxy.client(("ALICEKEY", "alice/secret"))
        for _ in range(3):
            client.get_object(Bucket=NAME, Key="small-003.tar")["Body"].read()
            proxy.settle()
        assert counted(proxy, "small-{}.tar", 3)["name"] == "127.0.0.1 alice"
        document = json.loads(client.get_object(Bucket="_outrider", Key="status.json")["Body"].read())
        assert not document.keys() & {"readers", "datasets", "errors", "throughput", "settings", "origin"}
        assert document["uptime_s"] >= 0
