"""A stop as TLS clients see it: the reply to a late request says that it is the last, and a begun reply ends whole."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import TYPE_CHECKING, TypeVar

import pytest

from outrider.http.s3.connection import Connection
from tests.support.fakes import ramp
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bucket import Bucket
    from tests.support.tls import Certificate

T = TypeVar("T")

NAME = "tls-stop"
MIB = 1024 * 1024
SMALL, LARGE = ramp(1000), ramp(8 * MIB)


@pytest.fixture
def proxy(bucket: Bucket, certificate: Certificate) -> Iterator[Proxy]:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="small", Body=SMALL)
    client.put_object(Bucket=NAME, Key="large", Body=LARGE)
    client.close()
    with Proxy(bucket, tls_cert=certificate.chain, tls_key=certificate.key, freshness="immutable") as running:
        yield running


class TlsConnection(RawConnection):
    """A TLS client with small socket buffers."""

    def __init__(self, proxy: Proxy, certificate: Certificate) -> None:
        super().__init__(proxy.address)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        trusting = ssl.create_default_context(cafile=certificate.authority)
        self.sock = trusting.wrap_socket(self.sock, server_hostname="127.0.0.1")
        self._file = self.sock.makefile("rb")


class SlowHandshake(RawConnection):
    """A TLS client in mid-handshake: the proxy has answered its first message, and waits for the next."""

    def __init__(self, proxy: Proxy, certificate: Certificate) -> None:
        super().__init__(proxy.address)
        self._came, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        trusting = ssl.create_default_context(cafile=certificate.authority)
        self._tls = trusting.wrap_bio(self._came, self._to_send, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self.sock.sendall(self._to_send.read())
        self._came.write(self.sock.recv(MIB))

    def end_handshake_and_send(self, data: bytes) -> bytes:
        """Returns all bytes that come back until the connection ends."""
        self._as_it_comes(self._tls.do_handshake)
        self._tls.write(data)
        answer = b""
        while got := self._as_it_comes(lambda: self._tls.read(MIB)):
            answer += got
        return answer

    def _as_it_comes(self, act: Callable[[], T]) -> T:
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                self.sock.sendall(self._to_send.read())
                self._came.write(self.sock.recv(MIB))


def test_a_handshake_that_ends_amid_a_stop_has_one_request(proxy: Proxy, certificate: Certificate) -> None:
    idle, reader = (TlsConnection(proxy, certificate) for _ in range(2))
    with idle, reader, SlowHandshake(proxy, certificate) as late:
        assert idle.ask("GET", f"/{NAME}/small").body == SMALL
        reader.send(request("GET", f"/{NAME}/large"))
        under_way = reader.read_head()
        stopping = threading.Thread(target=proxy.stop)
        stopping.start()
        assert idle.is_closed_by_peer()
        head, _, body = late.end_handshake_and_send(request("GET", f"/{NAME}/small")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close" in head
        assert body == SMALL
        assert under_way.read() == LARGE
        stopping.join()


async def _give_room(proxy: Proxy, count: int) -> bool:
    """Set how many bytes the kernel takes for each connection; the transports keep the rest. Returns whether they have
    bytes left in the same loop iteration."""
    (connection,) = proxy.outrider.server.connections
    assert isinstance(connection, Connection)
    assert connection.transport is not None
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, count)
    return connection.has_work


async def _under_way(proxy: Proxy) -> int:
    return proxy.outrider.server.handler.in_flight


# The reply waits in the lower of the two transports; in the lower one, so full that it pauses the upper one; in both;
# or it is larger than both take.
@pytest.mark.parametrize("size", [80_000, 200_000, 500_000, len(LARGE)])
def test_a_reply_that_waits_for_its_client_in_the_transport_is_still_under_way(
    proxy: Proxy, certificate: Certificate, size: int
) -> None:
    with TlsConnection(proxy, certificate) as reader:
        assert reader.ask("GET", f"/{NAME}/large").body == LARGE
        proxy.settle()
        proxy.on_loop(lambda: _give_room(proxy, 16 * 1024))
        reader.send(request("GET", f"/{NAME}/large", [("range", f"bytes=0-{size - 1}")]))
        body = reader.read_head()
        server, got = proxy.outrider.server, bytearray()

        async def begin_to_drain() -> None:
            server.pre_shutdown()

        async def is_drained() -> bool:
            """Whether the server is idle a few loop iterations after the connection closes."""
            while any(
                connection.transport is not None and not connection.transport.is_closing()
                for connection in server.connections
            ):
                await asyncio.sleep(0)
            drained = asyncio.create_task(server.idle())
            for _ in range(5):
                await asyncio.sleep(0)
            return drained.done() or not drained.cancel()

        if size < len(LARGE):
            # The whole reply is in the transport, and the connection idles.
            proxy.settle()
        proxy.on_loop(begin_to_drain)
        while proxy.on_loop(lambda: _under_way(proxy)):
            got += body.read(64 * 1024)
        assert not proxy.on_loop(is_drained)
        got += body.read()
        assert got == LARGE[:size]
        proxy.on_loop(server.idle)


def test_a_reply_is_still_under_way_in_the_moment_in_which_its_client_takes_more(
    proxy: Proxy, certificate: Certificate
) -> None:
    with TlsConnection(proxy, certificate) as reader:
        assert reader.ask("GET", f"/{NAME}/large").body == LARGE
        proxy.on_loop(lambda: _give_room(proxy, 16 * 1024))
        reader.send(request("GET", f"/{NAME}/large", [("range", "bytes=0-499999")]))
        body = reader.read_head()
        proxy.settle()
        assert proxy.on_loop(lambda: _give_room(proxy, MIB))
        assert body.read() == LARGE[:500_000]
