"""Large bodies of requests, which threads pass on past the event loop: the same promises as for small ones."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from outrider.adapters.origin import blocking_connection, bulk_client
from outrider.adapters.origin.body_sender import pass_on
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.core.auth.sigv4 import Credentials
from outrider.metrics import Metrics
from outrider.ports import Buffer, OriginRequest
from tests.support.fakes import RAMP, reply_to
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, request
from tests.support.signed_requests import UNSIGNED_TRAILER, Chunked, checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
NAME = "large-bodies"
BODY = (RAMP * (3 * MIB // len(RAMP) + 1))[: 3 * MIB + 1]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
REFUSED = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 30\r\n\r\n<Error><Code>No</Code></Error>"
WAIT_S = 60.0


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    bucket.make_bucket(NAME)
    with Proxy(bucket, freshness="immutable") as running:
        yield running


@pytest.fixture
def direct(bucket: Bucket) -> Iterator[Any]:
    client = bucket.client()
    yield client
    client.close()


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that passed bodies on."""
    names: list[str] = []

    def recorded(*args: Any) -> bool:
        names.append(threading.current_thread().name)
        return pass_on(*args)

    monkeypatch.setattr(blocking_connection, "pass_on", recorded)
    return names


class Origin:
    """Serves connections in threads, each with `serve`. `heads`: of the requests that it read."""

    def __init__(self, serve: Callable[[Origin, socket.socket], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.over = threading.Event()
        """The test has seen what it wanted."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextmanager
    def running(self) -> Iterator[Origin]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self.over.set()
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with connection:
            self._serve(self, connection)

    def read_head(self, connection: socket.socket) -> bytes:
        """The bytes behind the head that came with it."""
        came = b""
        while b"\r\n\r\n" not in came:
            more = connection.recv(65536)
            if not more:
                return b""
            came += more
        head, _, rest = came.partition(b"\r\n\r\n")
        self.heads.append(head)
        return rest

    def read_body(self, connection: socket.socket, rest: bytes, size: int) -> None:
        body = bytearray(rest)
        while len(body) < size and (more := connection.recv(65536)):
            body += more
        self.bodies.append(bytes(body))


def put(key: str, body: bytes = BODY, *headers: tuple[str, str]) -> bytes:
    return request("PUT", f"/{NAME}/{key}", [*headers, ("content-length", str(len(body)))])


def stored(direct: Any, key: str) -> bytes | None:
    try:
        return bytes(direct.get_object(Bucket=NAME, Key=key)["Body"].read())
    except direct.exceptions.NoSuchKey:
        return None


def test_the_next_request_begins_behind_a_large_body(proxy: Proxy, direct: Any, passed_on: list[str]) -> None:
    counts = []
    for cut in (0, 1000, 200_000):  # so many bytes of the body come with its head
        for _ in range(3):
            with RawConnection(proxy.address) as connection:
                connection.send(put("pipelined") + BODY[:cut])
                connection.send(BODY[cut:] + request("GET", f"/{NAME}/pipelined") + put("second"))
                assert connection.read_answer("PUT").status == 200
                assert connection.read_answer().body == BODY
                connection.send(BODY)
                assert connection.read_answer("PUT").status == 200
                counts.append(len(os.listdir("/proc/self/fd")))
    assert stored(direct, "pipelined") == stored(direct, "second") == BODY
    assert len(passed_on) == 2 * len(counts)
    # Descriptors are closed. Other parts of the test run may open a few of their own.
    assert counts[-1] - counts[0] < 8, counts


def test_a_client_that_waits_for_a_100_continue_receives_it(proxy: Proxy, direct: Any, passed_on: list[str]) -> None:
    with RawConnection(proxy.address) as connection:
        for _ in range(2):
            connection.send(put("continued", BODY, ("expect", "100-continue")))
            assert connection.read_line() == b"HTTP/1.1 100 Continue\r\n"
            assert connection.read_line() == b"\r\n"
            connection.send(BODY)
            assert connection.read_answer("PUT").status == 200
    assert stored(direct, "continued") == BODY
    assert len(passed_on) == 2


def test_a_large_body_with_another_hash_or_checksum_is_not_stored(
    proxy: Proxy, direct: Any, passed_on: list[str]
) -> None:
    right = ("x-amz-content-sha256", sha256(BODY).hexdigest())
    with RawConnection(proxy.address) as connection:
        connection.send(put("right", BODY, right) + BODY)
        assert connection.read_answer("PUT").status == 200
        connection.send(put("wrong", BODY, right))
        connection.send(BODY[:-1] + b"?")
        answer = connection.read_answer("PUT")
        assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")
        # The whole body was read: the connection goes on.
        assert connection.ask("GET", f"/{NAME}/right").body == BODY
    for key, summed in (("right", BODY), ("wrong", BODY[:-1])):
        chunked = Chunked(BODY, trailer=("x-amz-checksum-crc32", checksum("crc32", summed)))
        headers, body = [*chunked.headers(), ("x-amz-content-sha256", UNSIGNED_TRAILER)], chunked.encode()
        with RawConnection(proxy.address) as connection:
            connection.send(put(key, body, *headers) + body)
            assert connection.read_answer("PUT").status == (400 if key == "wrong" else 200)
    assert (stored(direct, "right"), stored(direct, "wrong")) == (BODY, None)
    assert len(passed_on) == 4


def test_nothing_behind_an_early_answer_is_taken_for_a_request(bucket: Bucket, passed_on: list[str]) -> None:
    def refuse(origin: Origin, connection: socket.socket) -> None:
        origin.read_head(connection)
        connection.sendall(REFUSED)
        origin.over.wait(WAIT_S)

    with Origin(refuse).running() as origin, Proxy(bucket, origin.endpoint) as proxy:
        with RawConnection(proxy.address) as connection:
            connection.send(put("early", BODY * 3) + BODY)
            answer = connection.read_answer("PUT")
            assert (answer.status, answer.headers["connection"]) == (403, "close")
            connection.send(request("DELETE", f"/{NAME}/smuggled") * 100)
            assert connection.is_closed_by_peer()
        # The origin waits for the rest of the first body on its first connection.
        with RawConnection(proxy.address) as connection:
            connection.send(put("early") + BODY[:MIB])
            assert connection.read_answer("PUT").status == 403
        assert [head.split(b" ")[0] for head in origin.heads] == [b"PUT", b"PUT"]
    assert len(passed_on) == 2


def test_a_large_write_is_sent_once_to_an_origin_that_hangs_up(bucket: Bucket, passed_on: list[str]) -> None:
    def leave(origin: Origin, connection: socket.socket) -> None:
        origin.read_body(connection, origin.read_head(connection), len(BODY))
        connection.sendall(OK)
        origin.read_head(connection)

    with Origin(leave).running() as origin, Proxy(bucket, origin.endpoint) as proxy:
        with RawConnection(proxy.address) as connection:
            connection.send(put("kept") + BODY)
            assert connection.read_answer("PUT").status == 200
            # On the same connection to the origin.
            connection.send(put("dropped") + BODY[:MIB])
            answer = connection.read_answer("PUT")
            assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert len(origin.heads) == 2
    assert len(passed_on) == 2


def test_a_client_that_stops_in_a_large_body_is_refused(
    bucket: Bucket, direct: Any, proxy: Proxy, passed_on: list[str]
) -> None:
    with Proxy(bucket, client_timeout_s=0.3) as hasty, RawConnection(hasty.address) as connection:
        connection.send(put("stopped") + BODY[:MIB])
        assert connection.read_answer("PUT").code == "RequestTimeout"
        assert connection.is_closed_by_peer()
    assert stored(direct, "stopped") is None
    assert len(passed_on) == 1


def test_without_a_free_thread_a_large_body_passes_the_event_loop(
    bucket: Bucket, direct: Any, passed_on: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_client, "_SENDERS", 1)
    bucket.make_bucket(NAME)
    with Proxy(bucket) as proxy, RawConnection(proxy.address) as slow, RawConnection(proxy.address) as other:
        slow.send(put("slow", BODY, ("expect", "100-continue")))
        assert slow.read_line() == b"HTTP/1.1 100 Continue\r\n"
        assert other.ask("PUT", f"/{NAME}/other", [("content-length", str(len(BODY)))], BODY).status == 200
        assert len(passed_on) == 1
        slow.read_line()
        slow.send(BODY)
        assert slow.read_answer("PUT").status == 200
        assert other.ask("PUT", f"/{NAME}/third", [("content-length", str(len(BODY)))], BODY).status == 200
    assert len(passed_on) == 2
    assert [stored(direct, key) for key in ("slow", "other", "third")] == [BODY] * 3


def test_a_large_body_in_http_chunks_passes_the_event_loop(proxy: Proxy, direct: Any, passed_on: list[str]) -> None:
    chunked = Chunked(BODY)
    headers, body = [*chunked.headers(), ("x-amz-content-sha256", UNSIGNED_TRAILER)], chunked.encode()
    with RawConnection(proxy.address) as connection:
        connection.send(request("PUT", f"/{NAME}/in-chunks", [*headers, ("transfer-encoding", "chunked")]))
        connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert connection.read_answer("PUT").status == 200
    assert (stored(direct, "in-chunks"), passed_on) == (BODY, [])


class Stalled:
    """A body of which nothing comes."""

    def __init__(self) -> None:
        self.is_read = threading.Event()
        self.ended = asyncio.Event()

    def begin(self) -> bool:
        return True

    def read(self, beside: int) -> list[Buffer] | None:
        self.is_read.set()
        look = select.poll()
        look.register(beside, select.POLLIN)
        assert look.poll(WAIT_S * 1e3), "the wait was not ended"
        return []

    def end(self) -> None:
        self.ended.set()


class Anonymous:
    async def current(self) -> Credentials | None:
        return None

    async def renew(self, refused: Credentials) -> bool:
        return False


async def test_a_send_that_is_given_up_frees_its_thread() -> None:
    def listen(origin: Origin, connection: socket.socket) -> None:
        origin.over.wait(WAIT_S)

    body = Stalled()
    with Origin(listen).running() as server:
        origin = HttpOrigin(server.endpoint, "us-east-1", Anonymous(), Metrics(), lambda: 0.0, connections=1)
        await origin.open()

        async def send() -> None:
            put_it = OriginRequest("PUT", "bucket", "key", body=_none(), body_bytes=9 * MIB, body_in_thread=body)
            async with reply_to(origin, put_it):
                raise AssertionError("an answer")

        sending = asyncio.create_task(send())
        await asyncio.to_thread(body.is_read.wait, WAIT_S)
        sending.cancel()
        await asyncio.wait([sending])
        async with asyncio.timeout(WAIT_S):
            await body.ended.wait()
        await origin.close()


async def _none() -> Any:
    raise AssertionError("the body is the thread's")
    yield b""
