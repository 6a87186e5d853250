"""The bucket simulator (`tests.support.simulator`): requests pass untouched, and each fault shows on the wire."""

from __future__ import annotations

import http.client
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from tests.support.bucket import READER
from tests.support.conditions import SLICE_BYTES_MAX, Conditions, Fault, FaultKind, Line, Request, reserve, slice_bytes
from tests.support.simulator import Simulator, SimulatorProcess
from tests.support.simulator_exchange import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
# 251 is prime, so bytes shifted by any power of two show.
RAMP = (bytes(range(251)) * (3 * MIB // 251 + 1))[: 3 * MIB]


@pytest.fixture(scope="module")
def ramp_bucket(bucket: Bucket) -> str:
    name = bucket.make_bucket("simulator")
    client = bucket.client()
    client.put_object(Bucket=name, Key="ramp", Body=RAMP)
    client.close()
    return name


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


def test_signed_requests_of_every_kind_pass_untouched(client: Any, ramp_bucket: str) -> None:
    client.put_object(Bucket=ramp_bucket, Key="dir/a b+ü", Body=b"small", Metadata={"note": "kept"})
    assert client.get_object(Bucket=ramp_bucket, Key="dir/a b+ü")["Body"].read() == b"small"
    assert client.head_object(Bucket=ramp_bucket, Key="dir/a b+ü")["Metadata"] == {"note": "kept"}
    assert client.get_object(Bucket=ramp_bucket, Key="ramp")["Body"].read() == RAMP
    part = client.get_object(Bucket=ramp_bucket, Key="ramp", Range="bytes=1000000-2000000")
    assert part["Body"].read() == RAMP[1_000_000:2_000_001]
    listed = client.list_objects_v2(Bucket=ramp_bucket, Prefix="dir/")["Contents"]
    assert [entry["Key"] for entry in listed] == ["dir/a b+ü"]
    client.delete_object(Bucket=ramp_bucket, Key="dir/a b+ü")
    with pytest.raises(ClientError, match="404"):
        client.head_object(Bucket=ramp_bucket, Key="dir/a b+ü")


def test_the_bucket_behind_still_checks_signatures_and_grants(
    bucket: Bucket, simulator: Simulator, ramp_bucket: str
) -> None:
    reader = bucket.client(simulator.endpoint, identity=READER)
    assert reader.head_object(Bucket=ramp_bucket, Key="ramp")["ContentLength"] == len(RAMP)
    with pytest.raises(ClientError, match="AccessDenied"):
        reader.put_object(Bucket=ramp_bucket, Key="mine", Body=b"")
    reader.close()


def test_a_chunked_upload_passes(client: Any, ramp_bucket: str) -> None:
    url = urlsplit(client.generate_presigned_url("put_object", Params={"Bucket": ramp_bucket, "Key": "chunked"}))
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    pieces = [RAMP[at : at + 100_000] for at in range(0, MIB, 100_000)]
    connection.request("PUT", f"{url.path}?{url.query}", body=iter(pieces), encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    assert client.get_object(Bucket=ramp_bucket, Key="chunked")["Body"].read() == b"".join(pieces)


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


def test_a_reset_comes_after_exactly_the_bytes_asked_for(raw: RawClient, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.RESET, after_bytes=1_000_003)]
    answer = raw.get()
    assert answer.read(1_000_003) == RAMP[:1_000_003]
    with pytest.raises(ConnectionResetError):
        answer.read(1)
    raw.close()
    assert raw.get().read() == RAMP, "a fault strikes once unless told otherwise"


def test_a_truncated_body_ends_short_and_without_a_reset(raw: RawClient, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.TRUNCATE, after_bytes=1_000_003)]
    answer = raw.get()
    with pytest.raises(http.client.IncompleteRead) as error:
        answer.read()
    assert error.value.partial == RAMP[:1_000_003]


def test_a_drop_gives_no_answer_at_all(raw: RawClient, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.DROP)]
    with pytest.raises(http.client.RemoteDisconnected):
        raw.get()


def test_a_cut_after_the_head_gives_a_head_and_no_body(raw: RawClient, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.TRUNCATE, after_bytes=0)]
    answer = raw.get()
    assert answer.status == 200
    with pytest.raises(http.client.IncompleteRead):
        answer.read()


def test_a_stalled_body_goes_on_when_it_is_released(raw: RawClient, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.STALL, after_bytes=1000)]
    answer = raw.get()
    assert answer.read(1000) == RAMP[:1000]
    assert simulator.counts().body_bytes == 1000
    simulator.release()
    assert answer.read() == RAMP[1000:]


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


def test_a_failed_upload_fails_with_and_without_expect(client: Any, simulator: Simulator, ramp_bucket: str) -> None:
    simulator.conditions.faults = [Fault(FaultKind.STATUS, method=None, times=None)]
    with pytest.raises(ClientError, match="SlowDown"):
        client.put_object(Bucket=ramp_bucket, Key="never", Body=RAMP)
    url = urlsplit(client.generate_presigned_url("put_object", Params={"Bucket": ramp_bucket, "Key": "never"}))
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    connection.request("PUT", f"{url.path}?{url.query}", body=RAMP)
    assert connection.getresponse().status == 503
    connection.close()


def test_a_wrong_content_range_is_off_by_one(raw: RawClient, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.WRONG_RANGE)]
    answer = raw.get(Range="bytes=100-199")
    assert answer.headers["Content-Range"] == f"bytes 101-200/{len(RAMP)}"
    assert answer.read() == RAMP[100:200]


def test_an_outage_refuses_connections_and_passes(raw: RawClient, simulator: Simulator) -> None:
    assert raw.get().read() == RAMP
    with simulator.outage():
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            raw.get()
        raw.close()
        with pytest.raises(ConnectionRefusedError):
            raw.get()
    raw.close()
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


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="ttfb_ms"):
        Conditions().update({"ttfb_ms": 30})


def test_a_chunked_answer_keeps_its_framing_and_trailer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = b"3\r\nabc\r\n5;ext=1\r\ndefgh\r\n0\r\nx-trailer: 1\r\n\r\n"
        theirs.sendall(wire + b"HTTP/1.1 200 OK\r\n\r\n")
        data, all_bytes = bytearray(), bytearray()

        def send(view: memoryview) -> None:
            data.extend(view)
            all_bytes.extend(view)

        stream = Stream(ours)
        stream.move_chunked(send, all_bytes.extend, lambda: 2)
        assert (bytes(data), bytes(all_bytes)) == (b"abcdefgh", wire)
        following = stream.read_head()
        assert following is not None
        assert following.status == 200


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
