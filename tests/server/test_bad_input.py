"""Malformed requests on the S3 port: a correct S3 error, or a closed connection where the framing is ambiguous.

No part of a bad request leaks into the next one, and no reply holds a traceback.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.logs import logged
from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, RawConnection, ask
from tests.support.signed_requests import Chunked, checksum, signed_head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

NAME = "bad-input"
KEYS = ("BADCLIENT", "bad-client-secret")
EMOJI = "%F0%9F%98%80"
REQUEST_ID = re.compile(r"[0-9A-Za-z-]{8,64}")


@pytest.fixture(scope="module", autouse=True)
def home(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="key", Body=b"0123456789")
    client.close()


@pytest.fixture(scope="module")
def loopback(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket) as running:
        yield running


@pytest.fixture
def impatient(bucket: Bucket) -> Iterator[Proxy]:
    """A proxy with short time limits, used only by tests of silent clients: on a busy machine any other test may pause
    for as long in mid-request."""
    with Proxy(bucket, client_timeout_s=0.5) as running, quiet():
        yield running
        assert ask(running.address, "GET", f"/{NAME}/key").body == b"0123456789"
        running.settle()


@pytest.fixture(scope="module")
def guarded(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    clients = tmp_path_factory.mktemp("bad") / "clients.toml"
    clients.write_text(
        f'[[client]]\naccess_key = "{KEYS[0]}"\nsecret_key = "{KEYS[1]}"\n'
        f'grants = [{{bucket = "{NAME}", access = "write"}}]\n'
    )
    with Proxy(bucket, auth="sigv4", clients=clients) as running:
        yield running


@pytest.fixture
def strict(guarded: Proxy) -> Iterator[Proxy]:
    with quiet():
        yield guarded
        guarded.settle()


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
    "two Content-Lengths": PUT + "content-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
    "two Content-Lengths that agree": PUT + "content-length: 4\r\ncontent-length: 4\r\n\r\nabcd",
    "Content-Lengths in a list": PUT + "content-length: 4, 4\r\n\r\nabcd",
    "Content-Length with Transfer-Encoding": PUT + "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding with Content-Length": PUT + "transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "an unknown Transfer-Encoding": PUT + "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a Transfer-Encoding that is more than chunked": PUT + "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked that is not last": PUT + "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two Transfer-Encodings": PUT + "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a Transfer-Encoding behind white space": PUT + "transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a negative Content-Length": PUT + "content-length: -1\r\n\r\n",
    "a signed Content-Length": PUT + "content-length: +4\r\n\r\nabcd",
    "a Content-Length with an underscore": PUT + "content-length: 1_0\r\n\r\n0123456789",
    "a Content-Length beyond 64 bits": PUT + "content-length: 99999999999999999999999\r\n\r\n",
    "an empty Content-Length": PUT + "content-length:\r\n\r\n",
    "two Hosts": HEAD + "host: y\r\n\r\n",
    "no Host": HEAD.replace("host: x\r\n", "") + "\r\n",
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
    "a folded header": HEAD + "x-long: a\r\n b\r\n\r\n",
    "a header name with a space before its colon": HEAD + "range : bytes=0-0\r\n\r\n",
    "a header without a colon": HEAD + "nonsense\r\n\r\n",
    "a header without a name": HEAD + ": value\r\n\r\n",
    "a NUL in a header": HEAD + "x-a: b\x00c\r\n\r\n",
    "a bare CR in a header": HEAD + "x-a: b\rc: d\r\n\r\n",
    "a NUL in the path": HEAD.replace("key", "k\x00y") + "\r\n",
    "a space in the path": HEAD.replace("key", "k y") + "\r\n",
    "an unknown version": HEAD.replace("HTTP/1.1", "HTTP/9.1") + "\r\n",
    "another protocol": HEAD.replace("HTTP/1.1", "ICY/1.1") + "\r\n",
    "no version": HEAD.replace(" HTTP/1.1", "") + "\r\n",
    "two Ranges": HEAD + "range: bytes=0-1\r\nrange: bytes=2-3\r\n\r\n",
    "a header over the limit": HEAD + f"x-long: {'a' * 40_000}\r\n\r\n",
    "too many headers": HEAD + "".join(f"x-{n}: a\r\n" for n in range(10_000)) + "\r\n",
    "a URL over the limit": HEAD.replace("key", "k" * 70_000) + "\r\n",
    "garbage": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "an HTTP/2 preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_an_ambiguous_head_ends_the_connection(proxy: Proxy, case: str) -> None:
    answer, closed = sent(proxy, DOUBTFUL[case].encode("latin-1"))
    assert_s3_error(answer, "BadRequest")
    assert answer.headers.get("connection") == "close"
    assert closed


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_url_of_the_host_that_is_asked_is_its_path(proxy: Proxy, scheme: str) -> None:
    """Clients on the AWS CRT send it to an endpoint of their own."""
    wire = HEAD.replace("GET /", f"GET {scheme}://x/") + "range: bytes=2-4\r\n\r\n"
    with RawConnection(proxy.address) as connection:
        connection.send(wire.encode())
        answer = connection.read_answer()
        assert (answer.status, answer.body) == (206, b"234")
        connection.send(NEXT.replace("/key", "/key?x-id=GetObject").replace("GET /", f"GET {scheme}://x/").encode())
        assert connection.read_answer().body == b"0123456789"


@pytest.mark.parametrize("name", ["x-amz-meta-a/b", "x-amz-meta-(a)", 'x-amz-meta-a"b', "x-amz-meta-a b"])
def test_metadata_whose_name_http_does_not_allow_is_refused_by_name(proxy: Proxy, name: str) -> None:
    """boto3 sends such names as they are."""
    answer, _ = sent(proxy, (PUT + f"{name}: secret\r\ncontent-length: 4\r\n\r\nabcd").encode())
    assert (answer.status, answer.code) == (400, "BadRequest")
    assert f'invalid header token in the header name "{name}"' in answer.error["Message"]
    assert b"secret" not in answer.body


@pytest.mark.parametrize(
    "wire",
    [
        PUT + "transfer-encoding: chunked\r\nx-amz-decoded-content-length: 4\r\n"
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n\r\n" + chunk
        for chunk in (
            "zz\r\nabcd\r\n0\r\n\r\n",
            "-4\r\nabcd\r\n0\r\n\r\n",
            "4\r\nabcdX0\r\n\r\n",
            "4 \nabcd\r\n0\r\n\r\n",
        )
    ],
)
def test_a_malformed_transfer_chunk_ends_the_connection(proxy: Proxy, wire: str) -> None:
    answer, closed = sent(proxy, (wire + NEXT).encode())
    assert_s3_error(answer, "BadRequest", "IncompleteBody", "InvalidRequest")
    assert closed
    assert ask(proxy.address, "GET", f"/{NAME}/smuggled").code == "NoSuchKey"


def test_bare_line_feeds_are_refused_or_understood_in_one_way_only(proxy: Proxy) -> None:
    answer, _ = sent(proxy, HEAD.replace("\r\n", "\n").encode() + b"connection: close\n\n")
    assert answer.status in (200, 400)


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


def test_bytes_after_a_refused_body_are_never_taken_for_a_request(proxy: Proxy) -> None:
    with RawConnection(proxy.address) as connection:
        smuggled = f"DELETE /{NAME}/key HTTP/1.1\r\nhost: x\r\n\r\n"
        connection.send(
            f"PUT /.../key HTTP/1.1\r\nhost: x\r\ncontent-length: {len(smuggled)}\r\n\r\n{smuggled}".encode()
        )
        assert_s3_error(connection.read_answer(), "InvalidBucketName")
        connection.send(NEXT.encode())
        # Either the body was skipped or the connection ends; its bytes are never served as a DELETE.
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert connection.read_answer().body == b"0123456789"


def test_an_upgrade_is_ignored(proxy: Proxy) -> None:
    for offer in ("websocket", "h2c"):
        with RawConnection(proxy.address) as connection:
            answer = connection.ask("GET", f"/{NAME}/key", [("connection", "upgrade"), ("upgrade", offer)])
            assert (answer.status, answer.body) == (200, b"0123456789")
            assert connection.is_closed_by_peer()


NO_BUCKETS = [
    "/%2e%2e/etc/passwd", "/../../etc/passwd", "/.../k", "/-b/k", "/b%00b/k", "/b%0ab/k", "/b%20b/k", "/%FF/k",
    "/" + "b" * 300 + "/k", "/b%2F..%2Fc", "/*/k", "/%C3%BC/k",
]  # fmt: skip


@pytest.mark.parametrize("target", NO_BUCKETS)
def test_an_invalid_bucket_name_is_refused_as_such(proxy: Proxy, target: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = ask(proxy.address, method, target, [("content-length", "0")])
        assert_s3_error(answer, "InvalidBucketName")
        assert answer.status == 400
    assert ask(proxy.address, "HEAD", target).status == 400


def test_a_key_longer_than_s3_allows_is_refused_before_anything_looks_at_it(proxy: Proxy) -> None:
    for key in ("a" * 30_000, EMOJI * 256 + "k"):
        for method in ("GET", "PUT", "DELETE", "OPTIONS"):
            answer = ask(proxy.address, method, f"/{NAME}/{key}", [("content-length", "0")])
            assert_s3_error(answer, "KeyTooLongError")
            assert (answer.status, answer.error["Message"]) == (400, "Your key is too long")
        with RawConnection(proxy.address) as connection:
            answer = connection.ask("HEAD", f"/{NAME}/{key}")
            assert (answer.status, answer.body) == (400, b"")
            assert connection.ask("GET", f"/{NAME}/key").body == b"0123456789", "the connection goes on"
    source = [("x-amz-copy-source", f"/{NAME}/{'a' * 1025}"), ("content-length", "0")]
    assert_s3_error(ask(proxy.address, "PUT", f"/{NAME}/copy", source), "KeyTooLongError")


KEYS_OF_NOBODY = {
    "a path out of the bucket": f"/{NAME}/../../etc/passwd",
    "the same, escaped": f"/{NAME}/%2e%2e/%2e%2e/etc/passwd",
    "the same, slashes too": f"/{NAME}/..%2f..%2fetc%2fpasswd",
    "the same, twice": f"/{NAME}/%252e%252e/etc/passwd",
    "backslashes": f"/{NAME}/..%5C..%5Cetc",
    "a NUL": f"/{NAME}/a%00b",
    "a line feed": f"/{NAME}/a%0d%0ax-evil:%201",
    "1,024 bytes of emoji": f"/{NAME}/" + EMOJI * 256,
    "no UTF-8": f"/{NAME}/%FF%FE",
    "half an escape": f"/{NAME}/a%2",
    "an invalid escape": f"/{NAME}/a%zz",
    "only slashes": f"/{NAME}///",
    "an XML tag": f"/{NAME}/%3CCode%3E%26",
    "raw bytes above ASCII": f"/{NAME}/\u00fc\U0001f600",
}


@pytest.mark.parametrize("case", KEYS_OF_NOBODY)
def test_an_odd_key_gets_the_origins_own_answer(proxy: Proxy, case: str) -> None:
    for method in ("GET", "HEAD", "DELETE"):
        answer = ask(proxy.address, method, KEYS_OF_NOBODY[case])
        assert answer.status in (200, 204, 400, 403, 404), (method, answer)
        if answer.status >= 400 and method != "HEAD":
            # SeaweedFS decodes bytes that are not UTF-8 differently from how they were signed. The proxy's parser
            # refuses raw ones.
            known = {"no UTF-8": "SignatureDoesNotMatch", "raw bytes above ASCII": "BadRequest"}.get(case)
            assert answer.code in ("NoSuchKey", "InvalidRequest", "KeyTooLongError", "InvalidURI", known)
            assert answer.error["RequestId"]
        assert "x-evil" not in answer.headers


def test_a_long_key_of_emoji_is_kept_and_read_back(proxy: Proxy) -> None:
    # Four path segments of 256 bytes: SeaweedFS stores each segment of a key as one file name.
    target = f"/{NAME}/" + "/".join([EMOJI * 63] * 4)
    assert ask(proxy.address, "PUT", target, [("content-length", "2")], b"ok").status == 200
    for _ in range(2):
        assert ask(proxy.address, "GET", target).body == b"ok"
    assert ask(proxy.address, "DELETE", target).status == 204


@pytest.mark.parametrize("name", ["x-amz-meta-name", "content-disposition", "cache-control"])
def test_a_header_that_is_not_utf_8_is_refused_by_its_name_and_stores_nothing(proxy: Proxy, name: str) -> None:
    target = f"/{NAME}/latin-1"
    answer = ask(proxy.address, "PUT", target, [(name, "caf\udce9"), ("content-length", "4")], b"body")
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert f"header {name} " in answer.error["Message"]
    assert ask(proxy.address, "GET", target).status == 404


def test_a_header_in_utf_8_is_stored_as_it_was_sent(proxy: Proxy) -> None:
    target = f"/{NAME}/utf-8"
    assert (
        ask(proxy.address, "PUT", target, [("x-amz-meta-name", "café"), ("content-length", "4")], b"body").status == 200
    )
    assert ask(proxy.address, "GET", target).headers["x-amz-meta-name"].encode("latin-1") == "café".encode()


def test_a_user_agent_need_not_be_utf_8(proxy: Proxy) -> None:
    target = f"/{NAME}/user-agent"
    assert (
        ask(proxy.address, "PUT", target, [("user-agent", "caf\udce9"), ("content-length", "4")], b"body").status == 200
    )
    assert ask(proxy.address, "GET", target).body == b"body"


def test_a_reply_cannot_be_split_by_the_headers_that_a_client_overrides(proxy: Proxy) -> None:
    answer = ask(proxy.address, "GET", f"/{NAME}/key?response-content-type=a%0d%0ax-evil:%201")
    assert "x-evil" not in answer.headers


@pytest.mark.parametrize(
    "asked",
    ["bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=9-1", "bytes=0-1,3-4", "bytes=1-2-3", "x" * 1000, "\u00fc"],
)
def test_a_malformed_range_gets_the_origins_own_answer(proxy: Proxy, asked: str) -> None:
    answer = ask(proxy.address, "GET", f"/{NAME}/key", [("range", asked)])
    assert answer.status in (200, 206, 400, 416)
    if answer.status >= 400:
        assert answer.code in ("InvalidRange", "InvalidArgument")
    elif answer.status == 200:
        assert answer.body == b"0123456789"


def test_an_unsatisfiable_range_is_416_and_gives_the_objects_size(proxy: Proxy) -> None:
    answer = ask(proxy.address, "GET", f"/{NAME}/key", [("range", "bytes=10-")])
    assert_s3_error(answer, "InvalidRange")
    assert (answer.status, answer.headers["content-range"]) == (416, "bytes */10")


AUTHORIZATIONS = [
    "", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 nonsense", "AWS anybody:c2ln", "Bearer token", "Basic YTpi", "\u00fc",
    "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=b",
    "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=, Signature=",
    "AWS4-HMAC-SHA256 Credential=a/20260101/r/ec2/aws4_request, SignedHeaders=host, Signature=b",
    "AWS4-ECDSA-P256-SHA256 Credential=a/20260101/s3/aws4_request, SignedHeaders=host, Signature=b",
    "AWS4-HMAC-SHA256 " + "Credential=" * 500,
]  # fmt: skip
AUTH_CODES = (
    "AccessDenied", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError", "InvalidAccessKeyId",
    "InvalidArgument", "InvalidRequest", "RequestTimeTooSkewed", "SignatureDoesNotMatch",
)  # fmt: skip


@pytest.mark.parametrize("authorization", AUTHORIZATIONS)
def test_a_malformed_signature_is_refused(strict: Proxy, authorization: str) -> None:
    for date in ("20260101T000000Z", "yesterday", "99999999T999999Z", ""):
        headers = [("authorization", authorization), ("x-amz-date", date), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD")]
        assert_s3_error(ask(strict.address, "GET", f"/{NAME}/key", headers), *AUTH_CODES)


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Signature=a",
        "X-Amz-Algorithm=AWS4-HMAC-SHA256",
        "X-Amz-Algorithm=x&X-Amz-Credential=a/b/c/s3/aws4_request&X-Amz-Date=x&X-Amz-Expires=x&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=y",
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20260101%2Fr%2Fs3%2Faws4_request&X-Amz-Date=20260101T000000Z"
        "&X-Amz-Expires=-1&X-Amz-SignedHeaders=host&X-Amz-Signature=y",
        "X-Amz-Signature=a&X-Amz-Signature=b",
        "AWSAccessKeyId=a",
        "AWSAccessKeyId=a&Signature=b&Expires=never",
        "AWSAccessKeyId=a&Signature=%FF&Expires=99999999999",
        "Signature=b&Expires=1",
    ],
)
def test_a_malformed_presigned_query_is_refused(strict: Proxy, query: str) -> None:
    assert_s3_error(ask(strict.address, "GET", f"/{NAME}/key?{query}"), *AUTH_CODES)


@pytest.mark.parametrize(
    "headers",
    [
        [("x-amz-content-sha256", "nonsense")],
        [("x-amz-content-sha256", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD")],
        [("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"), ("x-amz-decoded-content-length", "x")],
        [("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"), ("x-amz-decoded-content-length", "4"),
         ("x-amz-trailer", "x-amz-meta-smuggled")],
        [("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD")],
    ],
)  # fmt: skip
def test_a_body_with_nonsensical_headers_is_refused(proxy: Proxy, headers: list[tuple[str, str]]) -> None:
    answer = ask(proxy.address, "PUT", f"/{NAME}/nonsense", [*headers, ("content-length", "4")], b"abcd")
    assert_s3_error(answer, "InvalidArgument", "InvalidRequest", "BadRequest", "MissingContentLength")


@pytest.mark.parametrize("body", [b"", b"nonsense", b"<Delete>", b"<Delete><Object><Key>a</Key></Object>",
                                  b'<!DOCTYPE a [<!ENTITY b "c">]><Delete><Object><Key>&b;</Key></Object></Delete>',
                                  b"\xff\xfe<\x00"])  # fmt: skip
def test_a_malformed_list_of_deletions_is_left_to_the_origin_to_refuse(proxy: Proxy, body: bytes) -> None:
    answer = ask(proxy.address, "POST", f"/{NAME}?delete", [("content-length", str(len(body)))], body)
    assert answer.status == 400, answer.body
    assert answer.code
    assert answer.error["Message"]


def test_a_list_of_deletions_without_end_is_refused(proxy: Proxy) -> None:
    body = b"<Delete>" + b" " * (5 * 1024 * 1024)
    answer = ask(proxy.address, "POST", f"/{NAME}?delete", [("content-length", str(len(body)))], body)
    assert_s3_error(answer, "InvalidRequest")


def test_a_body_that_ends_early_ends_the_connection_and_stores_nothing(proxy: Proxy) -> None:
    for framing in ("content-length: 100", "transfer-encoding: chunked\r\nx-amz-decoded-content-length: 9\r\n"
                    "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER"):  # fmt: skip
        with RawConnection(proxy.address) as connection:
            connection.send((PUT + framing + "\r\n\r\n5\r\nabcd").encode())
            connection.sock.shutdown(1)
            # A connection cut without a reply is correct as well.
            with contextlib.suppress(OSError, http.client.HTTPException):
                assert_s3_error(connection.read_answer("PUT"), "IncompleteBody", "BadRequest")
            assert connection.is_closed_by_peer()
    assert ask(proxy.address, "GET", f"/{NAME}/smuggled").code == "NoSuchKey"


def test_half_a_head_and_then_silence_is_cut(impatient: Proxy) -> None:
    for half in ("G", "GET /", HEAD, HEAD + "x-a: b"):
        with RawConnection(impatient.address) as connection:
            connection.send(half.encode())
            assert connection.is_closed_by_peer()


def test_half_a_body_and_then_silence_gets_an_error_and_is_cut(impatient: Proxy) -> None:
    with RawConnection(impatient.address) as connection:
        connection.send(f"{PUT}content-length: 100\r\n\r\nabc".encode())
        assert_s3_error(connection.read_answer("PUT"), "RequestTimeout")
        assert connection.is_closed_by_peer()
    with RawConnection(impatient.address) as connection:
        connection.send(f"POST /{NAME}?delete HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n<Del".encode())
        assert_s3_error(connection.read_answer("POST"), "RequestTimeout")
    assert ask(impatient.address, "GET", f"/{NAME}/smuggled").code == "NoSuchKey"


def test_a_pause_between_requests_does_not_count_as_silence_in_a_request(impatient: Proxy) -> None:
    with RawConnection(impatient.address) as connection:
        assert connection.ask("GET", f"/{NAME}/key").status == 200
        connection.sock.settimeout(1.0)
        assert not connection.is_closed_by_peer(), "twice the limit, and still open"


def test_an_unsigned_chunk_where_signed_ones_were_announced_is_refused(strict: Proxy) -> None:
    upload = Chunked(b"body", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", None)
    wire = Chunked(b"body", trailer=("x-amz-checksum-crc32", checksum("crc32", b"body"))).encode()
    head = signed_head("PUT", strict.endpoint, f"/{NAME}/unsigned", KEYS, upload.headers(), upload.form)
    with RawConnection(strict.address) as connection:
        lines = "".join(f"{name}: {value}\r\n" for name, value in [*head, ("content-length", str(len(wire)))])
        connection.send(f"PUT /{NAME}/unsigned HTTP/1.1\r\n{lines}\r\n".encode() + wire)
        assert_s3_error(connection.read_answer("PUT"), "SignatureDoesNotMatch", "InvalidRequest", "IncompleteBody")


def test_more_requests_than_allowed_get_503_slow_down(bucket: Bucket) -> None:
    with Proxy(bucket, requests=1) as narrow, RawConnection(narrow.address) as slow:
        slow.send(f"PUT /{NAME}/slow HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n".encode())
        assert slow.sock.recv(100).startswith(b"HTTP/1.1 100")
        answer = ask(narrow.address, "GET", f"/{NAME}/key")
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "SlowDown", "1")
        slow.send(b"done")
        assert slow.read_answer("PUT").status == 200
