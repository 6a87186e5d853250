"""Refuses requests that HTTP stacks read in different ways: two readings of one request can smuggle in a second one."""

from __future__ import annotations

from aiohttp.http import HttpVersion, HttpVersion10, HttpVersion11

from outrider.core.errors import BadRequest
from outrider.core.model import Headers
from outrider.core.s3.encoding import STORE_HEADERS
from outrider.core.s3.headers import HOP_BY_HOP

# With two values of these headers, some HTTP stack may see another request.
_ONCE = ("host", "content-length", "transfer-encoding", "range", "x-amz-content-sha256", "x-amz-copy-source",
         "x-amz-rename-source")  # fmt: skip
_END_TO_END = frozenset(
    ("authorization", "cache-control", "content-disposition", "content-encoding", "content-language", "content-length",
     "content-md5", "content-type", "date", "expect", "expires", "host", "if-match", "if-modified-since",
     "if-none-match", "if-range", "if-unmodified-since", "origin", "range")
)  # fmt: skip


def well_framed(headers: Headers, version: HttpVersion) -> Headers:
    """The end-to-end headers, without those that Connection names. Raises BadRequest: the framing is ambiguous."""
    names = [name for name, _ in headers]
    for single in _ONCE:
        if names.count(single) > 1:
            raise BadRequest(f"More than one {single} header.")
    if "content-length" in names and "transfer-encoding" in names:
        raise BadRequest("Both Content-Length and Transfer-Encoding.")
    coding = dict(headers).get("transfer-encoding", "chunked")
    if coding.lower() != "chunked":
        raise BadRequest("The only Transfer-Encoding understood is chunked.")
    if "transfer-encoding" in names and version < HttpVersion11:
        raise BadRequest("HTTP/1.0 has no Transfer-Encoding.")
    rest = _without_connection(headers)
    if not HttpVersion10 <= version <= HttpVersion11:
        raise BadRequest("The protocol must be HTTP/1.0 or HTTP/1.1.")
    if "host" not in names and version >= HttpVersion11:
        raise BadRequest("The Host header is missing.")
    return rest


def _without_connection(headers: Headers) -> Headers:
    """Drops the headers that Connection names (RFC 9110 section 7.6.1). Raises BadRequest: it names a header of S3's,
    by which the holder of a signed URL could remove a header that the signature covers."""
    named = {
        part.strip().lower() for name, value in headers if name == "connection" for part in value.split(",")
    } - HOP_BY_HOP  # fmt: skip
    if any(name.startswith(STORE_HEADERS) or name in _END_TO_END for name in named):
        raise BadRequest("Connection names a header that is not for this connection alone.")
    return tuple(pair for pair in headers if pair[0] not in named) if named else headers
