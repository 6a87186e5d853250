"""A stop at each loop iteration between a request's arrival and the moment that it counts as under way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from outrider.http.s3.connection import Connection
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

NAME = "moments"
SMALL = b"small"
# More loop iterations than a request that needs no disk and no bucket takes from its head to the end of its reply.
LOOP_ITERATIONS = 6
PUT = request("PUT", f"/{NAME}/written", [("content-length", "4")])
PUT_EXPECTING_CONTINUE = request("PUT", f"/{NAME}/written", [("content-length", "4"), ("expect", "100-continue")])
GET = request("GET", f"/{NAME}/small")
# The object is known by then, and the fast path does not answer this request.
HEAD = request("HEAD", f"/{NAME}/small", [("if-none-match", '"another"')])
HEADS = pytest.mark.parametrize(
    "head", [PUT, PUT_EXPECTING_CONTINUE, GET], ids=["PUT", "PUT, expecting 100-continue", "GET"]
)


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    bucket.store(NAME, {"small": SMALL})
    with Proxy(bucket) as running:
        with RawConnection(running.address) as reader:
            assert reader.ask("GET", f"/{NAME}/small").body == SMALL
        running.settle()
        yield running


def stop_between(proxy: Proxy, *parts: bytes | int) -> None:
    """The client's bytes arrive, and loop iterations pass, as `parts` state; then a stop begins."""
    server = proxy.outrider.server

    async def happen() -> None:
        (connection,) = server.connections
        assert isinstance(connection, Connection)
        for part in parts:
            if isinstance(part, bytes):
                connection.data_received(part)
                continue
            for _ in range(part):
                await asyncio.sleep(0)
        server.pre_shutdown()
        # The flag is reset, for the next test's stop.
        server.is_ending = False

    proxy.on_loop(happen)


def connected(proxy: Proxy) -> RawConnection:
    proxy.settle()
    connection = RawConnection(proxy.address)
    # Now the proxy has accepted the connection, too.
    proxy.settle()
    return connection


def is_answered_as_the_last(connection: RawConnection, head: bytes) -> bool:
    if head is GET:
        # The fast path may have answered it before the stop; whether the reply says `connection: close` is then not
        # known.
        return connection.read_answer().body == SMALL and connection.is_closed_by_peer()
    if head is PUT_EXPECTING_CONTINUE:
        assert connection.read_line().startswith(b"HTTP/1.1 100")
        connection.read_line()
    connection.send(b"sent")
    answer = connection.read_answer("PUT")
    return (answer.status, answer.headers.get("connection")) == (200, "close") and connection.is_closed_by_peer()


@HEADS
def test_a_request_that_came_before_a_stop_is_answered(proxy: Proxy, head: bytes) -> None:
    for after in range(LOOP_ITERATIONS):
        with connected(proxy) as connection:
            stop_between(proxy, head, after)
            assert is_answered_as_the_last(connection, head), after


@HEADS
def test_a_request_behind_a_reply_without_connection_close_is_answered_too(proxy: Proxy, head: bytes) -> None:
    answered = 0
    for between in range(LOOP_ITERATIONS):
        for after in range(4):
            with connected(proxy) as connection:
                stop_between(proxy, HEAD, between, head, after)
                before = connection.read_answer("HEAD")
                assert before.status == 200
                if before.headers.get("connection") == "close":
                    assert connection.is_closed_by_peer()
                else:
                    assert is_answered_as_the_last(connection, head), (between, after)
                    answered += 1
    assert answered > LOOP_ITERATIONS


def test_no_connection_is_left_open(proxy: Proxy) -> None:
    for after in range(LOOP_ITERATIONS):
        with connected(proxy) as connection:
            stop_between(proxy, HEAD, after)
            assert connection.read_answer("HEAD").status == 200
            assert connection.is_closed_by_peer(), after
