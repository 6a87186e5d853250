"""A stop as clients see it that speak TLS: whoever comes late is told that it stops, and what was sent comes whole."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.fakes import ramp
from tests.support.proxy import Proxy
from tests.support.rawhttp import TIMEOUT_S, RawConnection, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.certificate import Certificate

NAME = "tls-stop"
SMALL, LARGE = ramp(1000), ramp(8 * 1024 * 1024)


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
    """With small buffers."""

    def __init__(self, proxy: Proxy, certificate: Certificate) -> None:
        super().__init__(proxy.address)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        trusting = ssl.create_default_context(cafile=certificate.authority)
        self.sock = trusting.wrap_socket(self.sock, server_hostname="127.0.0.1", do_handshake_on_connect=False)
        self._file = self.sock.makefile("rb")

    def begin_handshake(self) -> None:
        """Returns when the proxy has answered it."""
        assert isinstance(self.sock, ssl.SSLSocket)
        self.sock.settimeout(0)
        with pytest.raises(ssl.SSLWantReadError):
            self.sock.do_handshake()
        assert select.select([self.sock], [], [], TIMEOUT_S)[0]
        self.sock.settimeout(TIMEOUT_S)


def test_a_handshake_that_ends_amid_a_stop_has_one_request(proxy: Proxy, certificate: Certificate) -> None:
    late, idle, reader = (TlsConnection(proxy, certificate) for _ in range(3))
    with late, idle, reader:
        assert idle.ask("GET", f"/{NAME}/small").body == SMALL
        reader.send(request("GET", f"/{NAME}/large"))
        under_way = reader.read_head()
        late.begin_handshake()
        stopping = threading.Thread(target=proxy.stop)
        stopping.start()
        assert idle.is_closed_by_peer()
        answer = late.ask("GET", f"/{NAME}/small")
        assert (answer.status, answer.body, answer.headers["connection"]) == (200, SMALL, "close")
        assert late.is_closed_by_peer()
        assert under_way.read() == LARGE
        stopping.join()
