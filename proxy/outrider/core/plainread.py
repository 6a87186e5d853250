"""The one form of request that training jobs send by the million, recognised without a parser: a lone GET or HEAD of an
object, head complete, no body, none but harmless headers.

Whatever is not recognised goes to the HTTP parser, which decides; so this accepts less than HTTP allows, never more.
Source: RFC 9112 sections 3 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from outrider.core.model import Headers

HEAD_BYTES_MAX = 8192

# Visible ASCII alone in the target, one space where the grammar has one, CR LF at each end of line, no folded lines:
# there is no second way to read this.
_SHAPE = re.compile(rb"(?:GET|HEAD) /[!-~]+ HTTP/1\.1\r\n(?:[A-Za-z0-9-]+: [!-~](?:[ -~]*[!-~])?\r\n)+\r\n")


# Read by signatures alone, or by nobody.
_SIGNED = frozenset(
    ("authorization", "x-amz-date", "x-amz-security-token", "user-agent", "accept", "accept-encoding",
     "amz-sdk-invocation-id", "amz-sdk-request", "x-amz-user-agent", "x-amz-api-version", "traceparent", "tracestate")
)  # fmt: skip
_PLAIN = _SIGNED | {"host", "range", "if-match", "x-amz-checksum-mode", "x-amz-content-sha256", "connection"}
# A name comes in two or three spellings; each is put into lower case once.
_SPELLINGS: dict[bytes, str] = {}
_SPELLINGS_MAX = 256

# What bodiless requests say of their body; other values may be refused.
_NO_BODY = re.compile(r"UNSIGNED-PAYLOAD|[0-9a-f]{64}")


@dataclass(slots=True)
class PlainRead:
    """A GET or HEAD whose answer hangs on nothing but the fields here and, where signatures count, on `lines`."""

    method: str
    path: bytes
    query: bytes
    lines: list[bytes]
    host: str = ""
    range: str | None = None
    if_match: str | None = None
    checksums: bool = False

    def headers(self) -> Headers:
        """All headers as they stood, names in lower case."""
        return _pairs(self.lines)

    def trace_headers(self) -> Headers:
        """Those that may tell of the sender's trace, and maybe others."""
        return _pairs(line for line in self.lines if line[0] in b"tT")


def _pairs(lines: Iterable[bytes]) -> Headers:
    pairs = (line.split(b": ", 1) for line in lines)
    return tuple((name.decode("ascii").lower(), value.decode("ascii")) for name, value in pairs)


def recognise(data: bytes) -> PlainRead | None:
    """What `data` asks for, if it is one plain read and nothing else; None: let the parser see it."""
    if len(data) > HEAD_BYTES_MAX or _SHAPE.fullmatch(data) is None:
        return None
    lines = data[:-4].split(b"\r\n")
    method, target, _ = lines.pop(0).split(b" ")
    path, _, query = target.partition(b"?")
    read = PlainRead("GET" if method == b"GET" else "HEAD", path, query, lines)
    return read if _fill_in(read) else None


def _fill_in(read: PlainRead) -> bool:
    """False: a header says more than a plain read does, or stands there twice."""
    seen: set[str] = set()
    for line in read.lines:
        spelled, _, value = line.partition(b": ")
        name = _SPELLINGS.get(spelled) or _name_of(spelled)
        if name is None or name in seen:
            return False
        seen.add(name)
        if name not in _SIGNED and not _note(read, name, value.decode("ascii")):
            return False
    # What stores make of a HEAD's Range differs.
    return bool(read.host) and not (read.range is not None and read.method == "HEAD")


def _note(read: PlainRead, name: str, value: str) -> bool:
    if name == "range":
        read.range = value
    elif name == "host":
        read.host = value
    elif name == "if-match":
        read.if_match = value
    elif name == "x-amz-checksum-mode":
        read.checksums = True
        return value.upper() == "ENABLED"
    elif name == "x-amz-content-sha256":
        return _NO_BODY.fullmatch(value) is not None
    else:
        return value.lower() == "keep-alive"
    return True


def _name_of(spelled: bytes) -> str | None:
    """In lower case; None: no plain read has such a header."""
    name = spelled.decode("ascii").lower()
    if name not in _PLAIN:
        return None
    if len(_SPELLINGS) < _SPELLINGS_MAX:
        _SPELLINGS[spelled] = name
    return name
