"""The one form of request that training jobs send by the million, recognised without a parser: a lone GET or HEAD of an
object, head complete, no body, none but harmless headers.

Whatever is not recognised goes to the HTTP parser, which decides; so this accepts less than HTTP allows, never more.
Source: RFC 9112 sections 3 and 5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from outrider.core.model import Headers

HEAD_BYTES_MAX = 8192

# Visible ASCII alone in the target, one space where the grammar has one, CR LF at each end of line, no folded lines:
# there is no second way to read this.
_SHAPE = re.compile(rb"(?:GET|HEAD) /[!-~]+ HTTP/1\.1\r\n(?:[A-Za-z0-9-]+: [!-~](?:[ -~]*[!-~])?\r\n)+\r\n")


class _Role(Enum):
    """What a header is to a plain read."""

    HOST = 1
    RANGE = 2
    IF_MATCH = 3
    CHECKSUM_MODE = 4
    CONNECTION = 5
    SIGNED = 6  # read by signatures alone
    OTHER = 7  # says more than a plain read does


_ROLES: dict[bytes, _Role] = {
    b"host": _Role.HOST,
    b"range": _Role.RANGE,
    b"if-match": _Role.IF_MATCH,
    b"x-amz-checksum-mode": _Role.CHECKSUM_MODE,
    b"connection": _Role.CONNECTION,
    **dict.fromkeys(
        (b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"x-amz-security-token", b"user-agent", b"accept",
         b"accept-encoding", b"amz-sdk-invocation-id", b"amz-sdk-request", b"x-amz-user-agent", b"x-amz-api-version"),
        _Role.SIGNED,
    ),
}  # fmt: skip
# A name comes in two or three spellings; each is put into lower case once.
_SPELLINGS: dict[bytes, _Role] = dict(_ROLES)
_SPELLINGS_MAX = 256


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
        pairs = (line.split(b": ", 1) for line in self.lines)
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
    for line in read.lines:
        name, _, value = line.partition(b": ")
        role = _SPELLINGS.get(name) or _role_of(name)
        if role is not _Role.SIGNED and not _note(read, role, value.decode("ascii")):
            return False
    # What stores make of a Range or a condition on a folder's own key, and of a HEAD's Range, differs.
    narrowed = read.range is not None or read.if_match is not None
    return bool(read.host) and not (narrowed and (read.path.endswith(b"/") or (read.range and read.method == "HEAD")))


def _note(read: PlainRead, role: _Role, value: str) -> bool:
    if role is _Role.RANGE:
        twice, read.range = read.range, value
    elif role is _Role.HOST:
        twice, read.host = read.host, value
    elif role is _Role.IF_MATCH:
        twice, read.if_match = read.if_match, value
    elif role is _Role.CHECKSUM_MODE:
        again, read.checksums = read.checksums, True
        return not again and value.upper() == "ENABLED"
    else:
        return role is _Role.CONNECTION and value.lower() == "keep-alive"
    return not twice


def _role_of(name: bytes) -> _Role:
    role = _ROLES.get(name.lower(), _Role.OTHER)
    if len(_SPELLINGS) < _SPELLINGS_MAX:
        _SPELLINGS[name] = role
    return role
