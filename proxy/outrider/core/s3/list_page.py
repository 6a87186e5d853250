"""Parses a page of a LIST. Source: S3 API reference, ListObjectsV2."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import NamedTuple
from urllib.parse import unquote_to_bytes
from xml.parsers import expat

from outrider.core.s3.xml import DEPTH_MAX

PAGE_BYTES_MAX = 16 * 1024 * 1024
"""Ample room for 1,000 keys of 1,024 bytes with each byte escaped, and for the other elements."""


class Listed(NamedTuple):
    """An object as a LIST shows it. `size` in bytes; `etag` and `modified` (ISO 8601) are empty where the LIST has
    none."""

    key: str
    size: int
    etag: str = ""
    modified: str = ""

    def is_version(self, etag: str, size: int, last_modified: str | None) -> bool:
        """Whether this entry and a HEAD with these values show the same version: the same bytes, and not written again
        in between, as far as a date with a resolution of one second shows (RFC 9110 section 5.6.7)."""
        return (
            size == self.size
            and etag.strip('"') == self.etag.strip('"') != ""
            and last_modified is not None
            and last_modified == _http_date(self.modified)
        )


def _http_date(iso: str) -> str | None:
    try:
        return format_datetime(datetime.fromisoformat(iso).astimezone(UTC), usegmt=True)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class ListPage:
    """`objects` in the order of the LIST. `next_token` None: this is the last page."""

    objects: tuple[Listed, ...]
    next_token: str | None


def parse_page(body: bytes) -> ListPage | None:
    """A page of a LIST that was asked with `encoding-type=url`; None: `body` is no such page.

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
    # A truncated list without a token counts as the last page: it could only be asked for again from its start.
    return ListPage(tuple(reader.objects), reader.token if reader.truncated else None)


class _Reader:
    def __init__(self) -> None:
        self.objects: list[Listed] = []
        self.token: str | None = None
        self.truncated = False
        self.is_list = False
        self.text: list[str] = []
        self._path: list[str] = []
        self._entry: dict[str, str] = {}

    def start(self, name: str, _: object) -> None:
        # `end` joins the path for each element: without a limit the time would grow with the square of the depth.
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
            case "ListBucketResult/Contents":
                self.objects.append(_listed(self._entry))
                self._entry = {}
            case "ListBucketResult/NextContinuationToken":
                self.token = value
            case "ListBucketResult/IsTruncated":
                self.truncated = value == "true"
            case _ if path.startswith("ListBucketResult/Contents/"):
                self._entry[path.rpartition("/")[2]] = value


def _listed(entry: dict[str, str]) -> Listed:
    key, size = entry.get("Key", ""), entry.get("Size", "")
    if not (size.isascii() and size.isdecimal()):
        raise ValueError("a size must be a number")
    key = unquote_to_bytes(key.replace("+", " ")).decode("utf-8", "surrogateescape")
    return Listed(key, int(size), entry.get("ETag", ""), entry.get("LastModified", ""))


def _refuse(*_: object) -> None:
    raise ValueError("a DTD is not allowed")
