"""Reads the head of a reply that an HTTP parser refuses, as widely used clients read it.

Names that are no tokens, blanks before a colon, folded lines, equal Content-Lengths and double framing are mended. The
parser then gets a head with the framing alone, and the caller all other headers.
Source: RFC 9110 sections 5.5 and 8.6, RFC 9112 sections 2.2, 5.1, 5.2 and 6.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_BYTES_MAX = 64 * 1024
"""A longer head is refused. AWS S3 sends 8 KiB at most."""

_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9]\b")
_END = re.compile(rb"\n\r?\n")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Clients that follow no grammar take any visible character but the colon. A blank, or a byte beyond ASCII, makes some
# of them take the next headers for the body.
_VISIBLE = re.compile(rb"[!-9;-~]+")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_BROKEN_VALUE = re.compile(rb"[\x00\r]")
_FRAMING = (b"connection", b"transfer-encoding")


class UnreadableHead(ValueError):
    """The head says two things, or nothing, about where it or its reply ends. The text names the header."""


@dataclass(frozen=True, slots=True)
class MendedHead:
    """`head`: the status line and the headers that frame the body, in a form that each parser takes.

    `headers`: all that can be passed on, in their order, Content-Length last; no value has a CR, LF or NUL. `odd`: the
    name of the first header that HTTP does not allow; None: there is none. `framed_twice`: it had both Content-Length
    and Transfer-Encoding.
    """

    head: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    odd: bytes | None
    framed_twice: bool


def split(data: bytes) -> tuple[bytes, bytes] | None:
    """The first head in `data` that is no interim one (1xx), with its empty line, and the rest; None: not all came."""
    while True:
        data = data.lstrip(b"\r\n")
        end = _END.search(data)
        if end is None:
            return None
        if not _INTERIM.match(data):
            return data[: end.end()], data[end.end() :]
        data = data[end.end() :]


def mend(head: bytes) -> MendedHead:
    """`head` with its empty line. Raises UnreadableHead."""
    status, *lines = re.split(rb"\r?\n", head.rstrip(b"\r\n"))
    if not all(line.strip(b" \t") for line in lines):
        raise UnreadableHead("a line of its head is blank")  # the end of the head for some readers
    headers: list[tuple[bytes, bytes]] = []
    lengths: list[bytes] = []
    framing: list[bytes] = []
    odd: bytes | None = None
    for line in _unfolded(lines):
        raw_name, colon, raw_value = line.partition(b":")
        name, value = raw_name.rstrip(b" \t"), _BROKEN_VALUE.sub(b" ", raw_value)
        if not colon or not _TOKEN.fullmatch(raw_name) or value != raw_value:
            odd = odd or name or b":"
            if not colon or not _VISIBLE.fullmatch(name):
                continue
        value = value.strip(b" \t")
        lower = name.lower()
        if lower == b"content-length":
            lengths += [part.strip(b" \t") for part in value.split(b",")]
            continue
        headers.append((name, value))
        if lower in _FRAMING:
            framing.append(b"%s: %s\r\n" % (lower, value))
    length = _length_of(lengths)
    framed_twice = length is not None and any(line.startswith(b"transfer-encoding") for line in framing)
    if framed_twice:
        # Transfer-Encoding counts. The connection ends with the reply, in case that the origin thinks otherwise.
        framing.append(b"connection: close\r\n")
    elif length is not None:
        framing.append(b"content-length: %s\r\n" % length)
        headers.append((b"content-length", length))
    if len(lengths) > 1:
        odd = odd or b"content-length"
    return MendedHead(b"%s\r\n%s\r\n" % (status, b"".join(framing)), tuple(headers), odd, framed_twice)


def _length_of(stated: list[bytes]) -> bytes | None:
    if len(set(stated)) > 1:
        raise UnreadableHead("its Content-Length headers differ")
    if stated and not _DIGITS.fullmatch(stated[0]):
        raise UnreadableHead("its Content-Length header is no number")
    return stated[0] if stated else None


def _unfolded(lines: list[bytes]) -> list[bytes]:
    """The headers, one a line: a line that begins with a blank goes on with the one before it."""
    whole: list[bytes] = []
    for line in lines:
        if line[:1] in (b" ", b"\t") and whole:
            whole[-1] += b" " + line.strip(b" \t")
        else:
            whole.append(line.lstrip(b" \t"))
    return whole
