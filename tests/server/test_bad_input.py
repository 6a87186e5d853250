"""Malformed requests on the S3 port: a correct S3 error, or a closed connection where the framing is ambiguous.

No part of a bad request leaks into the next one, and no reply holds a traceback.
"""

from __future__ import annotations

import contextlib
import logging
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.logs import logged
from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, RawConnection, ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

NAME = "bad-input"
EMOJI = "%F0%9F%98%80"
REQUEST_ID = re.compile(r"[0-9A-Za-z-]{8,64}")


@pytest.fixture(scope="module", autouse=True)
def home(bucket: Bucket) -> None:
    bucket.store(NAME, {"key": b"0123456789"})


@pytest.fixture(scope="module")
def loopback(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket) as running:
        yield running


@pytest.fixture
def proxy(loopback: Proxy) -> Iterator[Proxy]:
    with quiet():
        yield loopback
        assert ask(loopback.address, "GET", f"/{NAME}/key").body == b"0123456789", (
            "bytes of earlier requests are forgotten"
        )
        loopback.settle()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No client's bad input may be logged as an error of the proxy."""
    with logged("outrider") as records:
        yield
    assert records, "the log was not seen"
    for record in records:
        assert record.exc_info is None, record.getMessage()
        assert record.levelno < logging.ERROR, record.getMessage()


def assert_s3_error(answer: Answer, *codes: str) -> None:
    assert 400 <= answer.status < 500, answer.body
    error = answer.error
    assert error["Code"] in codes, error
    assert error["Message"]
    assert REQUEST_ID.fullmatch(error["RequestId"]), error
    assert answer.headers["content-type"] == "application/xml"
    assert answer.headers["x-cache"] == "BYPASS"
    assert "Traceback" not in answer.body.decode()


def sent(proxy: Proxy, wire: bytes) -> tuple[Answer, bool]:
    """The answer to these bytes, and whether the connection closed after it."""
    with RawConnection(proxy.address) as connection:
        connection.send(wire)
        return connection.read_answer(), connection.is_closed_by_peer()


HEAD = f"GET /{NAME}/key HTTP/1.1\r\nhost: x\r\n"
PUT = f"PUT /{NAME}/smuggled HTTP/1.1\r\nhost: x\r\n"
NEXT = f"GET /{NAME}/key HTTP/1.1\r\nhost: x\r\n\r\n"

DOUBTFUL = {
    "a Transfer-Encoding behind white space": PUT + "transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a Content-Length with an underscore": PUT + "content-length: 1_0\r\n\r\n0123456789",
    "an empty Content-Length": PUT + "content-length:\r\n\r\n",
    "the absolute form": HEAD.replace("GET /", "GET http://elsewhere/") + "\r\n",
    "the absolute form, beside no host": HEAD.replace("GET /", "GET http:///").replace("host: x", "host: ") + "\r\n",
    "the absolute form, with a user": HEAD.replace("GET /", "GET http://u@x/") + "\r\n",
    "the absolute form, on another port": HEAD.replace("GET /", "GET http://x:81/") + "\r\n",
    "the absolute form, with two Hosts": HEAD.replace("GET /", "GET http://x/") + "host: y\r\n\r\n",
    "the absolute form, with a path in the Host": HEAD.replace("GET /", "GET http://x/y/").replace(": x", ": x/y")
    + "\r\n",
    "the absolute form, with a query in the Host": HEAD.replace("GET /", "GET http://x?y/").replace(": x", ": x?y")
    + "\r\n",
    "the absolute form of another scheme": HEAD.replace("GET /", "GET ftp://x/") + "\r\n",
    "the asterisk form": HEAD.replace(f"GET /{NAME}/key", "OPTIONS *") + "\r\n",
    "a CONNECT": "CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere:443\r\n\r\n",
    "a CONNECT to a key": HEAD.replace("GET", "CONNECT") + "content-length: 0\r\n\r\n",
    "a TRACE": HEAD.replace("GET", "TRACE") + "\r\n",
    "a CONNECT to nowhere": "CONNECT \r\nhost: x\r\n\r\n",
    "a host that cannot be decoded": HEAD.replace(f"/{NAME}", "http://xn--a") + "\r\n",
    "the same, to be written": PUT.replace(f"/{NAME}", "http://xn--a") + "content-length: 4\r\n\r\nabcd",
    "a host in mismatched brackets": HEAD.replace(f"/{NAME}", "http://][@") + "\r\n",
    "a header without a colon": HEAD + "nonsense\r\n\r\n",
    "a header without a name": HEAD + ": value\r\n\r\n",
    "a NUL in a header": HEAD + "x-a: b\x00c\r\n\r\n",
    "a NUL in the path": HEAD.replace("key", "k\x00y") + "\r\n",
    "a space in the path": HEAD.replace("key", "k y") + "\r\n",
    "an unknown version": HEAD.replace("HTTP/1.1", "HTTP/9.1") + "\r\n",
    "another protocol": HEAD.replace("HTTP/1.1", "ICY/1.1") + "\r\n",
    "no version": HEAD.replace(" HTTP/1.1", "") + "\r\n",
    "a header over the limit": HEAD + f"x-long: {'a' * 40_000}\r\n\r\n",
    "too many headers": HEAD + "".join(f"x-{n}: a\r\n" for n in range(10_000)) + "\r\n",
    "a URL over the limit": HEAD.replace("key", "k" * 70_000) + "\r\n",
    "garbage": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}


def test_an_ambiguous_head_ends_the_connection(proxy: Proxy) -> None:
    """`tests/trust/test_security_requests.py` has the framings in which a second request could hide."""
    for case, wire in DOUBTFUL.items():
        answer, closed = sent(proxy, wire.encode("latin-1"))
        assert_s3_error(answer, "BadRequest")
        assert (answer.headers.get("connection"), closed) == ("close", True), case


def test_a_url_of_the_host_that_is_asked_is_its_path(proxy: Proxy) -> None:
    """Clients on the AWS CRT send it to an endpoint of their own."""
    for scheme in ("http", "https"):
        wire = HEAD.replace("GET /", f"GET {scheme}://x/") + "range: bytes=2-4\r\n\r\n"
        with RawConnection(proxy.address) as connection:
            connection.send(wire.encode())
            answer = connection.read_answer()
            assert (answer.status, answer.body) == (206, b"234")
            connection.send(NEXT.replace("/key", "/key?x-id=GetObject").replace("GET /", f"GET {scheme}://x/").encode())
            assert connection.read_answer().body == b"0123456789"


def test_metadata_whose_name_http_does_not_allow_is_refused_by_name(proxy: Proxy) -> None:
    """boto3 sends such names as they are."""
    for name in ("x-amz-meta-a/b", "x-amz-meta-(a)", 'x-amz-meta-a"b', "x-amz-meta-a b"):
        answer, _ = sent(proxy, (PUT + f"{name}: secret\r\ncontent-length: 4\r\n\r\nabcd").encode())
        assert (answer.status, answer.code) == (400, "BadRequest")
        assert f'invalid header token in the header name "{name}"' in answer.error["Message"]
        assert b"secret" not in answer.body


def test_a_target_that_crashes_the_parser_is_refused_whatever_comes_before_it(proxy: Proxy) -> None:
    dying = "GET http://][@ HTTP/1.1\r\nhost: x\r\n\r\n"
    with RawConnection(proxy.address) as connection:
        connection.send(NEXT.encode())
        assert connection.read_answer().body == b"0123456789"
        connection.send(dying.encode())
        assert_s3_error(connection.read_answer(), "BadRequest")
        assert connection.is_closed_by_peer()
    # The parser reads the bytes behind an Upgrade before the Upgrade is answered.
    with RawConnection(proxy.address) as connection:
        connection.send((HEAD + "connection: upgrade\r\nupgrade: x\r\n\r\n" + dying).encode())
        assert connection.read_answer().body == b"0123456789"
        assert connection.is_closed_by_peer()


def test_a_name_that_s3_does_not_allow_is_refused_before_anything_looks_at_it(proxy: Proxy) -> None:
    for target, code in (
        ("/.../k", "InvalidBucketName"), ("/%2e%2e/etc/passwd", "InvalidBucketName"),
        (f"/{NAME}/{'a' * 30_000}", "KeyTooLongError"), (f"/{NAME}/{EMOJI * 256}k", "KeyTooLongError"),
    ):  # fmt: skip
        for method in ("GET", "PUT", "DELETE"):
            answer = ask(proxy.address, method, target, [("content-length", "0")])
            assert_s3_error(answer, code)
            assert answer.status == 400
        with RawConnection(proxy.address) as connection:
            answer = connection.ask("HEAD", target)
            assert (answer.status, answer.body) == (400, b"")
            assert connection.ask("GET", f"/{NAME}/key").body == b"0123456789", "the connection goes on"


def test_a_header_is_stored_as_it_was_sent_or_refused_by_its_name(proxy: Proxy) -> None:
    """A User-Agent need not be UTF-8, since it is not passed on."""
    target = f"/{NAME}/headers"

    def put(name: str, value: str) -> Answer:
        return ask(proxy.address, "PUT", target, [(name, value), ("content-length", "4")], b"body")

    for name in ("x-amz-meta-name", "content-disposition", "cache-control"):
        answer = put(name, "caf\udce9")
        assert (answer.status, answer.code) == (400, "InvalidRequest")
        assert f"header {name} " in answer.error["Message"]
        assert ask(proxy.address, "GET", target).status == 404
    assert put("x-amz-meta-name", "café").status == 200
    assert ask(proxy.address, "GET", target).headers["x-amz-meta-name"].encode("latin-1") == "café".encode()
    assert put("user-agent", "caf\udce9").status == 200
    assert ask(proxy.address, "DELETE", target).status == 204


def test_a_list_of_deletions_without_end_is_refused(proxy: Proxy) -> None:
    body = b"<Delete>" + b" " * (5 * 1024 * 1024)
    answer = ask(proxy.address, "POST", f"/{NAME}?delete", [("content-length", str(len(body)))], body)
    assert_s3_error(answer, "InvalidRequest")


def test_more_requests_than_allowed_get_503_slow_down(bucket: Bucket) -> None:
    with Proxy(bucket, requests=1) as narrow, RawConnection(narrow.address) as slow:
        slow.send(f"PUT /{NAME}/slow HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n".encode())
        assert slow.sock.recv(100).startswith(b"HTTP/1.1 100")
        answer = ask(narrow.address, "GET", f"/{NAME}/key")
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "SlowDown", "1")
        slow.send(b"done")
        assert slow.read_answer("PUT").status == 200
