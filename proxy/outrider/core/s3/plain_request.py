"""The one form of request that training jobs send by the million, recognised without a parser: a lone GET or HEAD of an
object, head complete, no body, none but harmless headers.

Whatever is not recognised goes to the HTTP parser, which decides; so this accepts less than HTTP allows, never more.
Source: RFC 9112 sections 3 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from outrider.core.memo import Memo
from outrider.core.model import Headers
from outrider.core.s3 import ranges
from outrider.core.s3.ranges import RangeSpec
from outrider.core.s3.user_agent import app_of

HEAD_BYTES_MAX = 8192

# Visible ASCII alone in the target, one space where the grammar has one, CR LF at each end of line, no folded lines:
# there is no second way to read this.
_FIRST_LINE = re.compile(rb"(GET|HEAD) (/[!-~]+) HTTP/1\.1")
_FIELDS = re.compile(rb"(?:[A-Za-z0-9-]+: [!-~](?:[ -~]*[!-~])?\r\n)+\r\n")


# Read by signatures alone, or by nobody.
_SIGNED = frozenset(
    ("authorization", "x-amz-date", "x-amz-security-token", "user-agent", "accept", "accept-encoding",
     "amz-sdk-invocation-id", "amz-sdk-request", "x-amz-user-agent", "x-amz-api-version", "traceparent", "tracestate")
)  # fmt: skip
_PLAIN = _SIGNED | {"host", "if-match", "x-amz-checksum-mode", "x-amz-content-sha256", "connection"}
_EACH_TIME_ANOTHER = frozenset(("authorization", "x-amz-date", "amz-sdk-invocation-id", "traceparent"))
# A name comes in two or three spellings; each is put into lower case once.
_SPELLINGS: Memo[bytes, str] = Memo(256)

# What bodiless requests say of their body; other values may be refused.
_NO_BODY = re.compile(r"UNSIGNED-PAYLOAD|[0-9a-f]{64}")


class _Meaning(NamedTuple):
    """What header fields say apart from a Range."""

    host: str
    if_match: str | None
    checksums: bool
    app: str


# By all fields of a request but its Range: many clients send the same ones each time, and to read them one by one is a
# fifth of what a hit costs here.
_MEANINGS_MAX = 256
_MEANINGS: Memo[bytes, _Meaning] = Memo(_MEANINGS_MAX)
_MEANING_BYTES_MAX = 2048


@dataclass(slots=True)
class PlainRequest:
    """A GET or HEAD whose answer hangs on nothing but these and, where signatures count, on `headers`.

    `fields`: all header lines, and the empty one. `app`: see `useragent.app_of`. `span`: what `range` names.
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
        """All headers as they stood, names in lower case."""
        return _pairs(self._lines())

    def trace_headers(self) -> Headers:
        """Those that may tell of the sender's trace, and maybe others."""
        return _pairs(line for line in self._lines() if line[0] in b"tT")

    def _lines(self) -> list[bytes]:
        return self.fields[:-4].split(b"\r\n")


def _pairs(lines: Iterable[bytes]) -> Headers:
    pairs = (line.split(b": ", 1) for line in lines)
    return tuple((name.decode("ascii").lower(), value.decode("ascii")) for name, value in pairs)


def recognise(data: bytes) -> PlainRequest | None:
    """What `data` asks for, if it is one plain read and nothing else; None: let the parser see it."""
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
    # Else it is the end of another name, stands in a value, or comes after the head's end.
    if found and not (after and (not before or before.endswith(b"\r\n"))):
        before, found, value, after = fields, b"", b"", b""
    others, asked, span = before + after, None, None
    if found:
        asked = value.decode("latin-1")
        span = ranges.parse_exact(asked)
    meaning = _MEANINGS.get(others) or _meaning_of(others)
    # What stores make of a HEAD's Range differs.
    if meaning is None or (found and (span is None or method == "HEAD")):
        return None
    path, _, query = match[2].partition(b"?")
    return PlainRequest(method, path, query, fields, *meaning, asked, span)


def _meaning_of(fields: bytes) -> _Meaning | None:
    """Of header lines and the empty line; None: they say more than those of a plain read do, or something twice."""
    if _FIELDS.fullmatch(fields) is None:
        return None
    said: dict[str, str] = {}
    for line in fields[:-4].split(b"\r\n"):
        spelled, _, value = line.partition(b": ")
        name = _SPELLINGS.get(spelled) or _name_of(spelled)
        if name is None or name in said:
            return None
        said[name] = value.decode("ascii")
        if name not in _SIGNED and not _is_plain(name, said[name]):
            return None
    if "host" not in said:
        return None
    agent = said.get("user-agent", "")
    # Most name none.
    app = app_of(agent) if "app/" in agent else ""
    meaning = _Meaning(said["host"], said.get("if-match"), "x-amz-checksum-mode" in said, app)
    if _EACH_TIME_ANOTHER.isdisjoint(said) and len(fields) <= _MEANING_BYTES_MAX:
        _MEANINGS.put(fields, meaning)
    return meaning


def _is_plain(name: str, value: str) -> bool:
    if name == "x-amz-checksum-mode":
        return value.upper() == "ENABLED"
    if name == "x-amz-content-sha256":
        return _NO_BODY.fullmatch(value) is not None
    return name != "connection" or value.lower() == "keep-alive"


def _name_of(spelled: bytes) -> str | None:
    """In lower case; None: no plain read has such a header."""
    name = spelled.decode("ascii").lower()
    if name not in _PLAIN:
        return None
    _SPELLINGS.put(spelled, name)
    return name
