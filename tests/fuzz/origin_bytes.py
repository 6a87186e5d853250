"""Targets: bytes that the origin sends. Each reply is read the same by all readers of the proxy, or refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast
from xml.etree import ElementTree as ET

from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

from outrider.adapters.origin.endpoint import Endpoint, moved
from outrider.core.cache import freshness
from outrider.core.errors import OriginBroke, Signal
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion, is_strong_etag, quoted_etag
from outrider.core.origin import error_causes
from outrider.core.origin.backoff import retry_after_s
from outrider.core.origin.oddities import Oddity
from outrider.core.origin.reply_head import UnreadableHead, mend, split
from outrider.core.origin.reply_reader import ReplyReader
from outrider.core.s3 import checksums, ranges
from outrider.core.s3.conditions import parse_http_date
from outrider.core.s3.headers import passed_down, replayable, varies_with_clients
from outrider.core.s3.list_page import ListedObject, parse_page
from outrider.engine.fill.reply_proof import proved_body_of
from outrider.mount.listed import FileVersion
from outrider.mount.plain_gets import _is_usual
from outrider.mount.target import Target
from outrider.ports import OriginRequest
from tests.fuzz.target import pieces, target

_REPLIES = (
    b'HTTP/1.1 200 OK\r\nDate: Fri, 24 May 2013 00:00:00 GMT\r\nETag: "e"\r\nContent-Length: 5\r\n\r\nhello',
    b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-4/10\r\ncontent-length: 5\r\nConnection: close\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx-amz-meta-a: \xc3\xa9\xff\r\n\r\n"
    b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\nhello",
    b"HTTP/1.1 304 Not Modified\r\nETag: W/\"e\"\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nKeep-Alive: timeout=5\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 Slow Down\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\nx-amz-meta-a/b : 1\r\nx-a: b\r\n\t c\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nheXX3\r\nllo\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nx: a\x00b\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\nHTTP/1.1 200\r\nodd: 0\x00\x00\r\n",
)  # fmt: skip

_HEAD_LIMITS: dict[str, Any] = {"max_line_size": 32768, "max_field_size": 32768, "max_headers": 1000}
# aiohttp takes some bare CRs for the end of a line, and no coding that is folded or has a tab behind it.
_OTHER_TO_AIOHTTP = re.compile(rb"\r(?!\n)|transfer-encoding:[^\n]*(?:\t|\n[ \t])", re.IGNORECASE)
_Read = tuple[int, Headers, bytes, bool]
"""Status, headers, body, and whether the body came whole."""


def _read(parts: Iterable[bytes]) -> _Read | None:
    """As `ReplyReader` reads it. None: it is refused."""
    reader = ReplyReader()
    body = bytearray()
    try:
        for part in parts:
            for piece in reader.feed(part):
                body += piece
        reader.end()
    except OriginBroke:
        return (reader.status, reader.headers, bytes(body), False) if reader.status else None
    return reader.status, reader.headers, bytes(body), True


class _Loop:
    """The part of an event loop that aiohttp's connection asks for, which never has to run."""

    def create_future(self) -> asyncio.Future[Any]:
        raise AssertionError("nobody waits")


_LOOP = cast(Any, _Loop())


def _by_aiohttp(data: bytes) -> _Read | None:
    """As aiohttp's client reads it. None: it is refused."""
    handler = ResponseHandler(_LOOP)
    handler.set_response_params(read_until_eof=True, auto_decompress=False, read_bufsize=2**20, **_HEAD_LIMITS)
    handler.data_received(data)
    handler.connection_lost(None)
    replies = [reply for reply, _ in handler._buffer if reply[0].code >= 200 or reply[0].code == 101]
    if not replies:
        return None
    message, payload = replies[0]
    body, whole = _drained(payload)
    headers = tuple(
        (name.decode("latin-1").strip().lower(), value.decode("utf-8", "surrogateescape"))
        for name, value in message.raw_headers
    )
    return message.code, headers, body, whole


def _drained(payload: StreamReader) -> tuple[bytes, bool]:
    body = b"".join(getattr(payload, "_buffer", ()))
    return body, payload.exception() is None and (payload.is_eof())


@target(*_REPLIES)
def reply_of_the_origin(data: bytes) -> None:
    """A reply is read the same in any pieces. The reader and aiohttp read the same, or one of them refuses it."""
    read = _read((data,))
    in_pieces = _read(pieces(data, len(data) % 23))
    assert (None if in_pieces is None else _comparable(in_pieces)) == (None if read is None else _comparable(read))
    _check_mended(data)
    by_aiohttp = _by_aiohttp(data)
    if read is None or by_aiohttp is None or _OTHER_TO_AIOHTTP.search(data):
        return
    if read[3] and int(dict(read[1]).get("content-length", -1)) == len(by_aiohttp[2]):
        # aiohttp calls a body broken that is whole where no reply follows it, but garbage.
        by_aiohttp = (*by_aiohttp[:3], True)
    if read[3]:
        assert _comparable(read) == _comparable(by_aiohttp)
    else:
        assert _comparable(read)[:3] == _comparable(by_aiohttp)[:3]


def _comparable(read: _Read) -> tuple[object, ...]:
    status, raw_headers, body, whole = read
    # A folded line is joined by one blank, or by those that it began with. A name with a blank inside is left out.
    headers = [(name, re.sub("[ \t]+", " ", value)) for name, value in raw_headers if not re.search("[ \t]", name)]
    # A head that is mended has its Content-Length last. The last one counts of other headers that come twice.
    return status, sorted(headers), dict(headers), body if whole else None, whole


def _check_mended(data: bytes) -> None:
    found = split(data)
    if found is None:
        return
    head, rest = found
    assert data.endswith(head + rest)
    try:
        mended = mend(head)
    except UnreadableHead:
        return
    for name, value in mended.headers:
        assert name
        assert not set(name) & set(b"\r\n\0: \t")
        assert not set(value) & set(b"\r\n\0")
    assert not mend(mended.head).framed_twice


@target(*_REPLIES[:3])
def reply_to_a_mount(data: bytes) -> None:
    """A reply that fills a mount's buffer is one that aiohttp reads the same, as long, and of the version asked for."""
    reader = ReplyReader()
    size = 5 if len(data) % 2 else 10
    try:
        body = b"".join(reader.feed(data))
    except OriginBroke:
        return
    if not reader.is_over or not _is_usual(reader, Target(5), 0, FileVersion(size, "e", is_settled=True)):
        return
    assert len(body) == 5
    read = _by_aiohttp(data)
    if read is None:
        return
    assert read[2:] == (body, True)
    assert read[0] == (200 if size == 5 else 206)
    assert "e" in [value.strip('"') for name, value in read[1] if name == "etag"]


# -- headers and documents ---------------------------------------------------------------------------------------------


def _head_of(data: bytes) -> Headers:
    lines = (line.partition(b": ") for line in data.split(b"\n"))
    return tuple(
        (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").strip()) for name, _, value in lines
    )


@target(
    b'etag: "d41d8cd98f00b204e9800998ecf8427e"\ncontent-range: bytes 0-4/10\n'
    b"last-modified: Fri, 24 May 2013 00:00:00 GMT\ndate: Fri, 24 May 2013 00:00:00 GMT\n"
    b"retry-after: 12\nx-amz-checksum-crc32: AAAAAA==\nvary: Origin, Accept",
    b'etag: W/"e"\ncontent-range: bytes */10\nretry-after: Fri, 24 May 2013 00:00:00 GMT\n'
    b"x-amz-checksum-type: COMPOSITE\nx-amz-server-side-encryption: aws:kms\nx-amz-checksum-sha256: AAAA-3\nvary: *",
)
def headers_of_a_reply(data: bytes) -> None:
    """Nothing that an origin writes into a header is an error of ours."""
    headers = _head_of(data)
    named = dict(headers)
    passed_down(headers)
    replayable(headers)
    varies_with_clients(headers)
    assert retry_after_s(named, 0.0) >= 0
    parse_http_date(named.get("last-modified"))
    error_causes.clock_offset(403, None, named.get("date"), 0.0, 0.0)
    for parse in (ranges.parse_content_range, ranges.parse_empty_range):
        parse(named.get("content-range", ""))
    etag = named.get("etag", "")
    checksums.checksum_of(etag, headers)
    quoted_etag(etag)
    if is_strong_etag(etag):
        version = ObjectVersion(ObjectRef("b", "k"), etag, 5, headers)
        checksums.small_proof_of(version)
        ListedObject("k", 5, etag, named.get("last-modified", "")).is_version(etag, 5, named.get("last-modified"))
        freshness.is_settled(named)
        freshness.was_settled(version, 0.0)


@dataclass
class _Reply:
    status: int
    headers: Headers
    content_length: int | None


@target(
    b'206 5\netag: "e"\ncontent-range: bytes 10-14/100\nlast-modified: Fri, 24 May 2013 00:00:00 GMT',
    b'200 100\netag: "e"',
    b'206 5\netag: "e"\ncontent-type: multipart/byteranges; boundary=x\ncontent-encoding: gzip',
    b"301 0\nx-amz-bucket-region: eu-west-1",
)
def proof_of_a_reply(data: bytes) -> None:
    """A reply is believed to have the bytes that were asked for only where its head says so."""
    first, _, rest = data.partition(b"\n")
    status, _, stated = first.partition(b" ")
    length = int(stated) if stated.isdigit() and len(stated) < 19 else None
    reply = cast(Any, _Reply(int(status) if status.isdigit() and len(status) == 3 else 206, _head_of(rest), length))
    moved(_GET, reply.status, reply.headers, _HOME)
    version, extent = ObjectVersion(ObjectRef("b", "k"), '"e"', 100), Extent(10, 15)
    try:
        body = proved_body_of(reply, version, extent)
    except Signal:
        return
    assert body.size == 100
    assert body.start == 10 or (body.start == 0 and body.odd is Oddity.RANGE_IGNORED)
    assert length is None or body.length == length
    assert body.length is None or body.start + body.length <= 100


_GET, _HOME = OriginRequest("GET", "b", "k"), Endpoint.at("https://s3.eu-central-1.amazonaws.com", "eu-central-1")


@target(
    b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Token-0>secret</Token-0><AWSAccessKeyId>a</AWSAccessKeyId>"
    b"<StringToSign>b\nc</StringToSign><CanonicalRequestBytes>00</CanonicalRequestBytes></Error>",
    b"<Error><Code>SignatureDoesNotMatch</Code><SignatureProvided>x",
    bytes_max=65536,
)
def refusal_of_the_origin(data: bytes) -> None:
    error_causes.code_of(data)
    left = error_causes.without_signers(data)
    assert error_causes.without_signers(left) == left or b"<AWSAccessKeyId>" not in left


_PAGE = (
    b"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='u'><Name>b</Name><EncodingType>url</EncodingType>"
    b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><NextMarker>a%2Fb</NextMarker>"
    b"<Contents><Key>a+%C3%A9</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
    b"<Size>5</Size><Owner><ID>1</ID></Owner></Contents><CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>"
    b"</ListBucketResult>"
)


@target(
    _PAGE,
    _PAGE.replace(b"<EncodingType>url</EncodingType>", b""),
    b"<Error><Code>AccessDenied</Code></Error>",
    _PAGE.replace(b"UTF-8", b"UTF-2"),
)
def list_page(data: bytes) -> None:
    """A page has the keys that another parser finds in it."""
    page = parse_page(data)
    if page is None:
        return
    for entry in page.objects:
        assert entry.key
        assert entry.size >= -1
        entry.is_version('"e"', 5, "Fri, 24 May 2013 00:00:00 GMT")
    try:
        root = ET.fromstring(data)
    except ET.ParseError:
        return  # prefixes are looked at by the other alone
    assert _local(root) == "ListBucketResult"
    keys = ["".join(key.itertext()) for key in _keys_in(root)]
    if not page.is_encoded:
        assert [entry.key for entry in page.objects] == keys
    assert len(keys) == len(page.objects)


def _keys_in(root: ET.Element) -> Iterator[ET.Element]:
    for entry in root:
        if _local(entry) == "Contents":
            yield from [key for key in entry if _local(key) == "Key"][-1:]


def _local(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
