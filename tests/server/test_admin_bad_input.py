"""Malformed and slow input on the admin port: it answers or closes the connection, and goes on serving others."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import pytest

from outrider.http.admin import server
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

Address = tuple[str, int]
HEAD = "GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
POST = "POST /status HTTP/1.1\r\nhost: 127.0.0.1\r\n"


def admin_of(proxy: Proxy) -> Address:
    host, _, port = proxy.outrider.admin.rpartition(":")
    return host, int(port)


@pytest.fixture(scope="module")
def patient(bucket: Bucket) -> Iterator[Address]:
    """A proxy whose admin time limit no test reaches: a connection that ends was ended by its answer."""
    with Proxy(bucket, client_timeout_s=3600) as running:
        yield admin_of(running)


@pytest.fixture(scope="module")
def hasty(bucket: Bucket) -> Iterator[Address]:
    with Proxy(bucket, client_timeout_s=0.3) as running:
        yield admin_of(running)


WHOLE = {
    "a CONNECT to nowhere": ("CONNECT \r\nhost: x\r\n\r\n", 404),
    "a host that cannot be decoded": (HEAD.replace("GET /", "GET http://xn--a/") + "\r\n", 404),
    "a CONNECT": ("CONNECT elsewhere:443 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 404),
    "a CONNECT to a page": ("CONNECT /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 404),
    "garbage": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "an HTTP/2 preface": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "the asterisk form": (HEAD.replace("GET /healthz", "OPTIONS *") + "\r\n", 404),
    "a TRACE": (HEAD.replace("GET", "TRACE") + "\r\n", 405),
    "no Host": ("GET /healthz HTTP/1.1\r\n\r\n", 400),
    "a long line": ("A" * 200_000, 400),
    "a long field": (HEAD + f"x-a: {'a' * 40_000}\r\n\r\n", 400),
    "many fields": (HEAD + "".join(f"x-{n}: a\r\n" for n in range(10_000)) + "\r\n", 400),
    "many fields and no end": (HEAD + "".join(f"x-{n}: a\r\n" for n in range(10_000)), 400),
    "a malformed chunk": (POST + "transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    "a bad address": ("GET http://[::1/ HTTP/1.1\r\nhost: [::1\r\n\r\n", 400),
    "a host in mismatched brackets": (HEAD.replace("GET /", "GET http://][@/") + "\r\n", 400),
    "half a body": (POST + "content-length: 100\r\n\r\nabc", 405),
    "an Upgrade": (HEAD + "connection: upgrade\r\nupgrade: websocket\r\n\r\n" + HEAD + "\r\n", 200),
    "many requests at once": ((HEAD + "\r\n") * 100, 200),
    "one request": (HEAD + "\r\n", 200),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_bad_request_gets_one_answer_and_a_closed_connection(
    patient: Address, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent, status = WHOLE[case]
    with RawConnection(patient) as connection:
        connection.send(sent.encode("latin-1"))
        assert int(connection.read_line().split()[1]) == status
        # The bytes sent after the bad request may turn the orderly end into a reset.
        with contextlib.suppress(ConnectionError):
            while connection.read_line():
                pass
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert ask(patient, "GET", "/healthz").status == 200


@pytest.mark.parametrize("begun", ["", "G", HEAD, POST + "content-length: 100\r\n\r\n"])
def test_a_request_that_does_not_end_is_cut_off(hasty: Address, begun: str) -> None:
    with RawConnection(hasty) as connection:
        connection.send(begun.encode())
        with contextlib.suppress(ConnectionError):
            while connection.read_line():
                pass


def test_a_head_that_comes_a_line_at_a_time_is_cut_off(patient: Address) -> None:
    """Each header is within the parser's limit on size, and their number is within its limit on count."""
    with RawConnection(patient) as connection, contextlib.suppress(ConnectionError):
        connection.send(HEAD.encode())
        for number in range(100):
            connection.send(f"x-{number}: {'a' * 4000}\r\n".encode())
        assert connection.read_line() == b""


def test_beyond_the_limit_the_oldest_connection_is_closed(patient: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CONNECTIONS_MAX", 2)
    with RawConnection(patient) as first, RawConnection(patient) as second:
        first.send(b"G")
        second.send(b"G")
        assert ask(patient, "GET", "/healthz").status == 200
        assert first.is_closed_by_peer()
        second.send(b"ET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert second.read_answer().status == 200
