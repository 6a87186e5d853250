"""OpenTelemetry traces of real requests, as a real collector receives them."""

from __future__ import annotations

import logging
import sys
import threading
import time
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from outrider.settings import SettingsError
from tests.server.trace_collector import CLIENT, ERROR, SERVER, Collector
from tests.support.conditions import Fault, FaultKind
from tests.support.control_bucket import wait_for_end
from tests.support.logs import logged
from tests.support.proxy import Keys, Proxy
from tests.support.rawhttp import RawConnection, ask, request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

pytestmark = pytest.mark.lowest

NAME = "tracing"
MIB = 1024 * 1024
RAMP = (bytes(range(251)) * (24 * MIB // 251 + 1))[: 24 * MIB]
OBJECTS = {"train-000000.tar": RAMP[: 3 * MIB], "small": RAMP[:1000], "long": RAMP}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
READER: Keys = ("TRACEREADER", "reader/secret")
CLIENTS = f"""
[[client]]
name = "the reader"
access_key = "{READER[0]}"
secret_key = "{READER[1]}"
grants = [{{bucket = "{NAME}", access = "read"}}]
"""


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, OBJECTS)


@pytest.fixture(autouse=True)
def patient_with_the_last_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that shares a busy machine with the proxy answers late."""
    monkeypatch.setattr("outrider.adapters.origin.traced_origin._FLUSH_S", 60.0)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def traced(bucket: Bucket, collector: Collector, origin: str | None = None, **settings: Any) -> Proxy:
    """A proxy that exports to `collector`. `settings` in capital letters are environment variables."""
    variables = {name: settings.pop(name) for name in list(settings) if name.isupper()}
    environment = {**bucket.environment(), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **variables}
    # A verification sends a HEAD in the background, which is part of no client's trace.
    given = {"traces": True, "freshness": "immutable", "verify_origin": "off"}
    return Proxy(bucket, origin, environment=environment, **{**given, **settings})


def parent(flags: str = "01") -> tuple[str, str]:
    return "traceparent", f"00-{TRACE}-{PARENT}-{flags}"


def test_a_miss_and_a_hit_have_spans_with_the_requests_to_the_bucket(bucket: Bucket, collector: Collector) -> None:
    began_ns = time.time_ns()
    with traced(bucket, collector, block_size="1MiB") as proxy:
        with RawConnection(proxy.address) as connection:
            missed = connection.ask("GET", f"/{NAME}/train-000000.tar")
        proxy.settle()
        with RawConnection(proxy.address) as connection:
            hit = connection.ask("GET", f"/{NAME}/train-000000.tar", [("range", "bytes=0-99")])
    miss, fast = collector.of(SERVER)
    sources = {name: count for name, count in miss.said.items() if name.startswith("outrider.bytes.")}
    assert miss.said == {
        "http.request.method": "GET", "http.response.status_code": 200, "http.response.body.size": 3 * MIB,
        "aws.s3.bucket": NAME, "aws.s3.key": "train-000000.tar", "outrider.template": miss.said["outrider.template"],
        "outrider.operation": "get", "outrider.cache": "MISS", "outrider.client": "-", "outrider.reader": "127.0.0.1",
        "outrider.request_id": missed.headers["x-amz-request-id"],
        "outrider.first_byte_s": miss.said["outrider.first_byte_s"], **sources,
    }  # fmt: skip
    assert sum(sources.values()) == 3 * MIB
    assert miss.said["outrider.template"] not in ("", "train-000000.tar")
    assert fast.said["outrider.cache"] == hit.headers["x-cache"] == "HIT"
    assert (fast.said["outrider.range"], fast.said["outrider.bytes.disk"]) == ("bytes=0-99", 100)
    assert fast.said["outrider.request_id"] == hit.headers["x-amz-request-id"]
    for span in (miss, fast):
        assert (span.name, span.parent, span.status) == (f"GET {NAME}", "", 0)
        assert began_ns <= span.start_ns < span.end_ns <= time.time_ns()
        assert 0 < span.said["outrider.first_byte_s"] <= (span.end_ns - span.start_ns) / 1e9 + 1e-6
    # The question for the checksum of the whole object belongs to no request.
    asked = [span for span in collector.of(CLIENT) if span.said["http.request.method"] == "GET"]
    assert sum(span.said["http.response.body.size"] for span in asked) == 3 * MIB
    for span in asked:
        assert (span.trace, span.parent, span.events) == (miss.trace, miss.id, ("first byte",))
        assert (span.said["server.port"], span.said["http.response.status_code"]) == (bucket.port, 206)
        assert span.said["aws.s3.key"] == "train-000000.tar"
    assert fast.trace != miss.trace
    assert collector.resources[0]["service.name"] == "outrider"


def test_a_clients_trace_continues_on_both_paths(bucket: Bucket, collector: Collector) -> None:
    with traced(bucket, collector) as proxy, RawConnection(proxy.address) as connection:
        connection.ask("GET", f"/{NAME}/small")
        proxy.settle()
        for more in [parent()], [parent(), ("accept-language", "de")], [("traceparent", "00-nonsense")]:
            connection.ask("GET", f"/{NAME}/small", more)
        assert connection.ask("PUT", f"/{NAME}/put", [parent(), ("content-length", "3")], b"abc").status == 200
        assert connection.ask("GET", f"/{NAME}/small", [parent("00")]).status == 200  # sampled out: it has no span
    first, fast, slow, nonsense, put = collector.of(SERVER)
    assert [span.said["outrider.cache"] for span in (first, fast, slow, nonsense, put)] == [
        "MISS", "HIT", "HIT", "HIT", "BYPASS",
    ]  # fmt: skip
    for span in (fast, slow, put):
        assert (span.trace, span.parent) == (TRACE, PARENT)
    for span in (first, nonsense):
        assert (span.trace != TRACE, span.parent) == (True, "")
    asked = [span for span in collector.of(CLIENT) if span.trace == TRACE]
    assert [(span.name, span.parent) for span in asked] == [(f"PUT {NAME} (origin)", put.id)]


def test_the_variables_of_opentelemetry_are_followed(bucket: Bucket, collector: Collector) -> None:
    more = {"OTEL_SERVICE_NAME": "cache-1", "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=pod-7"}
    with traced(bucket, collector, **more) as proxy:
        ask(proxy.address, "GET", f"/{NAME}/small")
    assert collector.resources[0].items() >= {"service.name": "cache-1", "k8s.pod.name": "pod-7"}.items()
    before = len(collector.spans)
    with traced(
        bucket, collector, OTEL_TRACES_SAMPLER="parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG="0"
    ) as proxy:
        ask(proxy.address, "GET", f"/{NAME}/small")
        ask(proxy.address, "GET", f"/{NAME}/small", [parent()])
    assert {span.trace for span in collector.spans[before:]} == {TRACE}


def test_spans_of_refusals_and_failures_name_the_error(
    bucket: Bucket, simulator: Simulator, collector: Collector
) -> None:
    with traced(bucket, collector, simulator.endpoint) as proxy:
        assert ask(proxy.address, "GET", f"/{NAME}/nothing").status == 404
        simulator.conditions.faults = [Fault(FaultKind.STATUS, method="DELETE", status=503)]
        assert ask(proxy.address, "DELETE", f"/{NAME}/nothing").status == 503
        simulator.conditions.faults = [Fault(FaultKind.TRUNCATE, after_bytes=10)]
        with RawConnection(proxy.address) as connection:
            connection.send(request("GET", f"/{NAME}?list-type=2"))
            with pytest.raises((OSError, HTTPException)):
                connection.read_answer()
        simulator.conditions.faults = []
        ask(proxy.address, "GET", f"/{NAME}/%ff%fe")  # no Unicode
        with RawConnection(proxy.address) as connection:
            connection.send(b"BREW /\x00 HTTP/1.1\r\n\r\n")
            assert connection.read_answer().status == 400
    absent, refused, cut, no_unicode, garbage = collector.of(SERVER)
    assert no_unicode.said["aws.s3.key"] == "��"
    assert (absent.said["http.response.status_code"], absent.status) == (404, 0)
    assert (refused.said["error.type"], refused.status) == ("503", ERROR)
    assert cut.said["outrider.cut"].startswith("OriginBroke: ")
    assert (cut.said["error.type"], cut.status, cut.said["http.response.status_code"]) == ("OriginBroke", ERROR, 200)
    assert (garbage.said["outrider.operation"], garbage.said["http.response.status_code"]) == ("bad", 400)
    assert {span.said["error.type"] for span in collector.of(CLIENT)} >= {"404", "503", "OriginBroke"}


def test_a_long_hit_has_one_span_and_so_has_one_that_its_reader_leaves(bucket: Bucket, collector: Collector) -> None:
    with traced(bucket, collector) as proxy:
        ask(proxy.address, "GET", f"/{NAME}/long")
        ask(proxy.address, "GET", f"/{NAME}/train-000000.tar")
        proxy.settle()
        with RawConnection(proxy.address) as connection:
            assert connection.ask("GET", f"/{NAME}/long", [parent()]).body == RAMP
            connection.send(request("GET", f"/{NAME}/long", [parent()]))
            connection.read_head()
        proxy.settle()
    spans = collector.of(SERVER)
    whole, left = (span for span in spans if span.trace == TRACE)
    assert len(spans) == 4
    assert (whole.said["outrider.bytes.disk"], whole.said["outrider.cache"]) == (len(RAMP), "HIT")
    assert whole.said["outrider.first_byte_s"] > 0
    assert "outrider.cut" not in whole.said
    assert (left.said["outrider.cut"], left.status) == ("client left", 0)
    assert left.said["outrider.bytes.disk"] < len(RAMP)


def test_spans_hold_no_secret_and_name_the_readers(bucket: Bucket, collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "clients.toml").write_text(CLIENTS)
    settings: dict[str, Any] = {"auth": "sigv4", "clients": tmp_path / "clients.toml", "domain": ("s3.test",)}
    with traced(bucket, collector, **settings) as proxy:
        client = proxy.client(READER)
        presigned = client.generate_presigned_url("get_object", Params={"Bucket": NAME, "Key": "small"})
        for _ in range(2):
            client.get_object(Bucket=NAME, Key="small")["Body"].read()
            with urllib.request.urlopen(presigned) as answer:
                assert answer.read() == RAMP[:1000]
        client.list_objects_v2(Bucket=NAME)
    said = b"".join(collector.bodies)
    assert len(collector.of(SERVER)) == 5
    keys = (*READER, bucket.access_key, bucket.secret_key)
    for secret in (*keys, "Signature", "AWS4-HMAC", "AWSAccessKeyId", "Expires="):
        assert secret.encode() not in said, secret
    assert {span.said["outrider.client"] for span in collector.of(SERVER)} == {"the reader"}
    readers = {span.said["outrider.reader"] for span in collector.of(SERVER) if "outrider.reader" in span.said}
    assert readers == {"127.0.0.1 the reader"}


def test_background_fills_are_not_part_of_the_request_that_caused_them(bucket: Bucket, collector: Collector) -> None:
    warm = f"s3://{NAME}/small\n".encode()
    with traced(bucket, collector) as proxy:
        headers = [parent(), ("content-length", str(len(warm)))]
        assert ask(proxy.address, "PUT", "/_outrider/warm/one", headers, warm).status == 200
        assert wait_for_end(proxy.client(), "warm/one")["state"] == "done"
    assert [span.trace for span in collector.of(SERVER) if span.said["http.request.method"] == "PUT"] == [TRACE]
    # The question for the checksum of the whole object belongs to no request.
    asked = [span for span in collector.of(CLIENT) if span.said["http.request.method"] == "GET"]
    assert asked
    assert all(span.trace != TRACE and not span.parent for span in asked)


def test_an_unreachable_collector_is_logged_once_and_harms_nothing(bucket: Bucket) -> None:
    with Collector() as gone:
        pass
    small = {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2", "OTEL_BSP_SCHEDULE_DELAY": "1"}
    environment = {**small, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.01"}
    with logged(level=logging.WARNING) as seen, traced(bucket, gone, **environment) as proxy:
        connection = RawConnection(proxy.address)
        for _ in range(200):
            assert connection.ask("GET", f"/{NAME}/small").body == RAMP[:1000]
        connection.close()
    assert [record.getMessage() for record in seen] == ["traces are not taken"]
    assert vars(seen[0])["collector"] == gone.endpoint.removeprefix("http://")


def test_a_collector_that_does_not_answer_holds_up_no_request_and_no_stop(bucket: Bucket) -> None:
    with Collector(hold=True) as collector, patch("outrider.adapters.origin.traced_origin._FLUSH_S", 0.01):
        with traced(bucket, collector, OTEL_EXPORTER_OTLP_TIMEOUT="60", OTEL_BSP_SCHEDULE_DELAY="1") as proxy:
            ask(proxy.address, "GET", f"/{NAME}/small")
            assert collector.asked.wait(60)
            assert ask(proxy.address, "GET", f"/{NAME}/small").body == RAMP[:1000]
        # The proxy has stopped, and its last export still waits for the collector.
        flushing = [thread for thread in threading.enumerate() if thread.name == "outrider-traces"]
        assert len(flushing) == 1
        assert collector.spans == []
        collector.let_go()
        flushing[0].join(60)
        assert not flushing[0].is_alive()


def test_without_the_extra_the_start_fails_and_names_it(bucket: Bucket, collector: Collector) -> None:
    without = {"opentelemetry.exporter.otlp.proto.http.trace_exporter": None}
    with patch.dict(sys.modules, without):
        sys.modules.pop("outrider.adapters.origin.traced_origin", None)
        with pytest.raises(SettingsError, match=r"--traces .*pip install 'outrider\[tracing\]'"):
            traced(bucket, collector).start()


def test_invalid_opentelemetry_variables_are_refused(bucket: Bucket, collector: Collector) -> None:
    with pytest.raises(SettingsError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL=grpc: .*http/protobuf"):
        traced(bucket, collector, OTEL_EXPORTER_OTLP_PROTOCOL="grpc").start()
    with pytest.raises(SettingsError, match="--traces: "):
        traced(bucket, collector, OTEL_BSP_MAX_QUEUE_SIZE="0").start()
