"""Targets: heads of requests that clients send, and their signatures.

They are refused by an S3 error of the 400s, or mean what they mean to others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpVersion, HttpVersion11
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy
from aiohttp.streams import EMPTY_PAYLOAD

from outrider.core.auth import sigv4, verification
from outrider.core.auth.browser_guard import check_host, check_page
from outrider.core.auth.verification import Identity, SignedRequest
from outrider.core.errors import S3Error
from outrider.core.model import Headers, ObjectRef, ObjectVersion
from outrider.core.s3 import conditions, operation, plain_request, ranges
from outrider.core.s3.body_integrity import decoded_length_of, payload_rule, trailer_names_of
from outrider.core.s3.encoding import canonical_values, encode_path, encode_query, parse_query
from outrider.core.s3.form_fields import boundary_of, is_form
from outrider.core.s3.headers import app_of, passed_up, wants_checksums
from outrider.core.s3.operation import OperationKind
from outrider.core.s3.plain_request import PlainRequest, known_fields, recognise
from outrider.http.wire.request_guards import guarded, refused_for, well_framed
from tests.fuzz.target import pieces, target
from tests.support import signed_requests

MEANINGS = plain_request._MEANINGS

# -- heads of requests -------------------------------------------------------------------------------------------------

PARSERS = (HttpRequestParser, HttpRequestParserPy)
"""aiohttp's two parsers: the one in C, and the one that it falls back to."""
_LIMITS: dict[str, Any] = {"max_line_size": 32768, "max_field_size": 16384}
_NO_LOOP = cast(Any, None)

_BOTO = (
    b"Host: 127.0.0.1:9480\r\nAccept-Encoding: identity\r\nx-amz-checksum-mode: ENABLED\r\nRange: bytes=0-65535\r\n"
    b"User-Agent: Boto3/1.40 md/Botocore#1.40 ua/2.1 app/train os/linux#6.1\r\nX-Amz-Date: 20260101T000000Z\r\n"
    b"X-Amz-Content-SHA256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\r\n"
    b"Authorization: AWS4-HMAC-SHA256 Credential=A/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=00\r\n"
    b"amz-sdk-invocation-id: 1\r\namz-sdk-request: attempt=1\r\ntracestate: a=b\r\n"
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n"
)
_PLAIN = (
    b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n",
    b"HEAD /b/k?x-id=HeadObject HTTP/1.1\r\nHost: b.s3.example:80\r\nconnection: keep-alive\r\n\r\n",
    b'GET /b/a%20k%2F?versionId=1 HTTP/1.1\r\nrange: bytes=5-\r\nIf-Match: "abc"\r\nhost: [::1]:80\r\n\r\n',
    b"GET /b/k HTTP/1.1\r\n" + _BOTO,
)


class Parsed:
    """A request as one of the server's parsers reads it. The `headers` are those that the request handler gets."""

    def __init__(self, data: bytes, parser: Any = HttpRequestParser) -> None:
        """Raises HttpProcessingError; or ValueError: `data` is not exactly one request."""
        messages, self.upgraded, self.tail = parser(
            BaseProtocol(_NO_LOOP), _NO_LOOP, 2**16, **_LIMITS
        ).feed_data(data)  # fmt: skip
        ((message, payload),) = messages
        self.method, self.target, self.version = message.method, message.path, tuple(message.version)
        self.has_body = payload is not EMPTY_PAYLOAD
        self.closes = message.should_close
        self.headers: Headers = _as_received(message.raw_headers)


def _as_received(raw_headers: Any) -> Headers:
    return tuple(
        (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").strip())
        for name, value in raw_headers
    )


@target(*_PLAIN, *(seed.replace(b"Host", b"Range: bytes=1-2\r\nHost") for seed in _PLAIN[:2]))
def plain_request_recognised(data: bytes) -> None:
    """The fast path's recogniser accepts nothing that a parser or the classification reads in another way."""
    MEANINGS.clear()
    read = recognise(data)
    fields = data.partition(b"\r\n")[2]
    _check_known_fields(fields)
    if read is None:
        return
    assert recognise(data) == read
    for parser in PARSERS:
        parsed = Parsed(data, parser)
        assert (parsed.upgraded, parsed.tail, parsed.has_body, parsed.closes) == (False, b"", False, False)
        assert parsed.version == (1, 1)
        assert parsed.method == read.method
        path, _, query = parsed.target.partition("?")
        assert (path.encode("ascii"), query.encode("ascii")) == (read.path, read.query)
        assert read.headers() == parsed.headers
    well_framed(parsed.headers, HttpVersion11)
    payload_rule(parsed.headers)
    _check_fields(read, parsed.headers)
    _check_kind(read, parsed)


@target(
    *(b"\0".join((first, then)) for first in _PLAIN for then in _PLAIN),
    b"\0".join((_PLAIN[0], _PLAIN[0].replace(b"Host", b"Range: bytes=1-2\r\nHost"))),
)
def plain_requests_in_a_row(data: bytes) -> None:
    """The fields of earlier requests are remembered, and make no difference to a later one."""
    first, _, then = data.partition(b"\0")
    MEANINGS.clear()
    alone = recognise(then)
    MEANINGS.clear()
    recognise(first)
    assert recognise(then) == alone == recognise(then)
    _check_known_fields(then.partition(b"\r\n")[2])


def _check_known_fields(fields: bytes) -> None:
    known = known_fields(fields)
    if known is not None:
        read = recognise(b"GET /b/k HTTP/1.1\r\n" + fields)
        assert read is not None
        meaning, value, start, stop = known
        assert meaning == (read.host, read.if_match, read.checksums, read.app)
        assert read.range == (None if value is None else f"bytes={value.decode()}")
        assert read.span == (None if value is None else ranges.RangeSpec(start, stop - 1))


def _check_fields(read: PlainRequest, headers: Headers) -> None:
    given = dict(headers)
    assert len(given) == len(headers), "a header came twice"
    assert (read.host, read.range, read.if_match) == (given.get("host"), given.get("range"), given.get("if-match"))
    assert read.checksums == (given.get("x-amz-checksum-mode", "").upper() == "ENABLED")
    assert read.app == app_of(given.get("user-agent", ""))
    assert read.span == (None if read.range is None else ranges.parse(read.range))


def _check_kind(read: PlainRequest, parsed: Parsed) -> None:
    by_path = _kind("GET", read.path.decode("ascii"), (("host", read.host),))
    query = operation.without_signature(tuple(parse_query(read.query.decode("ascii"))))
    if by_path is not OperationKind.GET or query:
        return
    narrowed = read.range is not None or read.if_match is not None
    if narrowed and operation.classify("GET", read.path.decode("ascii"), ()).key.endswith("/"):
        return  # the fast path decides that by the object's name
    if read.if_match is None or conditions.are_plain((("if-match", read.if_match),)):
        assert _kind(parsed.method, parsed.target, parsed.headers) is OperationKind(read.method.lower())


def _kind(method: str, path: str, headers: Headers) -> OperationKind | None:
    try:
        return operation.classify(method, path, headers).kind
    except S3Error:
        return None


_DOMAINS = ("s3.example",)
_VERSION = ObjectVersion(
    ObjectRef("b", "k"), '"abc"', 100, (("last-modified", "Fri, 24 May 2013 00:00:00 GMT"),)
)  # fmt: skip


@target(
    *_PLAIN,
    b"PUT /b/k HTTP/1.1\r\nHost: h\r\nx-amz-copy-source: /o/a%2Fb?versionId=1\r\nContent-Length: 0\r\n\r\n",
    b"PUT /b/k HTTP/1.1\r\nHost: h\r\nx-amz-rename-source: a/b\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"PUT /k?partNumber=1&uploadId=u HTTP/1.1\r\nHost: b.s3.example\r\nContent-Encoding: aws-chunked,gzip\r\n"
    b"x-amz-decoded-content-length: 3\r\nx-amz-trailer: x-amz-checksum-crc32\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /b?delete HTTP/1.1\r\nHost: h\r\nOrigin: http://h\r\nSec-Fetch-Site: none\r\ncontent-length: 1\r\n\r\nx",
    b'POST /b HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data; boundary="x y"\r\ncontent-length: 0\r\n\r\n',
    b"OPTIONS /b/k HTTP/1.1\r\nHost: h\r\nOrigin: o\r\nAccess-Control-Request-Method: GET\r\nConnection: te, x\r\n\r\n",
    b"GET /b?list-type=2&prefix=a%2Fb&encoding-type=url HTTP/1.0\r\nhost: evil.example:1\r\n\r\n",
    b'GET /b/k HTTP/1.1\r\nHost: h\r\nIf-None-Match: W/"a", *\r\nIf-Modified-Since: Fri, 24 May 2013 00:00:00 GMT\r\n'
    b"If-Range: x\r\nIf-Unmodified-Since: Sat, 25 May 2013 00:00:00 GMT\r\nExpires: 1\r\n\r\n",
    b"GET http://h/b/k?a#b HTTP/1.1\r\nHost: h\r\n\r\n",
    b"HEAD /_outrider/status.json HTTP/1.1\r\nHost: h\r\nRange: bytes=0-0\r\n\r\n",
)
def parsed_request(data: bytes) -> None:
    """Everything that reads the head of a request behind the parser: S3 errors of the 400s alone, in any pieces."""
    at_once = _parsed_in((data,))
    assert at_once is None or _parsed_in(pieces(data, len(data) % 23)) == at_once
    for method, path, version, headers in at_once or ():
        with suppress(S3Error):
            _read_head(method, path, version, headers)


_Request = tuple[str, str, HttpVersion, Headers]


def _parsed_in(parts: Iterator[bytes] | tuple[bytes, ...]) -> list[_Request] | None:
    """None: the request was refused."""
    parser = guarded(HttpRequestParser(BaseProtocol(_NO_LOOP), _NO_LOOP, 2**16, **_LIMITS))
    requests = []
    try:
        for part in parts:
            messages, upgraded, _ = parser.feed_data(part)
            requests += [(m.method, m.path, m.version, _as_received(m.raw_headers)) for m, _ in messages]
            if upgraded:
                break
    except HttpProcessingError as error:
        refused_for(error.message)
        return None
    return requests


def _read_head(method: str, path: str, version: HttpVersion, headers: Headers) -> None:
    headers = well_framed(headers, version)
    named = dict(headers)
    for check in (payload_rule, decoded_length_of, trailer_names_of, passed_up, check_page):
        allowed(check, headers)
    allowed(check_host, named.get("host", ""), _DOMAINS)
    allowed(boundary_of, named.get("content-type", ""))
    wants_checksums(named)
    app_of(named.get("user-agent", ""))
    conditions.evaluate(named, _VERSION)
    operation.control_request_of(method, path, named.get("host", ""), _DOMAINS)
    _check_range(named.get("range", ""))
    for domains in ((), _DOMAINS):
        _check_classified(allowed(operation.classify, method, path, headers, domains), path, headers)


def allowed(call: Any, *args: Any) -> Any:
    """The result; None: an S3 error."""
    try:
        return call(*args)
    except S3Error as error:
        check_refusal(error)
        return None


def check_refusal(error: S3Error) -> None:
    assert 400 <= error.status < 500, "it must blame the client"


def _check_classified(found: operation.Operation | None, path: str, headers: Headers) -> None:
    if found is None or found.bucket is None:
        return
    assert found.kind is not OperationKind.GET or (found.method == "GET" and found.key)
    assert operation.is_bucket_name(found.bucket)
    # The origin gets the request in the one spelling that is signed, and must read the same names in it.
    anew = operation.classify(found.method, f"/{found.bucket}/{encode_path(found.key)}?{encode_query(found.query)}", ())
    assert (anew.bucket, anew.key, sorted(anew.query)) == (found.bucket, found.key, sorted(found.query))
    operation.is_warming_head(found, headers)
    operation.is_plain_list(found, headers)
    is_form(found, headers)
    for source in found.sources:
        source.key.encode("utf-8", "surrogateescape")
    if found.method == "OPTIONS":
        operation.preflight_of(found, headers)


def _check_range(header: str) -> None:
    spec = ranges.parse(header)
    if spec is None:
        return
    for size in (0, 1, 100, 10**17):
        with suppress(S3Error):
            extent = ranges.resolve(spec, size)
            assert 0 <= extent.start < extent.stop <= size
            assert ranges.parse_content_range(ranges.content_range(extent, size)) == (extent, size)


# -- signatures --------------------------------------------------------------------------------------------------------

_SIGNED = [
    *signed_requests.EXAMPLES.values(),
    signed_requests.PRESIGNED_EXAMPLE,
    signed_requests.presigned_by_hand({"host": "h", "x-amz-meta-a": "b"}, "UNSIGNED-PAYLOAD", "acl"),
    SignedRequest("GET", "/b/k", "AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Expires=1469353600&Signature="
                  "vjbyPxybdZaNmGa%2ByT272YEAiv4%3D", (("host", "h"),)),
]  # fmt: skip


def _lines_of(request: SignedRequest) -> bytes:
    lines = [f"{request.method} {request.raw_path}?{request.raw_query}", *map(": ".join, request.headers)]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _request_of(data: bytes) -> SignedRequest:
    first, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    method, _, wanted = first.partition(" ")
    path, _, query = wanted.partition("?")
    fields = [line.partition(":") for line in lines]
    return SignedRequest(method, path, query, tuple((name.lower(), value.strip()) for name, _, value in fields))


def _verified(request: SignedRequest) -> Identity | None:
    try:
        return signed_requests.ask(request)
    except S3Error as error:
        check_refusal(error)
        return None


_Meaning = tuple[object, ...]


def _meaning(request: SignedRequest) -> _Meaning:
    """All that may not change under a signature: white space in headers, the spelling of escapes, and the headers that
    no signature has to cover may."""
    headers = {
        name: value
        for name, value in canonical_values(request.headers).items()
        if name.startswith(("x-amz-", "x-goog-"))
    }
    path = unquote_to_bytes(request.raw_path.encode("utf-8", "surrogateescape"))
    return request.method, path, sorted(parse_query(request.raw_query)), headers


_LET_IN = [_meaning(request) for request in _SIGNED]


@target(
    *map(_lines_of, _SIGNED),
    *(_lines_of(request) + b"\nx-amz-acl: public-read" for request in _SIGNED),
    b"GET /b/k?acl\nhost: h\nauthorization: " + signed_requests.GOOD.encode(),
)
def signed_request(data: bytes) -> None:
    """Nobody but the holder of a key makes a request that is let in: here, those of the seeds alone."""
    request = _request_of(data)
    identity = _verified(request)
    verification.is_half_signed(request)
    assert identity is None or _meaning(request) in _LET_IN, request


@target(b"GET /b/k?acl&a=%20b\nx-amz-meta-a: b  c\nrange: bytes=0-1", b"PUT /b/%c3%a9?x=%ff\ncontent-type: a")
def signed_anew_and_verified(data: bytes) -> None:
    """A request that the proxy signs is verified, whatever is in it: so the origin reads what was signed."""
    wanted = _request_of(data)
    reserved = set(sigv4._NEVER_SIGNED) | {"date", "x-amz-trailer"}
    headers = {name: value for name, value in wanted.headers if name not in reserved}
    query = operation.without_signature(tuple(parse_query(wanted.raw_query)))
    if any(name.lower() in operation.SIGNATURE_QUERY or name in ("AWSAccessKeyId", "Signature") for name, _ in query):
        return
    path = encode_path(unquote_to_bytes(wanted.raw_path.encode("utf-8", "surrogateescape")))
    added = sigv4.sign_headers(
        method=wanted.method, host="h", path=path, query=query, headers=headers, payload_hash="UNSIGNED-PAYLOAD",
        credentials=signed_requests.AWS, region="r", now=signed_requests.AT, keys=signed_requests.KEYS,
    )  # fmt: skip
    if any(not name or set(name) & set("; ,\t") or not name.isprintable() for name in headers):
        return  # no HTTP library sends such a name
    sent = SignedRequest(wanted.method, path, encode_query(query), (*headers.items(), ("host", "h"), *added.items()))
    assert _verified(sent) is not None
