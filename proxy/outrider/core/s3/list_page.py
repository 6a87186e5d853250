"""Parses a page of a LIST. Source: S3 API reference, ListObjectsV2 and ListObjects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import NamedTuple
from urllib.parse import unquote_to_bytes
from xml.parsers import expat

from outrider.core.model import VersionIdentity
from outrider.core.s3.xml import DEPTH_MAX, parses

PAGE_BYTES_MAX = 16 * 1024 * 1024
"""Ample room for 1,000 keys of 1,024 bytes with each byte escaped, and for the other elements."""
_SIZE_DIGITS_MAX = 18


class ListedObject(NamedTuple):
    """An object as a LIST shows it. `size` in bytes, -1 where the LIST has none; `etag` and `modified` (ISO 8601) are
    empty where the LIST has none."""

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

    @property
    def identity(self) -> VersionIdentity:
        """The identity of the version. The date has the form that a HEAD gives it; the ETag is as the LIST shows it."""
        return VersionIdentity(self.etag, self.size, _http_date(self.modified) or "")


def _http_date(iso: str) -> str | None:
    try:
        return format_datetime(datetime.fromisoformat(iso).astimezone(UTC), usegmt=True)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class ListPage:
    """`objects` in the order of the LIST. `is_truncated`: this is not the last page.

    `next_token` continues a LIST of version 2, and `next_marker` one of version 1; None: the page has none.
    `groups`: the common prefixes, which stand for keys that the page does not show. `is_encoded`: its keys came
    encoded.
    """

    objects: tuple[ListedObject, ...]
    is_truncated: bool = False
    next_token: str | None = None
    next_marker: str | None = None
    groups: tuple[str, ...] = ()
    is_encoded: bool = False


def parse_page(body: bytes) -> ListPage | None:
    """A page of a LIST, of version 1 or 2; None: `body` is no such page.

    Keys are decoded only where the page says that they are encoded: not every store heeds `encoding-type`.
    """
    reader = _PageParser()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text.append
    if not parses(parser, body) or not reader.is_list:
        return None
    try:
        return reader.page()
    except ValueError:
        return None


class _PageParser:
    def __init__(self) -> None:
        self.is_list = False
        self.text: list[str] = []
        self._entries: list[dict[str, str]] = []
        # The children of the root that have no children themselves.
        self._values: dict[str, str] = {}
        self._groups: list[str] = []
        self._path: list[str] = []
        self._entry: dict[str, str] = {}

    def start(self, name: str, _: object) -> None:
        # `end` joins the path for each element: without a limit the time would grow with the square of the depth.
        if len(self._path) >= DEPTH_MAX:
            raise ValueError("nested too deep")
        if self._path[-2:] == ["Contents", "Key"]:
            raise ValueError("a key must hold only text")
        self._path.append(name.rpartition(":")[2])
        self.text.clear()

    def end(self, _: str) -> None:
        path, value = "/".join(self._path), "".join(self.text)
        name = self._path.pop()
        match path:
            case "ListBucketResult":
                self.is_list = True
            case "ListBucketResult/Contents":
                self._entries.append(self._entry)
                self._entry = {}
            case "ListBucketResult/CommonPrefixes/Prefix":
                if value:
                    self._groups.append(value)
            case _ if path == f"ListBucketResult/Contents/{name}":
                self._entry[name] = value
            case _ if len(self._path) == 1:
                self._values[name] = value

    def page(self) -> ListPage:
        """Raises ValueError: an entry has no key."""
        # EncodingType may come after the keys.
        is_encoded = self._values.get("EncodingType", "").strip() == "url"
        token, marker = self._values.get("NextContinuationToken"), self._values.get("NextMarker")
        stated = self._values.get("IsTruncated")
        is_truncated = stated.strip().lower() == "true" if stated is not None else bool(token or marker)
        return ListPage(
            tuple(_listed(entry, is_encoded=is_encoded) for entry in self._entries),
            is_truncated,
            token or None,
            _decoded(marker) if marker and is_encoded else marker or None,
            tuple(_decoded(group) if is_encoded else group for group in self._groups),
            is_encoded,
        )


def _listed(entry: dict[str, str], *, is_encoded: bool) -> ListedObject:
    key, size = entry.get("Key", ""), entry.get("Size", "").strip()
    if not key:
        raise ValueError("an entry must have a key")
    if is_encoded:
        key = _decoded(key)
    # No object has more bytes than 18 digits can state; CPython refuses to convert numbers of thousands of digits.
    is_number = size.isascii() and size.isdecimal() and len(size) <= _SIZE_DIGITS_MAX
    return ListedObject(key, int(size) if is_number else -1, entry.get("ETag", ""), entry.get("LastModified", ""))


def _decoded(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "surrogateescape")
