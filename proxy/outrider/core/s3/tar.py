"""The entries of a tar, in the form that a stream is written in: heads and paddings.

A head is a USTAR header, with a PAX header before it for records of the caller, and for names and sizes that USTAR does
not hold. Source: POSIX.1-2018, pax, "ustar Interchange Format" and "pax Extended Header".
"""

from __future__ import annotations

from functools import lru_cache

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
"""Ends a tar."""

_NAME_BYTES_MAX = 100
_SIZE_MAX = 8**11 - 1
_FILE, _PAX = b"0", b"x"
# Mode, owner and group; the modification time; the rest. Nothing is disclosed beyond the request: the owner and the
# time are 0.
_OWNER = b"\0".join((b"0000644", b"0000000", b"0000000", b""))
_TIME = b"00000000000\0"
_REST = (bytes(100) + b"\0".join((b"ustar", b"00"))).ljust(BLOCK_BYTES - 157, b"\0")
# The checksum counts its own field as eight spaces.
_SUM = sum(_OWNER) + sum(_TIME) + sum(_REST) + 8 * ord(" ")
_SUM_OF = {kind: _SUM + sum(kind) for kind in (_FILE, _PAX)}
_PAX_NAME = b"PaxHeaders/0"


def entry_head(name: str, size: int, records: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The blocks before the content of an entry of `size` bytes. `records`: of its PAX header.

    Bytes of the name that are no UTF-8 come as surrogate escapes, and are written as they are.
    """
    raw = name.encode("utf-8", "surrogateescape")
    if name.isascii() and len(raw) <= _NAME_BYTES_MAX and size <= _SIZE_MAX and "\0" not in name:
        return (_usual_pax(records) if records else b"") + _ustar(raw, size, _FILE)
    pax = b"" if _is_utf8(name) else _record("hdrcharset", b"BINARY")
    pax += _record("path", raw)
    if size > _SIZE_MAX:
        pax += _record("size", b"%d" % size)
    pax += b"".join(_record(key, value.encode()) for key, value in records)
    # A reader without PAX gets the beginning of the name, and no content whose end it could not find.
    return _extended(pax) + _ustar(raw[:_NAME_BYTES_MAX].split(b"\0")[0], size if size <= _SIZE_MAX else 0, _FILE)


def padding(size: int) -> bytes:
    """The zeros behind a content of `size` bytes."""
    return bytes(-size % BLOCK_BYTES)


def entry_bytes(head: bytes, size: int) -> int:
    """The length of an entry with its head and its padding."""
    return len(head) + size + -size % BLOCK_BYTES


def _ustar(name: bytes, size: int, kind: bytes) -> bytes:
    length = b"%011o" % size
    total = _SUM_OF[kind] + sum(name) + sum(length)
    return b"%b%b%b\0%b%06o\0 %b%b" % (name.ljust(_NAME_BYTES_MAX, b"\0"), _OWNER, length, _TIME, total, kind, _REST)


# All entries of a batch have one of a few sets of records.
@lru_cache(maxsize=64)
def _usual_pax(records: tuple[tuple[str, str], ...]) -> bytes:
    return _extended(b"".join(_record(key, value.encode()) for key, value in records))


def _extended(pax: bytes) -> bytes:
    return _ustar(_PAX_NAME, len(pax), _PAX) + pax + padding(len(pax))


def _record(key: str, value: bytes) -> bytes:
    """`LENGTH key=value`, where LENGTH counts the whole record, its own digits too."""
    rest = b" %b=%b\n" % (key.encode(), value)
    length = len(rest) + 1
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d%b" % (length, rest)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
