"""Guards around aiohttp's parser of requests (3.14). An exception of the parser becomes a refusal, and each message
that it lets through can be made a request. Requests that HTTP stacks read in different ways are refused: two readings
of one request can smuggle in a second one.
"""

from __future__ import annotations

import re
from typing import Any, cast

from aiohttp import StreamReader
from aiohttp.http import HttpProcessingError, HttpVersion, HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.http_parser import HttpParser
from yarl import URL

from outrider.core.errors import BadRequest
from outrider.core.model import Headers
from outrider.core.s3.encoding import STORE_HEADERS
from outrider.core.s3.headers import HOP_BY_HOP

_NOWHERE = URL()
# Without a user, and up to the path. A Host may hold anything, a slash too.
_AUTHORITY = re.compile(r"([^/?#@]*)/")
# The parser shows the refused line as the `repr` of bytes. Only the header's name may be repeated: the value may be a
# secret.
_HEADER_NAME = re.compile(r"""b['"]([^:'"\\\s][^:\\]{0,99}):""")
_ODD_NAME = "invalid header token"


class Parser:
    """The part of aiohttp's parser that its connection uses."""

    __slots__ = ("_parser", "message_consumed", "pause_reading", "set_upgraded")

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.message_consumed = parser.message_consumed
        self.pause_reading = parser.pause_reading
        self.set_upgraded = parser.set_upgraded

    def feed_data(self, data: bytes) -> tuple[list[tuple[RawRequestMessage, StreamReader]], bool, bytes]:
        """Raises HttpProcessingError: the request is refused, and the connection closed."""
        try:
            messages, upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError:
            raise
        except Exception as error:
            # As a rule, yarl's error about a target (`http://][@`). The connection handles no error but the one above:
            # of another it would end without a reply, or neither reply nor end.
            raise BadHttpMessage(f"the parser failed: {type(error).__name__}") from error
        return [(_aimed(message), payload) for message, payload in messages], upgraded, tail


class NoParser:
    """Stands in a parser's place, and drops all bytes: they cannot be distinguished from a body any more."""

    __slots__ = ()

    def feed_data(self, data: bytes) -> tuple[tuple[()], bool, bytes]:
        return (), False, b""

    def message_consumed(self) -> None: ...

    def pause_reading(self) -> None: ...

    def set_upgraded(self, value: bool) -> None: ...


def guarded(parser: HttpParser[Any] | None) -> HttpParser[Any]:
    return cast(HttpParser[Any], Parser(parser))


def refused_for(message: str) -> str:
    """The reason in the parser's message: `invalid header token in "x-amz-meta-a/b"`. Empty: it has none."""
    reason = next((line.strip(" :.") for line in message.splitlines() if line.strip()), "")
    if len(reason) > 100 or "b'" in reason:
        return ""
    reason = reason[:1].lower() + reason[1:]
    name = _HEADER_NAME.search(message) if reason == _ODD_NAME else None
    return reason if name is None else f'{reason} in the header name "{name[1]}"'


def _aimed(message: RawRequestMessage) -> RawRequestMessage:
    """The message; or, if aiohttp can make no request of it, one without a target, which is refused for that.

    aiohttp's own task would fail at such a message in the next turn of the loop, and leave the connection open. Two
    kinds are known: a `CONNECT` without a target, and a host that is no name in IDNA.
    """
    url = cast(URL | None, message.url)
    try:
        if url is not None and (not url.absolute or url.host is not None):
            return _in_origin_form(message) if url.absolute else message
    except ValueError:
        pass
    return message._replace(path="", url=_NOWHERE)


def _in_origin_form(message: RawRequestMessage) -> RawRequestMessage:
    """The message with a path as its target, if the target was a URL of the very host that its one Host header names.

    Every server takes such a URL (RFC 9112, 3.2.2), and clients on the AWS CRT with an endpoint of their own send it.
    Other URLs stay as they are, and are refused for that: two HTTP stacks might take two hosts for the one that is
    meant.
    """
    hosts = message.headers.getall("Host", ())
    scheme, mark, rest = message.path.partition("://")
    authority = _AUTHORITY.match(rest)
    if len(hosts) != 1 or not mark or scheme not in ("http", "https") or not authority or authority[1] != hosts[0]:
        return message
    target = rest.removeprefix(hosts[0])
    before, _, fragment = target.partition("#")
    path, _, query = before.partition("?")
    url = URL.build(path=path, query_string=query, fragment=fragment, encoded=True)
    return message._replace(path=target, url=url)


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
