"""Reads through the proxy from a real bucket, over real sockets: restarts, outages, old clients, full sockets.

`test_differential` compares the answers with the bucket's own, for reads of any form.
"""

from __future__ import annotations

import http.client
import socket
from typing import TYPE_CHECKING, Any

import pytest

from outrider.http.wire import sender
from outrider.http.wire.sender import SocketSender
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

MIB = 1024 * 1024
BLOCK = 8 * MIB
# 251 is prime, so bytes shifted by any block show.
RAMP = (bytes(range(251)) * (5 * BLOCK // 251 + 1))[: 5 * BLOCK]
SIZES = {"empty": 0, "one": 1, "five": 5 * MIB, "block": BLOCK, "block-and-one": BLOCK + 1, "five-blocks": 5 * BLOCK}
NAME = "reads"


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {key: RAMP[:size] for key, size in SIZES.items()})


@pytest.fixture
def proxy(bucket: Bucket, simulator: Simulator) -> Iterator[Proxy]:
    with Proxy(bucket, simulator.endpoint, origin_patience_s="0.5") as running:
        simulator.reset()
        yield running


def test_whole_reads_hit_after_each_kind_of_restart(proxy: Proxy, simulator: Simulator) -> None:
    def read_all() -> list[str]:
        statuses = []
        for key, size in SIZES.items():
            answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
            assert answer.body == RAMP[:size], key
            statuses.append(answer.headers["x-cache"])
            proxy.settle()
        return statuses

    # An empty object has no block that could be missing.
    assert read_all() == ["HIT", *["MISS"] * (len(SIZES) - 1)]
    sent = simulator.counts().body_bytes
    assert sent - sum(SIZES.values()) < 1000, "no byte twice (only an error document may add some)"
    for crashed in (False, True):
        assert read_all() == ["HIT"] * len(SIZES)
        proxy.restart(crashed=crashed)
    assert read_all() == ["HIT"] * len(SIZES)
    assert simulator.counts().body_bytes - sent < 1000


def test_a_reply_says_whether_its_bytes_were_cached(proxy: Proxy) -> None:
    ask(proxy.address, "GET", f"/{NAME}/five-blocks", [("range", "bytes=0-9")])
    proxy.settle()
    answer = ask(proxy.address, "GET", f"/{NAME}/five-blocks", [("range", f"bytes=0-{2 * BLOCK}")])
    assert (answer.headers["x-cache"], answer.body) == ("PARTIAL", RAMP[: 2 * BLOCK + 1])
    assert ask(proxy.address, "GET", f"/{NAME}/five?tagging").headers["x-cache"] == "BYPASS"


def test_an_object_may_have_hundreds_of_metadata_headers(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.client, "_MAXHEADERS", 500)  # the client's own limit
    metadata = [(f"x-amz-meta-{number:03}", "1") for number in range(300)]
    headers = [*metadata, ("content-length", "1")]
    assert ask(proxy.address, "PUT", f"/{NAME}/many-headers", headers, b"x").status == 200
    for _ in ("cold", "warm"):
        for method in ("HEAD", "GET"):
            answer = ask(proxy.address, method, f"/{NAME}/many-headers")
            assert (answer.status, dict(metadata).items() <= answer.headers.items()) == (200, True)


def test_a_connection_is_kept_as_its_client_asks(proxy: Proxy) -> None:
    alive = [("connection", "keep-alive")]
    with RawConnection(proxy.address) as connection:
        for method, key, body in [("GET", "five", RAMP[: 5 * MIB]), ("HEAD", "five", b""), ("GET", "one", RAMP[:1])]:
            assert connection.ask(method, f"/{NAME}/{key}").body == body
        assert connection.ask("GET", f"/{NAME}/no").code == "NoSuchKey"
        assert connection.ask("GET", f"/{NAME}/five", [("connection", "close")]).headers["connection"] == "close"
        assert connection.is_closed_by_peer()
    with RawConnection(proxy.address) as connection:
        assert connection.ask("GET", f"/{NAME}/one", version="HTTP/1.0").body == RAMP[:1]
        assert connection.is_closed_by_peer()
    with RawConnection(proxy.address) as connection:
        for _ in range(2):
            answer = connection.ask("GET", f"/{NAME}/one", alive, version="HTTP/1.0")
            assert (answer.body, answer.headers["connection"]) == (RAMP[:1], "keep-alive")
        assert b"ListBucketResult" in connection.ask("GET", f"/{NAME}", alive, version="HTTP/1.0").body


def test_an_outage_of_the_bucket_is_an_s3_error_for_what_is_not_cached(bucket: Bucket, simulator: Simulator) -> None:
    for settings, stale in (({"stale_if_error": True, "origin_patience_s": "60"}, 200), ({}, 503)):
        given: dict[str, Any] = {"freshness": "always", "origin_patience_s": "0.5", **settings}
        with Proxy(bucket, simulator.endpoint, **given) as proxy:
            assert ask(proxy.address, "GET", f"/{NAME}/five").status == 200
            with simulator.outage():
                assert ask(proxy.address, "GET", f"/{NAME}/five").status == stale, "stale objects, where chosen"
    with Proxy(bucket, simulator.endpoint, origin_patience_s="0.5") as proxy:
        ask(proxy.address, "GET", f"/{NAME}/five")
        with simulator.outage():
            assert ask(proxy.address, "GET", f"/{NAME}/five").body == RAMP[: 5 * MIB]
            cold = ask(proxy.address, "GET", f"/{NAME}/block")
            assert (cold.status, cold.code) == (503, "ServiceUnavailable")
            assert cold.error["RequestId"] == cold.headers["x-amz-request-id"]
            assert ask(proxy.address, "HEAD", f"/{NAME}/block").status == 503
            assert ask(proxy.address, "GET", f"/{NAME}?list-type=2").code == "ServiceUnavailable"
            assert ask(proxy.address, "PUT", f"/{NAME}/k", [("content-length", "1")], b"x").code == "ServiceUnavailable"
        assert ask(proxy.address, "GET", f"/{NAME}/block").body == RAMP[:BLOCK]


def test_the_send_buffer_of_a_nearby_client_is_bounded(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    close = socket.socket.close

    def noted(self: socket.socket) -> None:
        if self.fileno() >= 0 and self.family == socket.AF_INET and self.getsockname() == proxy.address:
            held.append(self.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        close(self)

    monkeypatch.setattr(socket.socket, "close", noted)
    for near_s, bounded in ((60.0, True), (0.0, False)):
        monkeypatch.setattr(sender, "_NEAR_S", near_s)
        held.clear()
        for _ in range(2):
            assert ask(proxy.address, "GET", f"/{NAME}/five-blocks").body == RAMP
            proxy.settle()
        assert held
        assert all((size <= 2 * sender._NEAR_BUFFER_BYTES) == bounded for size in held), held


def test_a_small_miss_arrives_whole_however_little_the_socket_takes_at_once(
    bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    for taken in (0, 10, 5000, 10**6):
        bucket.store(NAME, {f"small-{taken}": RAMP[:50_000]})

        def little(self: SocketSender, head: bytes, body: bytes, taken: int = taken) -> int:
            together.append(taken)
            return self.send_now((bytes(head) + bytes(body))[:taken])

        monkeypatch.setattr(SocketSender, "send_parts_now", little)
        answer = ask(proxy.address, "GET", f"/{NAME}/small-{taken}")
        assert (answer.status, answer.body) == (200, RAMP[:50_000])
        assert taken in together, "head and body were not sent together"
