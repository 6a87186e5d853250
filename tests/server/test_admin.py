"""The admin port (health, metrics, status, token) and the log line of each request."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import Answer, ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "admin"
TOKEN = "let-me-in-7"


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="dir/key", Body=b"0123456789")
    client.close()


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket) as running:
        yield running


@pytest.fixture
def guarded(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket, admin_token=TOKEN) as running:
        yield running


def look(proxy: Proxy, path: str, *headers: tuple[str, str], method: str = "GET") -> Answer:
    host, _, port = proxy.outrider.admin.rpartition(":")
    return ask((host, int(port)), method, path, headers)


def test_health_and_readiness_are_answered(proxy: Proxy) -> None:
    assert (look(proxy, "/healthz").status, look(proxy, "/readyz").status) == (200, 200)
    proxy.outrider.ready = False
    assert (look(proxy, "/healthz").status, look(proxy, "/readyz").status) == (200, 503)


def test_metrics_count_the_requests(proxy: Proxy) -> None:
    for _ in range(2):
        ask(proxy.address, "GET", f"/{NAME}/dir/key")
        proxy.settle()
    ask(proxy.address, "GET", f"/{NAME}/nothing")
    proxy.settle()
    answer = look(proxy, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    assert 'outrider_requests_total{cache="MISS",op="get",status="200"} 1.0' in lines
    assert 'outrider_requests_total{cache="HIT",op="get",status="200"} 1.0' in lines
    assert 'outrider_served_bytes_total{source="disk"} 10.0' in lines
    assert "outrider_requests_in_flight 0.0" in lines
    assert "outrider_store_blocks 1.0" in lines
    assert 'outrider_store_errors_total{act="write"} 0.0' in lines, "the first failure increases the counter"
    assert any(re.fullmatch(r'outrider_requests_total\{.*status="404".*\} 1.0', line) for line in lines)
    assert not any("dir/key" in line or NAME in line for line in lines), "no label is an object's name"


def test_status_is_json(proxy: Proxy) -> None:
    ask(proxy.address, "GET", f"/{NAME}/dir/key")
    proxy.settle()
    status = json.loads(look(proxy, "/status").body)
    assert (status["ready"], status["blocks"], status["objects"], status["requests"]) == (True, 1, 1, 0)
    assert status["listen"] == proxy.outrider.listen
    assert sum(status["served_bytes"].values()) == 10


def test_everything_but_health_needs_the_token(guarded: Proxy) -> None:
    good = ("authorization", f"Bearer {TOKEN}")
    for path in ("/metrics", "/status"):
        assert look(guarded, path, good).status == 200
        for bad in (
            [],
            [("authorization", "Bearer wrong")],
            [("authorization", "")],
            [("authorization", "B\u00e9arer")],
        ):
            refused = look(guarded, path, *bad)
            assert refused.status == 401, bad
            assert TOKEN.encode() not in refused.body
    assert look(guarded, "/healthz").status == 200
    assert look(guarded, "/readyz").status == 200
    assert look(guarded, "/nothing").status in (401, 404)
    assert look(guarded, f"/cluster/who?object=s3://{NAME}/dir/key").status == 401


def test_a_client_cannot_make_up_labels(proxy: Proxy) -> None:
    for method in ("PROPFIND", "MKCOL"):
        ask(proxy.address, method, f"/{NAME}/dir/key")
        proxy.settle()
    text = look(proxy, "/metrics").body.decode()
    assert 'op="forward other"' in text
    assert "PROPFIND" not in text
    assert "MKCOL" not in text


def test_the_time_to_the_first_byte_is_measured(proxy: Proxy) -> None:
    ask(proxy.address, "GET", f"/{NAME}/dir/key")
    proxy.settle()
    assert proxy.outrider.metrics.value("outrider_first_byte_seconds_count", op="get") == 1


def test_unknown_paths_and_methods_of_the_admin_port_are_refused(proxy: Proxy) -> None:
    assert look(proxy, "/nothing").status == 404
    assert look(proxy, "/metrics", ("content-length", "0"), method="POST").status == 405
    assert look(proxy, f"/{NAME}/dir/key").status == 404


def test_the_s3_port_has_no_admin_pages(proxy: Proxy, bucket: Bucket) -> None:
    # The bucket's server has pages of its own under some of these names: then the answer is its page.
    parts = urlsplit(bucket.endpoint)
    for path in ("/healthz", "/metrics", "/status"):
        theirs = ask((parts.hostname or "", parts.port or 0), "GET", path)
        ours = ask(proxy.address, "GET", path)
        assert ours.status == theirs.status or ours.code == "NoSuchBucket"
        assert b"outrider" not in ours.body


def test_each_request_is_one_json_line(bucket: Bucket, tmp_path: Path) -> None:
    with ServedProxy(bucket, tmp_path) as served:
        asked: list[tuple[str, str, list[tuple[str, str]]]] = [
            ("GET", f"/{NAME}/dir/key", []),
            ("GET", f"/{NAME}/dir/key", [("range", "bytes=2-4")]),
            ("HEAD", f"/{NAME}/dir/key", []),
            ("GET", f"/{NAME}/nothing", []),
            ("GET", "/.../key", []),
            ("PUT", f"/{NAME}/new%0Aline", [("content-length", "0")]),
            ("GET", f"/{NAME}?list-type=2&X-Amz-Signature=secretsignature&X-Amz-Credential=c", []),
            ("GET", f"/{NAME}/dir/key", [("authorization", "AWS4-HMAC-SHA256 secretsignature")]),
            ("NO GET", "/", []),
        ]
        answers = []
        for method, target, headers in asked:
            answers.append(ask(served.address, method, target, headers))
            served.settle()  # lines appear in the order in which requests end, and a client has its answer before that
        assert served.stop() == 0
        lines = served.lines("request")
        assert "secretsignature" not in served.log.read_text()
    assert len(lines) == len(asked)
    for line, answer, (method, _, _) in zip(lines, answers, asked, strict=True):
        assert line["level"] == "info"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["status"] == answer.status
        assert line["bytes"] == len(answer.body) or method == "NO GET" or answer.status >= 400
        assert line["seconds"] >= 0
        assert line["client"] == "-"
        assert "cut" not in line
        if "Error" not in answer.body.decode():
            assert line["method"] == method
    first, ranged, head, missing, nameless, *_ = lines
    assert (first["op"], first["bucket"], first["key"], first["cache"]) == ("get", NAME, "dir/key", "MISS")
    assert first["request"] == answers[0].headers["x-amz-request-id"]
    assert (ranged["range"], ranged["bytes"], ranged["status"]) == ("bytes=2-4", 3, 206)
    assert (head["op"], head["bytes"], head["cache"]) == ("head", 0, "HIT")
    assert missing["cache"] == nameless["cache"] == "BYPASS"
    assert nameless["op"] == "bad"
