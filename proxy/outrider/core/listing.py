"""What a LIST of a bucket says. Source: S3 API reference, ListObjectsV2."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes
from xml.parsers import expat

from outrider.core.s3wire import DEPTH_MAX

PAGE_BYTES_MAX = 16 * 1024 * 1024
"""1,000 keys of 1,024 bytes, each byte escaped, and what stands around them, fit well."""


@dataclass(frozen=True, slots=True)
class Page:
    """`objects` are keys and sizes in bytes, in the order of the LIST. `next_token` None: this is the last page."""

    objects: tuple[tuple[str, int], ...]
    next_token: str | None


def parse_page(body: bytes) -> Page | None:
    """A page of a LIST with `encoding-type=url`; None: it is none.

    No DTD is accepted, so no entity can expand.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text.append
    parser.StartDoctypeDeclHandler = _refuse
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError):
        return None
    if not reader.is_list:
        return None
    # Without a token a truncated list could only be asked for again from its start.
    return Page(tuple(reader.objects), reader.token if reader.truncated else None)


class _Reader:
    def __init__(self) -> None:
        self.objects: list[tuple[str, int]] = []
        self.token: str | None = None
        self.truncated = False
        self.is_list = False
        self.text: list[str] = []
        self._path: list[str] = []
        self._key, self._size = "", ""

    def start(self, name: str, _: object) -> None:
        # The path is joined at each end: without a limit that would take the square of the depth.
        if len(self._path) >= DEPTH_MAX:
            raise ValueError("nested too deep")
        self._path.append(name.rpartition(":")[2])
        self.text.clear()

    def end(self, _: str) -> None:
        path, value = "/".join(self._path), "".join(self.text)
        self._path.pop()
        match path:
            case "ListBucketResult":
                self.is_list = True
            case "ListBucketResult/Contents/Key":
                self._key = unquote_to_bytes(value.replace("+", " ")).decode("utf-8", "surrogateescape")
            case "ListBucketResult/Contents/Size":
                self._size = value
            case "ListBucketResult/Contents":
                if not (self._size.isascii() and self._size.isdecimal()):
                    raise ValueError("a size is a number")
                self.objects.append((self._key, int(self._size)))
            case "ListBucketResult/NextContinuationToken":
                self.token = value
            case "ListBucketResult/IsTruncated":
                self.truncated = value == "true"


def _refuse(*_: object) -> None:
    raise ValueError("a DTD has no place here")
