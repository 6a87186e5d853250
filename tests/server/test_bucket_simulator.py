"""The bucket simulator (`tests.support.simulator`): requests pass untouched, and each fault shows on the wire."""

from __future__ import annotations

import http.client
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from tests.support.conditions import SLICE_BYTES_MAX, Conditions, Fault, FaultKind, Line, Request, reserve, slice_bytes
from tests.support.simulator import Simulator, SimulatorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
# 251 is prime, so bytes shifted by any power of two show.
RAMP = (bytes(range(251)) * (3 * MIB // 251 + 1))[: 3 * MIB]


@pytest.fixture(scope="module")
def ramp_bucket(bucket: Bucket) -> str:
    return bucket.store("simulator", {"ramp": RAMP})


@pytest.fixture
def client(bucket: Bucket, simulator: Simulator) -> Iterator[Any]:
    made = bucket.client(simulator.endpoint)
    yield made
    made.close()


class FakeClock:
    """Time passes only in sleep()."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, duration_s: float) -> None:
        self.now += duration_s


class RawClient:
    """GETs by presigned URL, with no retry, no pool and no check of the answer."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._url = urlsplit(client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "ramp"}))
        self._connection = http.client.HTTPConnection(self._url.netloc, timeout=60)

    def get(self, **headers: str) -> http.client.HTTPResponse:
        self._connection.request("GET", f"{self._url.path}?{self._url.query}", headers=headers)
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def raw(client: Any, ramp_bucket: str) -> Iterator[RawClient]:
    made = RawClient(client, ramp_bucket)
    yield made
    made.close()


def test_counts_equal_the_traffic(client: Any, simulator: Simulator, ramp_bucket: str) -> None:
    client.head_object(Bucket=ramp_bucket, Key="ramp")
    client.get_object(Bucket=ramp_bucket, Key="ramp", Range="bytes=0-999", IfMatch="*")["Body"].read()
    counts = simulator.reset()
    assert counts.by_method == {"HEAD": 1, "GET": 1}
    assert (counts.requests, counts.gets, counts.body_bytes, counts.concurrent_max) == (2, 1, 1000, 1)
    client.get_object(Bucket=ramp_bucket, Key="ramp")["Body"].read()
    assert simulator.counts().body_bytes == len(RAMP)
    (seen,) = simulator.log()
    assert (seen.method, seen.path, "range" in seen.headers) == ("GET", f"/{ramp_bucket}/ramp", False)


def test_each_fault_of_a_body_shows_on_the_wire_at_its_byte(raw: RawClient, simulator: Simulator) -> None:
    at = 1_000_003

    def meets(kind: FaultKind, after_bytes: int = at, **headers: str) -> http.client.HTTPResponse:
        simulator.conditions.faults = [Fault(kind, after_bytes=after_bytes)]
        raw.close()
        return raw.get(**headers)

    answer = meets(FaultKind.RESET)
    assert answer.read(at) == RAMP[:at]
    with pytest.raises(ConnectionResetError):
        answer.read(1)
    for after_bytes in (at, 0):
        with pytest.raises(http.client.IncompleteRead) as cut:
            meets(FaultKind.TRUNCATE, after_bytes).read()
        assert cut.value.partial == RAMP[:after_bytes]
    with pytest.raises(http.client.RemoteDisconnected):
        meets(FaultKind.DROP)
    answer = meets(FaultKind.WRONG_RANGE, Range="bytes=100-199")
    assert answer.headers["Content-Range"] == f"bytes 101-200/{len(RAMP)}"
    assert answer.read() == RAMP[100:200]
    simulator.reset()
    answer = meets(FaultKind.STALL)
    assert answer.read(at) == RAMP[:at]
    assert simulator.counts().body_bytes == at
    simulator.release()
    assert answer.read() == RAMP[at:]
    assert raw.get().read() == RAMP, "a fault strikes once unless `times` says otherwise"
    with simulator.outage():
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            raw.get()
        raw.close()
        with pytest.raises(ConnectionRefusedError):
            raw.get()
    raw.close()
    assert raw.get().read() == RAMP


def test_a_status_is_s3_xml_and_does_not_reach_the_bucket(raw: RawClient, client: Any, simulator: Simulator) -> None:
    simulator.conditions.faults = [
        Fault(FaultKind.STATUS, times=2, retry_after_s=7),
        Fault(FaultKind.STATUS, status=500),
    ]
    with pytest.raises(ClientError, match="SlowDown"):
        client.get_object(Bucket="anything", Key="at all")
    answer = raw.get()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
    assert b"<Code>SlowDown</Code>" in answer.read()
    answer = raw.get()
    assert answer.status == 500
    assert b"<Code>InternalError</Code>" in answer.read()
    assert raw.get().read() == RAMP


def test_chance_strikes_the_same_requests_each_time() -> None:
    def struck(seed: int) -> list[bool]:
        conditions = Conditions(seed=seed, faults=[Fault(FaultKind.DROP, times=None, probability=0.3)])
        request = Request("GET", "/b/k", "", {})
        return [conditions.draw(request) is not None for _ in range(1000)]

    assert struck(seed=1) == struck(seed=1)
    assert struck(seed=1) != struck(seed=2)
    assert 250 < sum(struck(seed=1)) < 350


def test_a_fault_spares_requests_that_it_does_not_match() -> None:
    fault = Fault(FaultKind.DROP, path_contains="/train-", when=lambda request: "range" in request.headers)
    conditions = Conditions(faults=[fault])
    assert conditions.draw(Request("HEAD", "/b/train-1", "", {"range": "bytes=0-"})) is None
    assert conditions.draw(Request("GET", "/b/val-1", "", {"range": "bytes=0-"})) is None
    assert conditions.draw(Request("GET", "/b/train-1", "", {})) is None
    assert conditions.draw(Request("GET", "/b/train-1", "", {"range": "bytes=0-"})) is fault
    assert conditions.draw(Request("GET", "/b/train-1", "", {"range": "bytes=0-"})) is None, "spent"


@pytest.mark.parametrize(
    ("conditions", "expected_s"),
    [
        (Conditions(connection_bytes_s=40e6), len(RAMP) / 40e6),
        (Conditions(total_bytes_s=10e6), len(RAMP) / 10e6),
        (Conditions(connection_bytes_s=40e6, total_bytes_s=250e6), len(RAMP) / 40e6),
        (Conditions(ttfb_s=0.5), 0.5),
        (Conditions(), 0.0),
    ],
)
def test_an_answer_takes_the_configured_time(
    bucket: Bucket, ramp_bucket: str, conditions: Conditions, expected_s: float
) -> None:
    clock = FakeClock()
    with Simulator(bucket.address, conditions, clock=clock, sleep=clock.sleep) as simulator:
        client = bucket.client(simulator.endpoint)
        assert client.get_object(Bucket=ramp_bucket, Key="ramp")["Body"].read() == RAMP
        client.close()
    assert clock.now == pytest.approx(expected_s, rel=0.1)


def test_clients_of_one_line_get_equal_shares() -> None:
    """Ten clients that each request their next slice as soon as the last has passed."""
    line, rate = Line(0.0), 250e6
    next_at, sent = [0.0] * 10, [0] * 10
    size = slice_bytes(40e6, rate)
    while min(next_at) < 10.0:
        who = next_at.index(min(next_at))
        next_at[who] = line.take(size, rate, next_at[who])
        sent[who] += size
    assert sum(sent) == pytest.approx(rate * 10.0, rel=0.01)
    assert min(sent) == pytest.approx(max(sent), rel=0.01)


def test_a_late_sender_catches_up_but_saves_nothing_for_later() -> None:
    assert reserve(free_at=10.0, now=10.001, size_bytes=1000, rate_bytes_s=1e6) == pytest.approx(10.001)
    assert reserve(free_at=0.0, now=10.0, size_bytes=1000, rate_bytes_s=1e6, catch_up_s=0.02) == pytest.approx(9.981)
    assert slice_bytes(None, None) == SLICE_BYTES_MAX


def test_stopping_leaves_no_thread(bucket: Bucket, ramp_bucket: str) -> None:
    with Simulator(bucket.address) as simulator:
        client = bucket.client(simulator.endpoint)
        stalled = RawClient(client, ramp_bucket)
        simulator.conditions.faults = [Fault(FaultKind.STALL, after_bytes=1)]
        stalled.get().read(1)
    stalled.close()
    client.close()
    assert [thread for thread in threading.enumerate() if thread.name.startswith("simulator")] == []


def test_the_process_has_the_same_surface(bucket: Bucket, ramp_bucket: str) -> None:
    with SimulatorProcess(bucket.address, ttfb_s=0.001) as simulator:
        client = bucket.client(simulator.endpoint)
        assert client.get_object(Bucket=ramp_bucket, Key="ramp")["Body"].read() == RAMP
        assert simulator.log()[0].path == f"/{ramp_bucket}/ramp"
        assert simulator.reset().gets == 1
        simulator.set_conditions(faults=[{"kind": "status", "times": 1}])
        with pytest.raises(ClientError, match="SlowDown"):
            client.get_object(Bucket=ramp_bucket, Key="ramp")
        assert simulator.counts().requests == 1
        client.close()
