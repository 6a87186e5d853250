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
    bucket.store(NAME, {"dir/key": b"0123456789"})


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


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/datasets", r'"objects": \[\[\d+, 10, 10\]\]'),
        ("/status", r'"cached_bytes": 10\b'),
        ("/metrics", r'outrider_dataset_cached_bytes\{dataset="other"\} 4096'),
    ],
)
def test_what_was_cached_is_shown_before_the_planner_learns_of_it_by_itself(
    path: str, shown: str, proxy: Proxy
) -> None:
    async def stop() -> None:
        proxy.outrider.prefetch.stop()

    proxy.on_loop(stop)
    ask(proxy.address, "GET", f"/{NAME}/dir/key")
    proxy.settle()
    assert re.search(shown, look(proxy, path).body.decode())


def test_metrics_and_status_count_the_requests(proxy: Proxy) -> None:
    for method, key in (("GET", "dir/key"), ("GET", "dir/key"), ("GET", "nothing"), ("PROPFIND", "dir/key")):
        ask(proxy.address, method, f"/{NAME}/{key}")
        proxy.settle()
    answer = look(proxy, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    for line in (
        'outrider_requests_total{cache="MISS",op="get",status="200"} 1.0',
        'outrider_requests_total{cache="HIT",op="get",status="200"} 1.0',
        'outrider_served_bytes_total{source="disk"} 10.0',
        "outrider_requests_in_flight 0.0",
        "outrider_store_blocks 1.0",
        # The first failure increases the counter.
        'outrider_store_errors_total{act="write"} 0.0',
        'outrider_first_byte_seconds_count{op="get"} 3.0',
    ):
        assert line in lines, line
    assert any(re.fullmatch(r'outrider_requests_total\{.*status="404".*\} 1.0', line) for line in lines)
    assert any('op="forward other"' in line for line in lines), "no client makes up labels"
    assert not any(word in line for line in lines for word in ("dir/key", NAME, "PROPFIND"))
    status = json.loads(look(proxy, "/status").body)
    assert (status["ready"], status["blocks"], status["objects"], status["requests"]) == (True, 1, 1, 0)
    assert status["listen"] == proxy.outrider.listen
    assert look(proxy, "/nothing").status == look(proxy, f"/{NAME}/dir/key").status == 404
    assert look(proxy, "/metrics", ("content-length", "0"), method="POST").status == 405


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


def test_the_s3_port_has_no_admin_pages(proxy: Proxy, bucket: Bucket) -> None:
    # The bucket's server has pages of its own under some of these names: then the answer is its page.
    parts = urlsplit(bucket.endpoint)
    for path in ("/healthz", "/metrics", "/status"):
        theirs = ask((parts.hostname or "", parts.port or 0), "GET", path)
        ours = ask(proxy.address, "GET", path)
        assert ours.status == theirs.status or ours.code == "NoSuchBucket"
        assert b"outrider" not in ours.body


def test_each_request_is_one_json_line(bucket: Bucket, tmp_path: Path) -> None:
    asked: list[tuple[str, str, list[tuple[str, str]]]] = [
        ("GET", f"/{NAME}/dir/key", []),
        ("GET", f"/{NAME}/dir/key", [("range", "bytes=2-4")]),
        ("HEAD", f"/{NAME}/dir/key", []),
        ("GET", "/.../key", []),
        ("PUT", f"/{NAME}/new%0Aline", [("content-length", "0")]),
        ("GET", f"/{NAME}?list-type=2&X-Amz-Signature=secretsignature&X-Amz-Credential=c", []),
        ("GET", f"/{NAME}/dir/key", [("authorization", "AWS4-HMAC-SHA256 secretsignature")]),
        ("NO GET", "/", []),
    ]
    with ServedProxy(bucket, tmp_path) as served:
        answers = []
        for method, target, headers in asked:
            answers.append(ask(served.address, method, target, headers))
            served.settle()  # lines appear in the order in which requests end, and a client has its answer before that
        assert served.stop() == 0
        lines = served.lines("request")
        assert "secretsignature" not in served.log.read_text()
    assert [line["status"] for line in lines] == [answer.status for answer in answers]
    for line in lines:
        assert (line["level"], line["client"], "cut" in line) == ("info", "-", False)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["seconds"] >= 0
    first, ranged, head, nameless, *_ = lines
    assert (first["op"], first["bucket"], first["key"], first["cache"]) == ("get", NAME, "dir/key", "MISS")
    assert first["request"] == answers[0].headers["x-amz-request-id"]
    assert (ranged["range"], ranged["bytes"], ranged["status"]) == ("bytes=2-4", 3, 206)
    assert (head["op"], head["method"], head["bytes"], head["cache"]) == ("head", "HEAD", 0, "HIT")
    assert (nameless["op"], nameless["cache"]) == ("bad", "BYPASS")
