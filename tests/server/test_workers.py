"""Several event loops (workers) over one cache: a client sees the same as with one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from outrider.http.s3.connection import _HITS_TO_LEND_OUT
from outrider.settings import SettingsError, load
from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import RawConnection, ask, request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
RAMP = (bytes(range(251)) * (24 * MIB // 251 + 1))[: 24 * MIB]
NAME = "workers"
BIG, SMALL = f"/{NAME}/big", f"/{NAME}/small"
WORKERS = 3


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="big", Body=RAMP)
    client.put_object(Bucket=NAME, Key="small", Body=RAMP[:1000])
    client.close()


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket, workers=WORKERS, freshness="immutable") as running:
        for target in (BIG, SMALL):
            ask(running.address, "GET", target)
        running.settle()
        yield running


def loads(proxy: Proxy) -> list[int]:
    """The number of connections on each worker, the engine's own loop last."""
    server = proxy.outrider.server
    assert server.workers is not None
    return [*server.workers.loads(), len(server.connections)]


def test_connections_are_spread_over_the_loops(proxy: Proxy) -> None:
    connections = [RawConnection(proxy.address) for _ in range(2 * WORKERS)]
    try:
        for connection in connections:
            assert connection.ask("GET", SMALL).body == RAMP[:1000]
        # Connections that have just left may still be counted on one worker.
        assert sum(loads(proxy)) >= 2 * WORKERS
        assert min(loads(proxy)) >= 1
    finally:
        for connection in connections:
            connection.close()


def test_long_bodies_go_out_of_all_loops_at_once_and_are_counted_once(proxy: Proxy) -> None:
    before = proxy.metric("outrider_served_bytes_total", source="disk")
    asked = proxy.metric("outrider_requests_total", op="get", cache="HIT")
    with ThreadPoolExecutor(8) as readers:
        bodies = list(readers.map(lambda _: ask(proxy.address, "GET", BIG).body, range(16)))
    assert all(body == RAMP for body in bodies)
    proxy.settle()
    assert proxy.metric("outrider_served_bytes_total", source="disk") - before == 16 * len(RAMP)
    assert proxy.metric("outrider_requests_total", op="get", cache="HIT") - asked == 16


def test_a_connection_moves_between_loops_and_loses_no_request(proxy: Proxy) -> None:
    with RawConnection(proxy.address) as first, RawConnection(proxy.address) as second:
        for connection in (first, second):
            for number in range(3):
                key = f"new-{id(connection)}-{number}"
                for _ in range(12):
                    assert connection.ask("GET", SMALL, [("range", "bytes=10-19")]).body == RAMP[10:20]
                assert connection.ask("PUT", f"/{NAME}/{key}", [("content-length", "3")], b"abc").status == 200
                assert connection.ask("GET", f"/{NAME}/{key}").body == b"abc"
                assert connection.ask("GET", f"/{NAME}/nothing").code == "NoSuchKey"


def test_pipelined_requests_are_answered_in_order(proxy: Proxy) -> None:
    with RawConnection(proxy.address) as connection:
        for _ in range(3):
            connection.send(b"".join(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % t.encode() for t in (BIG, SMALL, BIG)))
            assert [connection.read_answer().body for _ in range(3)] == [RAMP, RAMP[:1000], RAMP]
            connection.send(f"GET {BIG} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            connection.send(f"GET {SMALL} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            assert [connection.read_answer().body for _ in range(2)] == [RAMP, RAMP[:1000]]


def test_settle_waits_for_requests_sent_before_it(proxy: Proxy) -> None:
    """A count after `Proxy.settle` includes all requests sent before it, even those whose answers the test has not
    read."""
    before = proxy.metric("outrider_requests_total")
    with ExitStack() as stack:
        for number in range(1, 31):
            connection = stack.enter_context(RawConnection(proxy.address))
            connection.send(request("GET", SMALL))
            proxy.settle()
            assert proxy.metric("outrider_requests_total") - before == number


def test_a_head_in_two_pieces_is_one_request(proxy: Proxy) -> None:
    for _ in range(WORKERS):
        with RawConnection(proxy.address) as connection:
            connection.send(f"GET {SMALL} HT".encode())
            connection.send(b"TP/1.1\r\nhost: x\r\n\r\n")
            assert connection.read_answer().body == RAMP[:1000]


def test_an_overwrite_through_one_loop_is_seen_on_all(proxy: Proxy) -> None:
    connections = [RawConnection(proxy.address) for _ in range(WORKERS)]
    try:
        for number in range(5):
            body = b"%04d" % number * 100
            put = ask(proxy.address, "PUT", f"/{NAME}/moving", [("content-length", str(len(body)))], body)
            assert put.status == 200
            for connection in connections:
                for _ in range(3):
                    assert connection.ask("GET", f"/{NAME}/moving").body == body
    finally:
        for connection in connections:
            connection.close()


def test_clients_that_hang_up_in_mid_body_leave_nothing(proxy: Proxy) -> None:
    for _ in range(30):
        with RawConnection(proxy.address) as connection:
            connection.send(f"GET {BIG} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            connection.sock.recv(1000)
    proxy.settle()
    assert ask(proxy.address, "GET", BIG).body == RAMP
    proxy.settle()
    store = proxy.outrider.store

    async def leases() -> int:
        return store.leases()

    assert proxy.on_loop(leases) == 0


def test_a_stop_lets_a_long_body_end_and_closes_idle_connections(bucket: Bucket) -> None:
    with Proxy(bucket, workers=WORKERS, freshness="immutable") as proxy:
        ask(proxy.address, "GET", BIG)
        proxy.settle()
        idle = [RawConnection(proxy.address) for _ in range(WORKERS)]
        slow = [RawConnection(proxy.address) for _ in range(WORKERS)]
        heads = []
        for connection in slow:
            connection.send(f"GET {BIG} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            heads.append(connection.read_head())
        stopping = threading.Thread(target=proxy.stop)
        stopping.start()
        assert all(connection.is_closed_by_peer() for connection in idle)
        assert all(head.read() == RAMP for head in heads)
        stopping.join()
        for connection in (*idle, *slow):
            connection.close()


def test_a_stop_tells_a_busy_client_that_its_next_request_is_the_last(bucket: Bucket) -> None:
    """Its current reply has begun and can no longer say so. A close behind that reply would lose a request on its
    way."""
    with Proxy(bucket, workers=WORKERS, freshness="immutable") as proxy, ExitStack() as stack:
        ask(proxy.address, "GET", BIG)
        proxy.settle()
        connections = [stack.enter_context(RawConnection(proxy.address)) for _ in range(4)]
        for _ in range(100 * _HITS_TO_LEND_OUT):
            for connection in connections:
                connection.ask("GET", BIG, [("range", "bytes=10-19")])
            # A connection whose next request came before its last reply was counted out is lent to a worker a little
            # later.
            if loads(proxy)[-1] == 0:
                break
        assert loads(proxy)[-1] == 0, "all connections are with workers"
        *slow, idle = connections
        heads = []
        for connection in slow:
            connection.send(request("GET", BIG))
            heads.append(connection.read_head())
        # A second request behind the first, whose reply is more than the socket can take.
        slow[1].send(request("GET", SMALL))
        stopping = threading.Thread(target=proxy.stop)
        stopping.start()
        assert idle.is_closed_by_peer()
        for connection, head in zip(slow[:2], heads[:2], strict=True):
            assert head.read() == RAMP
            if connection is slow[0]:
                connection.send(request("GET", SMALL))
            answer = connection.read_answer()
            assert (answer.body, answer.headers["connection"]) == (RAMP[:1000], "close")
            assert connection.is_closed_by_peer()
        assert heads[2].read() == RAMP
        stopping.join()


def test_the_command_accepts_several_workers_and_stops_cleanly(bucket: Bucket, tmp_path: Path) -> None:
    with ServedProxy(bucket, tmp_path, workers="2") as served:
        assert ask(served.address, "GET", SMALL).body == RAMP[:1000]
        served.settle()
        assert ask(served.address, "GET", SMALL).body == RAMP[:1000]
        assert served.stop() == 0
        assert [line["cache"] for line in served.lines("request")] == ["MISS", "HIT"]
        assert not [line for line in served.lines() if line["level"] in ("warning", "error")]


def test_tls_and_more_workers_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--workers above 1"):
        load({"workers": 2, "tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}, environ={})
