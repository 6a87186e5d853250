"""Reads the replies of an HTTP/1.x server, from bytes in any pieces: one head, and the body that belongs to it.

An ordinary head is read by one regular expression, any other as `reply_head` mends it. Lengths and chunks are read
strictly: bytes that two readers could take for different bodies are an error.
Source: RFC 9110 section 6.4.1, RFC 9112 sections 4, 6.3, 7.1 and 9.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from outrider.core.errors import Broke, OriginBroke
from outrider.core.model import Headers
from outrider.core.origin.oddities import Oddity
from outrider.core.origin.reply_head import HEAD_BYTES_MAX, UnreadableHead, mend, split

_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\0]*)?\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)*)\r\n"
)  # fmt: skip
_INTERIM = re.compile(rb"\s*HTTP/1\.[01] 1(?!01)[0-9]{2}\b.*?\n\r?\n", re.DOTALL)
_FRAMING = ("content-length", "transfer-encoding", "connection")
_LENGTH = re.compile("[0-9]{1,18}", re.ASCII)
# Readers differ in what else they take for a coding.
_CODING = re.compile("[!#$%&'*+.^_`|~0-9a-z-]+")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n\0]*)?\r?\n")
_CHUNK_LINE_BYTES_MAX = 8192
_ENDS_OF_LINE = (b"\r\n", b"\n")
_SIZE, _END_OF_CHUNK, _TRAILER = range(3)


class ReplyReader:
    """Reads one reply. Each method raises OriginBroke where the reply cannot be read, or is not whole."""

    __slots__ = (
        "_begun", "_chunked", "_due", "_trailer_bytes", "_without_body", "content_length", "headers", "is_over",
        "keeps", "left", "oddities", "status",
    )  # fmt: skip

    def __init__(self, *, without_body: bool = False) -> None:
        """`without_body`: that of a HEAD, which has none whatever its head says."""
        self._without_body = without_body
        # The bytes of a head, or of a line of a chunked body, that is not whole.
        self._begun = b""
        self._chunked = False
        # Which line comes next where `left` is 0.
        self._due = _SIZE
        self._trailer_bytes = 0
        self.status = 0
        """0: the head is not whole. Interim heads (1xx) are dropped."""
        self.headers: Headers = ()
        """The names are in lower case."""
        self.content_length: int | None = None
        """As the head says, also where there is no body."""
        self.oddities: tuple[tuple[Oddity, str], ...] = ()
        """How the head was mended, with the name of the header."""
        self.left: int | None = None
        """How many bytes of the body, or of this chunk, are still to come; None: until the connection ends."""
        self.is_over = False
        """The reply is whole."""
        self.keeps = False
        """The connection may be used again once the reply is whole."""

    @property
    def is_measured(self) -> bool:
        """The body has the length that its head says, so that the next `left` bytes are bytes of the body."""
        return self.left is not None and not self._chunked

    @property
    def has_begun(self) -> bool:
        """Any byte of it came."""
        return self.status != 0 or self._begun != b""

    @property
    def goes_on(self) -> bool:
        """An interim head came, or the reply."""
        return self.status != 0 or _INTERIM.match(self._begun) is not None

    def feed(self, data: bytes) -> Sequence[bytes | memoryview]:
        """The next bytes of the connection. Returns those that belong to the body, in order."""
        if not self.status:
            data = self._read_head(data)
        if not data:
            return ()
        if self.is_over:
            self.keeps = False  # nobody requested them
            return ()
        if self._chunked:
            return self._read_chunks(data)
        if self.left is None:
            return (data,)
        body = data if len(data) <= self.left else memoryview(data)[: self.left]
        self.passed(len(body))
        self.keeps &= len(body) == len(data)
        return (body,)

    def passed(self, count: int) -> None:
        """So many bytes of a body that `is_measured` were received past this reader."""
        assert self.left is not None
        self.left -= count
        self.is_over = self.left == 0

    def end(self) -> None:
        """The connection has ended."""
        self.keeps = False
        if not self.status:
            raise OriginBroke("the connection ended before a reply")
        if self.left is not None and not self.is_over:
            raise OriginBroke("the body was shorter than it said")
        self.is_over = True

    def _read_head(self, data: bytes) -> bytes:
        """Returns what came behind it."""
        data = self._begun + data
        match = _HEAD.match(data)
        is_usual = match is not None and match.end() <= HEAD_BYTES_MAX and (match[2] >= b"200" or match[2] == b"101")
        if is_usual and match is not None and self._take(match, headers := _fields(match[3]), headers):
            # It came whole. `split` finds the same end, behind interim heads, too.
            self._begun = b""
            return data[match.end() :]
        found = split(data)
        if len(data if found is None else found[0]) > HEAD_BYTES_MAX:
            raise unreadable(f"a head of more than {HEAD_BYTES_MAX} bytes")
        if not b"HTTP/".startswith(data.lstrip(b"\r\n")[:5]):
            raise unreadable("Bad status line")
        if found is None:
            self._begun = data
            return b""
        head, rest = found
        self._begun = b""
        match = _HEAD.fullmatch(head)
        if match is None or not self._take(match, headers := _fields(match[3]), headers):
            self._take_mended(head)
        return rest

    def _take_mended(self, head: bytes) -> None:
        try:
            mended = mend(head)
        except UnreadableHead as error:
            raise unreadable(str(error)) from error
        match = _HEAD.fullmatch(mended.head)
        if match is None:
            raise unreadable("Bad status line")
        headers = tuple((_text(name).lower(), _text(value)) for name, value in mended.headers)
        if not self._take(match, _fields(match[3]), headers):
            raise unreadable("its framing is odd")
        if mended.odd is not None:
            self.oddities = ((Oddity.HEADER_MALFORMED, mended.odd[:200].decode("ascii", "backslashreplace")),)
        if mended.framed_twice:
            self.oddities += ((Oddity.FRAMING_ODD, "content-length"),)

    def _take(self, match: re.Match[bytes], framing: Headers, headers: Headers) -> bool:
        """Take the reply that is framed by `framing`. False: these headers say two things, or no length."""
        length: int | None = None
        codings: list[str] = []
        options: list[str] = []
        for name, value in framing:
            if name not in _FRAMING:
                continue
            if name != "content-length":
                (options if name == "connection" else codings).extend(
                    token.strip(" \t").lower() for token in value.split(",")
                )
            elif length is None and _LENGTH.fullmatch(value):
                length = int(value)
            else:
                return False
        if codings and length is not None:
            return False
        if codings.count("chunked") > 1 or not all(map(_CODING.fullmatch, codings)):
            raise unreadable("its Transfer-Encoding is odd")
        self.status = status = int(match[2])
        self.headers, self.content_length = headers, length
        self.keeps = ("close" not in options) if match[1] == b"1" else ("keep-alive" in options)
        if self._without_body or status in (101, 204, 304):
            self.is_over = True
            self.keeps &= status != 101
        elif codings and codings[-1] == "chunked":
            self._chunked, self.left = True, 0
        elif length is not None:
            self.left, self.is_over = length, length == 0
        else:
            self.keeps = False
        return True

    def _read_chunks(self, data: bytes) -> list[bytes | memoryview]:
        pieces: list[bytes | memoryview] = []
        at, stop = 0, len(data)
        while at < stop and not self.is_over:
            if self.left:
                count = min(self.left, stop - at)
                pieces.append(memoryview(data)[at : at + count])
                self.left -= count
                at += count
                continue
            end = data.find(b"\n", at) + 1
            line = self._begun + data[at : end or stop]
            if len(line) > _CHUNK_LINE_BYTES_MAX:
                raise unreadable("a line between chunks is too long", lasting=False)
            if not end:
                self._begun = line
                break
            self._begun, at = b"", end
            self._read_line(line)
        if at < stop and self.is_over:
            self.keeps = False
        return pieces

    def _read_line(self, line: bytes) -> None:
        if self._due == _END_OF_CHUNK:
            if line not in _ENDS_OF_LINE:
                raise unreadable("a chunk of another length than it said", lasting=False)
            self._due = _SIZE
        elif self._due == _SIZE:
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise unreadable("no chunk size", lasting=False)
            self.left = int(size[1], 16)
            self._due = _END_OF_CHUNK if self.left else _TRAILER
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > HEAD_BYTES_MAX:
                raise unreadable("its trailers are too long", lasting=False)
            self.is_over = line in _ENDS_OF_LINE


def unreadable(why: str, *, lasting: bool = True) -> OriginBroke:
    return OriginBroke(f"its reply cannot be read: {why}", cause=Broke.UNREADABLE, lasting=lasting)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _fields(lines: bytes) -> Headers:
    headers = []
    for line in _text(lines)[:-2].split("\r\n") if lines else ():
        name, _, value = line.partition(":")
        headers.append((name.lower(), value.strip(" \t")))
    return tuple(headers)
