"""The oddities of origins, knobs of `odd_origin.OddOrigin`, and its replies: AWS's, as the oddities change them."""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass, fields
from email.utils import formatdate, parsedate_to_datetime
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping


class ContentRange(StrEnum):
    """The Content-Range of a reply that brings a part of the object."""

    RIGHT = "right"
    MISSING = "missing"
    NO_TOTAL = "no total"  # `bytes 0-9/*`
    WRONG_START = "wrong start"  # names bytes one further on than those that follow
    WRONG_TOTAL = "wrong total"  # the object is one byte longer than stated
    WRONG_LENGTH = "wrong length"  # names one byte more than follows
    UNREADABLE = "unreadable"


class Length(StrEnum):
    """How a reply states where its body ends."""

    STATED = "stated"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


class Body(StrEnum):
    """The bytes that follow the head."""

    WHOLE = "whole"
    CUT = "cut"  # half of them, then the connection is closed
    SHORT = "short"  # half of them, and Content-Length counts only these
    LONGER = "longer"  # other bytes follow those that Content-Length counts
    LONG = "long"  # other bytes follow, and Content-Length counts them


class HeadLength(StrEnum):
    """The Content-Length of a reply to HEAD."""

    RIGHT = "right"
    MISSING = "missing"
    ZERO = "zero"
    WRONG = "wrong"  # one byte less


class ETag(StrEnum):
    """`hex`: the MD5, as AWS has it for a simple PUT."""

    HEX = "hex"
    MULTIPART = "multipart"
    BASE64 = "base64"  # with `+`, `/` and `=`
    WEAK = "weak"
    UNQUOTED = "unquoted"
    EMPTY = "empty"  # `""`
    BLANK = "blank"  # the header is there, without a value
    MISSING = "missing"
    CONSTANT = "constant"  # the same for all objects and versions
    ZEROS = "zeros"  # as `constant`, in the form of an MD5 of parts
    CHANGING = "changing"  # another one in each reply
    NOT_AT_HEAD = "not at HEAD"
    OTHER_AT_HEAD = "other at HEAD"


class IfMatch(StrEnum):
    HEEDED = "heeded"
    IGNORED = "ignored"
    REFUSED = "501"
    FAILS = "412"  # whatever the ETag


class ListSize(StrEnum):
    """The size of each object in a LIST."""

    RIGHT = "right"
    SMALLER = "smaller"  # half of it
    LARGER = "larger"  # twice as large
    ZERO = "zero"
    MISSING = "missing"


class ListETag(StrEnum):
    """The ETag of each object in a LIST."""

    RIGHT = "right"
    OTHER = "other"
    MISSING = "missing"


class Checksum(StrEnum):
    """The checksum header of a reply to a request that asks for it."""

    NONE = "none"
    RIGHT = "right"
    WRONG = "wrong"
    OF_PARTS = "of parts"  # of the parts of an upload, without their number and without a type
    OF_PART = "of part"  # a reply to a Range has one, too: that of the part


@dataclass(frozen=True, slots=True, repr=False)
class Oddities:
    """How the replies differ from those of AWS. Without arguments: in nothing."""

    range_status: int = 206
    """The status of a reply that brings the part of a Range."""
    plain_status: int = 200
    """The status of a reply to a GET without Range."""
    plain_content_range: bool = False
    """A reply to a GET without Range has the Content-Range of the whole object."""
    content_range: ContentRange = ContentRange.RIGHT
    ignores_range: bool = False
    ignores_conditions: bool = False
    """If-None-Match and the conditions by date are ignored."""
    if_match: IfMatch = IfMatch.HEEDED
    checksum_mode: int | None = None
    """The status that refuses each request with `x-amz-checksum-mode`; None: it is heeded."""
    checksum: Checksum = Checksum.NONE
    head_status: int | None = None
    """The status that refuses each HEAD of an object; None: HEAD is answered."""
    head_length: HeadLength = HeadLength.RIGHT
    length: Length = Length.STATED
    body: Body = Body.WHOLE
    etag: ETag = ETag.HEX
    lacks: frozenset[str] = frozenset()
    """Names of headers, in lower case, that no reply has."""
    http_1_0: bool = False
    closes: bool = False
    """The connection is closed after each reply, which says so."""
    hangs_up: bool = False
    """The connection is closed after each reply, which does not say so."""
    content_encoding: str = ""
    more_headers: tuple[tuple[str, str], ...] = ()
    """Headers of each reply about an object, as they are written: odd names, Vary, and others."""
    list_without_token: bool = False
    """A page of a LIST that is not the last one has no token for the next."""
    list_ignores_encoding: bool = False
    """Keys are listed as they are, though `encoding-type=url` was asked for."""
    list_page: int = 1000
    """The most objects and common prefixes on a page of a LIST."""
    list_size: ListSize = ListSize.RIGHT
    list_etag: ListETag = ListETag.RIGHT
    list_refuses: frozenset[str] = frozenset()
    """Parameters of a LIST that are answered 400: `list-type` as by a store that knows version 1 alone, and
    `encoding-type`."""

    @property
    def forged(self) -> bool:
        """Whether replies that a direct client takes for right contradict each other, or their own bytes."""
        return (
            self.content_range
            in (ContentRange.WRONG_START, ContentRange.WRONG_TOTAL, ContentRange.WRONG_LENGTH, ContentRange.UNREADABLE)
            or self.body is Body.LONGER
            or self.head_length is HeadLength.WRONG
            or self.checksum is Checksum.WRONG
        )

    @property
    def hides_overwrites(self) -> bool:
        """Whether neither ETag nor date shows that an object was overwritten: no cache can know, unless the size
        does."""
        return self.etag in (ETag.CONSTANT, ETag.ZEROS) and "last-modified" in self.lacks

    def __repr__(self) -> str:
        """The oddities alone: a failed test shows what was odd."""
        odd = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        # A set in the same order each time: this is also the name of a test, which several processes must agree on.
        shown = ((name, ",".join(sorted(value)) if isinstance(value, frozenset) else value) for name, value in odd)
        return f"Oddities({', '.join(f'{name}={value!s}' for name, value in shown)})"


AWS = Oddities()


@dataclass(frozen=True, slots=True)
class Stored:
    """An object. `modified`: seconds since 1970. `etag` None: as the oddities have it."""

    body: bytes
    modified: int
    headers: tuple[tuple[str, str], ...] = ()
    etag: str | None = None


@dataclass(slots=True)
class Seen:
    """A request as it arrived, header names in lower case; and what was sent for it: the status, and bytes of the
    body."""

    method: str
    target: str
    headers: dict[str, str]
    status: int = 0
    sent_bytes: int = 0


MORE_BYTES = b"#more#"
_REASONS = {200: "OK", 203: "Non-Authoritative Information", 206: "Partial Content", 304: "Not Modified"}
_CODES = {
    400: "InvalidArgument", 403: "AccessDenied", 404: "NoSuchKey", 405: "MethodNotAllowed", 412: "PreconditionFailed",
    416: "InvalidRange", 501: "NotImplemented", 503: "SlowDown",
}  # fmt: skip
_numbers = count()


@dataclass(slots=True)
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    content_length: int | None = None
    """The Content-Length, where it is not that of the body. None: it is."""
    without_length: bool = False
    chunked: bool = False
    more: bytes = b""
    closes: bool = False


def etag_of(odd: Oddities, stored: Stored, method: str) -> str | None:
    """The value of the header; None: there is none."""
    if stored.etag is not None:
        return stored.etag
    md5 = hashlib.md5(stored.body).digest()
    right = f'"{md5.hex()}"'
    if odd.etag is ETag.CHANGING:
        return f'"{hashlib.md5(str(next(_numbers)).encode()).hexdigest()}"'
    if odd.etag is ETag.NOT_AT_HEAD:
        return None if method == "HEAD" else right
    if odd.etag is ETag.OTHER_AT_HEAD:
        return '"other"' if method == "HEAD" else right
    forms: dict[ETag, str | None] = {
        ETag.HEX: right,
        ETag.MULTIPART: f'"{md5.hex()}-2"',
        ETag.BASE64: f'"+/{base64.b64encode(md5).decode()}"',
        ETag.WEAK: f"W/{right}",
        ETag.UNQUOTED: md5.hex(),
        ETag.EMPTY: '""',
        ETag.BLANK: "",
        ETag.MISSING: None,
        ETag.CONSTANT: '"constant"',
        ETag.ZEROS: f'"{32 * "0"}-1"',
    }
    return forms[odd.etag]


def object_reply(odd: Oddities, seen: Seen, stored: Stored | None) -> Reply:
    method, headers = seen.method, seen.headers
    if method not in ("GET", "HEAD"):
        return refusal(405, method)
    if odd.checksum_mode is not None and "x-amz-checksum-mode" in headers:
        return refusal(odd.checksum_mode, method)
    if method == "HEAD" and odd.head_status is not None:
        return refusal(odd.head_status, method)
    if stored is None:
        return refusal(404, method)
    etag = etag_of(odd, stored, method)
    if (status := _condition(odd, headers, etag, stored)) == 304:
        return Reply(304, [] if etag is None else [("ETag", etag)], without_length=True)
    if status is not None:
        return refusal(status, method)
    size = len(stored.body)
    extent = None if odd.ignores_range or method == "HEAD" else extent_of(headers.get("range", ""), size)
    if extent == (0, 0):
        return refusal(416, method, ("Content-Range", f"bytes */{size}"))
    return _bodily(odd, seen, stored, etag, extent)


def _bodily(odd: Oddities, seen: Seen, stored: Stored, etag: str | None, extent: tuple[int, int] | None) -> Reply:
    size = len(stored.body)
    body = stored.body if extent is None else stored.body[slice(*extent)]
    own = [*stored.headers, *odd.more_headers]
    if not any(name.lower() == "content-type" for name, _ in own):
        own.append(("Content-Type", "binary/octet-stream"))
    headers = [("Last-Modified", formatdate(stored.modified, usegmt=True)), ("Accept-Ranges", "bytes"), *own]
    if etag is not None:
        headers.append(("ETag", etag))
    if odd.content_encoding:
        headers.append(("Content-Encoding", odd.content_encoding))
    if seen.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        headers += _checksums(odd, stored.body, body, is_part=extent is not None)
    status = odd.plain_status
    if extent is not None:
        status = odd.range_status
        headers += _content_range(odd.content_range, extent, size)
    elif odd.plain_content_range and size and seen.method == "GET":
        headers += _content_range(odd.content_range, (0, size), size)
    if seen.method == "HEAD":
        return _head_reply(odd, headers, size)
    reply = Reply(status, headers, body)
    _spoil(reply, odd)
    return reply


def _head_reply(odd: Oddities, headers: list[tuple[str, str]], size: int) -> Reply:
    length = {HeadLength.ZERO: 0, HeadLength.WRONG: max(0, size - 1)}.get(odd.head_length, size)
    return Reply(200, headers, content_length=length, without_length=odd.head_length is HeadLength.MISSING)


def _spoil(reply: Reply, odd: Oddities) -> None:
    """Give the reply the framing and the bytes that are set."""
    half = reply.body[: len(reply.body) // 2]
    reply.content_length = len(reply.body)
    if odd.body is Body.CUT and reply.body:
        reply.body, reply.closes = half, True
    elif odd.body is Body.SHORT:
        reply.body, reply.content_length = half, len(half)
    elif odd.body is Body.LONG:
        reply.body, reply.content_length = reply.body + MORE_BYTES, len(reply.body) + len(MORE_BYTES)
    elif odd.body is Body.LONGER:
        reply.more = MORE_BYTES
    # HTTP/1.0 has no chunks.
    reply.chunked = odd.length is Length.CHUNKED and not odd.http_1_0
    reply.without_length = odd.length is not Length.STATED
    reply.closes |= reply.without_length and not reply.chunked


def _condition(odd: Oddities, headers: Mapping[str, str], etag: str | None, stored: Stored) -> int | None:
    """The status with which a condition ends the request; None: it holds, or is ignored."""
    wanted = headers.get("if-match")
    if wanted is not None and odd.if_match is not IfMatch.IGNORED:
        if odd.if_match is IfMatch.HEEDED:
            # RFC 9110 section 13.1.1: the comparison is strong, so a weak ETag never matches.
            matches = wanted == "*" or (etag is not None and etag in _listed(wanted) and not etag.startswith("W/"))
            if not matches:
                return 412
        else:
            return int(odd.if_match.value)
    if odd.ignores_conditions:
        return None
    since = _seconds(headers.get("if-unmodified-since"))
    if wanted is None and since is not None and stored.modified > since:
        return 412
    unwanted = headers.get("if-none-match")
    if unwanted is not None:
        return 304 if unwanted == "*" or (etag is not None and etag in _listed(unwanted)) else None
    since = _seconds(headers.get("if-modified-since"))
    return 304 if since is not None and stored.modified <= since else None


def _listed(etags: str) -> list[str]:
    return [etag.strip() for etag in etags.split(",")]


def _seconds(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def extent_of(value: str, size: int) -> tuple[int, int] | None:
    """The bytes that a Range wants; (0, 0): there are none; None: the whole object, also for a Range that is odd."""
    unit, _, rest = value.partition("=")
    first, dash, last = rest.partition("-")
    if unit != "bytes" or not dash or not (first + last).isdecimal():
        return None
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    return (start, stop) if start < stop else (0, 0)


def _content_range(form: ContentRange, extent: tuple[int, int], size: int) -> list[tuple[str, str]]:
    start, last = extent[0], extent[1] - 1
    forms = {
        ContentRange.RIGHT: f"bytes {start}-{last}/{size}",
        ContentRange.NO_TOTAL: f"bytes {start}-{last}/*",
        ContentRange.WRONG_START: f"bytes {start + 1}-{last + 1}/{size + 1}",
        ContentRange.WRONG_TOTAL: f"bytes {start}-{last}/{size + 1}",
        ContentRange.WRONG_LENGTH: f"bytes {start}-{last + 1}/{size + 1}",
        ContentRange.UNREADABLE: f"{start}-{last}",
    }
    return [("Content-Range", forms[form])] if form in forms else []


def _checksums(odd: Oddities, whole: bytes, body: bytes, *, is_part: bool) -> list[tuple[str, str]]:
    if odd.checksum is Checksum.NONE or (is_part and odd.checksum is not Checksum.OF_PART):
        return []
    if odd.checksum is Checksum.OF_PARTS:
        if odd.etag not in (ETag.MULTIPART, ETag.CONSTANT, ETag.ZEROS):
            return []
        half = len(whole) // 2
        parts = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in (whole[:half], whole[half:]))
        return [("x-amz-checksum-crc32", base64.b64encode(zlib.crc32(parts).to_bytes(4, "big")).decode())]
    crc = zlib.crc32(body if is_part else whole) ^ (odd.checksum is Checksum.WRONG)
    value = base64.b64encode(crc.to_bytes(4, "big")).decode()
    return [("x-amz-checksum-crc32", value), ("x-amz-checksum-type", "FULL_OBJECT")]


def refusal(status: int, method: str, *headers: tuple[str, str]) -> Reply:
    xml = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{_CODES.get(status, "InternalError")}</Code>'
        "<Message>The origin is odd.</Message><RequestId>ODD</RequestId></Error>"
    ).encode()
    return Reply(status, [("Content-Type", "application/xml"), *headers], xml if method != "HEAD" else b"")


async def send(writer: asyncio.StreamWriter, odd: Oddities, seen: Seen, reply: Reply) -> None:
    """Send a reply. Its bytes count as sent before they are: a client that has them must find them counted."""
    version = "HTTP/1.0" if odd.http_1_0 else "HTTP/1.1"
    headers = [("Date", formatdate(usegmt=True)), ("x-amz-request-id", "ODD"), *reply.headers]
    if reply.chunked:
        headers.append(("Transfer-Encoding", "chunked"))
    elif not reply.without_length:
        headers.append(
            ("Content-Length", str(len(reply.body) if reply.content_length is None else reply.content_length))
        )
    if odd.closes:
        headers.append(("Connection", "close"))
    lines = [f"{name}: {value}" for name, value in headers if name.lower() not in odd.lacks]
    reason = _REASONS.get(reply.status, "Refused")
    head = "\r\n".join([f"{version} {reply.status} {reason}", *lines, "", ""]).encode("utf-8", "surrogateescape")
    body = reply.body
    seen.sent_bytes += len(body)
    if reply.chunked:
        # A chunked body that is cut has no last chunk.
        body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if reply.closes else b"0\r\n\r\n")
    writer.write(head + body + reply.more)
    await writer.drain()
