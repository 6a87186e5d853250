"""Reads the tar of a batch as it arrives: the contents in order, and the PAX records of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_BLOCK = 512
_KIND, _SIZE = 156, slice(124, 135)
_PAX, _FILE = b"x"[0], b"0"[0]


class TarStream:
    """Takes the bytes as they come, and gives the entries that are whole. Entries of a kind that the proxy does not
    write raise ValueError."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._records: Mapping[str, str] = {}
        # Nearly all entries have the same records.
        self._parsed: tuple[bytes, Mapping[str, str]] = b"", {}

    def feed(self, data: bytes) -> Iterator[tuple[bytes, Mapping[str, str]]]:
        """Content and records of each entry that `data` makes whole."""
        self._bytes += data
        start, have = 0, len(self._bytes)
        while start + _BLOCK <= have:
            kind = self._bytes[start + _KIND]
            if kind == 0:  # the end of the tar
                start = have
                break
            size = int(self._records.get("size") or int(self._head(start)[_SIZE], 8))
            stop = start + _BLOCK + size
            if stop + -size % _BLOCK > have:
                break
            content = bytes(memoryview(self._bytes)[start + _BLOCK : stop])
            start = stop + -size % _BLOCK
            if kind == _PAX:
                if content != self._parsed[0]:
                    self._parsed = content, _records_of(content)
                self._records = self._parsed[1]
            elif kind == _FILE:
                yield content, self._records
                self._records = {}
            else:
                raise ValueError(f"an entry of kind {kind} in the tar of a batch")
        del self._bytes[:start]

    def _head(self, start: int) -> bytes:
        return bytes(self._bytes[start : start + _BLOCK])


def _records_of(content: bytes) -> Mapping[str, str]:
    """Source: POSIX.1-2018, pax, "pax Extended Header"."""
    records = {}
    start = 0
    while start < len(content):
        length = int(content[start : content.index(b" ", start)])
        record = content[start : start + length].partition(b" ")[2]
        name, _, value = record.removesuffix(b"\n").partition(b"=")
        records[name.decode()] = value.decode("utf-8", "surrogateescape")
        start += length
    return records
