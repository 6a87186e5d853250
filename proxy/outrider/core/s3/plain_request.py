"""Recognises a plain read without the HTTP parser: one GET or HEAD of an object, with a complete head, no body, and
only headers that cannot change the answer. Training jobs send this form by the million.

A request that is not recognised goes to the HTTP parser, which decides. This module therefore may accept less than HTTP
allows, and never more. Source: RFC 9112 sections 3 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from outrider.core.memo import Memo
from outrider.core.model import Headers
from outrider.core.s3 import ranges
from outrider.core.s3.headers import app_of
from outrider.core.s3.ranges import RangeSpec

HEAD_BYTES_MAX = 8192

# The target has only visible ASCII, the grammar's spaces are single, each line ends with CR LF, and no line is folded:
# no parser can read such a head in another way.
_FIRST_LINE = re.compile(rb"(GET|HEAD) (/[!-~]+) HTTP/1\.1")
_FIELDS = re.compile(rb"(?:[A-Za-z0-9-]+: [!-~](?:[ -~]*[!-~])?\r\n)+\r\n")


# Only signatures depend on these, or nothing does.
_SIGNED = frozenset(
    ("authorization", "x-amz-date", "x-amz-security-token", "user-agent", "accept", "accept-encoding",
     "amz-sdk-invocation-id", "amz-sdk-request", "x-amz-user-agent", "x-amz-api-version", "traceparent", "tracestate")
)  # fmt: skip
_PLAIN = _SIGNED | {"host", "if-match", "x-amz-checksum-mode", "x-amz-content-sha256", "connection"}
_DIFFERENT_EACH_TIME = frozenset(("authorization", "x-amz-date", "amz-sdk-invocation-id", "traceparent"))
# A header name comes in two or three spellings, and each spelling is put into lower case once.
_SPELLINGS: Memo[bytes, str] = Memo(256)

# The values of x-amz-content-sha256 on requests without a body; other values may have to be refused.
_NO_BODY = re.compile(r"UNSIGNED-PAYLOAD|[0-9a-f]{64}")


class _Meaning(NamedTuple):
    """The facts in the header fields, but for a Range."""

    host: str
    if_match: str | None
    checksums: bool
    app: str


# The key is all header fields of a request but its Range. Many clients send the same fields each time, and reading them
# one by one takes a fifth of the time of a hit here.
_MEANINGS_MAX = 256
_MEANINGS: Memo[bytes, _Meaning] = Memo(_MEANINGS_MAX)
_MEANING_BYTES_MAX = 2048
# Two offsets of at most 18 digits each (see `ranges`), and what stands between them.
_RANGE_DIGITS_MAX = 18
_NEWLINE = ord("\n")


@dataclass(slots=True)
class PlainRequest:
    """A GET or HEAD whose answer depends on these fields alone and, where requests are signed, on `headers`.

    `fields`: all header lines and the empty line. `app`: see `headers.app_of`. `span`: the range that `range` names.
    """

    method: str
    path: bytes
    query: bytes
    fields: bytes
    host: str
    if_match: str | None
    checksums: bool
    app: str
    range: str | None
    span: RangeSpec | None

    def headers(self) -> Headers:
        """All headers with their values as sent and their names in lower case."""
        return _pairs(self._lines())

    def trace_headers(self) -> Headers:
        """The headers that may hold the sender's trace context: all whose name begins with `t`."""
        return _pairs(line for line in self._lines() if line[0] in b"tT")

    def _lines(self) -> list[bytes]:
        return self.fields[:-4].split(b"\r\n")


def _pairs(lines: Iterable[bytes]) -> Headers:
    # Not one by one: each cold or signed request would pay for two generators.
    pairs = [line.decode("ascii").split(": ", 1) for line in lines]
    return tuple([(name.lower(), value) for name, value in pairs])


def known_fields(fields: bytes) -> tuple[_Meaning, bytes | None, int, int] | None:
    """The meaning of all header lines of a GET with the empty line at their end, and its range: the value of the
    header, and the half-open run of bytes that it names, of which the object may have only a part.

    A range of None: the request has none. None instead of all: `recognise` has to look, because the lines but for the
    Range did not come before, or the range has another form than `bytes=1-2`.
    """
    meaning = _MEANINGS.get(fields)
    if meaning is not None:
        return meaning, None, 0, 0
    before, found, rest = fields.partition(b"Range: bytes=")
    if not found:
        before, found, rest = fields.partition(b"range: bytes=")
    value, _, after = rest.partition(b"\r\n")
    first, _, last = value.partition(b"-")
    # Otherwise `Range: ` is the end of another name, stands in a value, or comes after the end of the head.
    if not after or (before and before[-1] != _NEWLINE):
        return None
    if not (first.isdigit() and last.isdigit()) or len(value) > _RANGE_DIGITS_MAX:
        return None
    meaning = _MEANINGS.get(before + after)
    start, stop = int(first), int(last) + 1
    return None if meaning is None or stop <= start else (meaning, value, start, stop)


def recognise(data: bytes) -> PlainRequest | None:
    """The request in `data`, if that is one plain read and nothing else; None: the HTTP parser must read it."""
    if len(data) > HEAD_BYTES_MAX:
        return None
    first, _, fields = data.partition(b"\r\n")
    match = _FIRST_LINE.fullmatch(first)
    if match is None:
        return None
    method = "GET" if match[1] == b"GET" else "HEAD"
    before, found, rest = fields.partition(b"Range: ")
    if not found:
        before, found, rest = fields.partition(b"range: ")
    value, _, after = rest.partition(b"\r\n")
    # Otherwise `Range: ` is the end of another name, stands in a value, or comes after the end of the head.
    if found and not (after and (not before or before.endswith(b"\r\n"))):
        before, found, value, after = fields, b"", b"", b""
    others, range_header, span = before + after, None, None
    if found:
        range_header = value.decode("latin-1")
        span = ranges.parse(range_header)
    meaning = _MEANINGS.get(others) or _meaning_of(others)
    # Stores differ in how they answer a HEAD with a Range.
    if meaning is None or (found and (span is None or method == "HEAD")):
        return None
    path, _, query = match[2].partition(b"?")
    return PlainRequest(method, path, query, fields, *meaning, range_header, span)


def _meaning_of(fields: bytes) -> _Meaning | None:
    """The facts in these header lines. None: a header is none of a plain read, or comes twice."""
    if _FIELDS.fullmatch(fields) is None:
        return None
    values: dict[str, str] = {}
    for line in fields[:-4].split(b"\r\n"):
        spelled, _, value = line.partition(b": ")
        name = _SPELLINGS.get(spelled) or _name_of(spelled)
        if name is None or name in values:
            return None
        values[name] = value.decode("ascii")
        if name not in _SIGNED and not _is_plain(name, values[name]):
            return None
    if "host" not in values:
        return None
    agent = values.get("user-agent", "")
    # The search is skipped for most clients, which name no application.
    app = app_of(agent) if "app/" in agent else ""
    meaning = _Meaning(values["host"], values.get("if-match"), "x-amz-checksum-mode" in values, app)
    if _DIFFERENT_EACH_TIME.isdisjoint(values) and len(fields) <= _MEANING_BYTES_MAX:
        _MEANINGS.put(fields, meaning)
    return meaning


def _is_plain(name: str, value: str) -> bool:
    if name == "x-amz-checksum-mode":
        return value.upper() == "ENABLED"
    if name == "x-amz-content-sha256":
        return _NO_BODY.fullmatch(value) is not None
    return name != "connection" or value.lower() == "keep-alive"


def _name_of(spelled: bytes) -> str | None:
    """The name in lower case; None: no plain read has such a header."""
    name = spelled.decode("ascii").lower()
    if name not in _PLAIN:
        return None
    _SPELLINGS.put(spelled, name)
    return name
