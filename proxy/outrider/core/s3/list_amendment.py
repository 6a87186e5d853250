"""A page of a LIST after writes: the page that S3 would send now, or that only S3 knows.

A page shows the names in a range: from its first name, or where its request begins, to its last name, or the end of the
LIST. A name outside of it is another page's. Source: S3 API reference, ListObjectsV2 and ListObjects; keys are in the
order of their bytes in UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC
from html import unescape
from typing import NamedTuple
from xml.parsers import expat

from outrider.core.model import Headers, is_strong_etag
from outrider.core.s3.conditions import parse_http_date
from outrider.core.s3.operation import Query
from outrider.core.s3.xml import DEPTH_MAX, parses

# These are the same in XML, in `encoding-type=url`, and as they are.
_PLAIN = re.compile(r"[A-Za-z0-9._/-]+")
_MAX_KEYS = 1000
_KEY_COUNT = re.compile(rb"<KeyCount>[0-9]+</KeyCount>")
_CHECKSUMS = {"ChecksumAlgorithm", "ChecksumType"}
_REQUIRED = {"Key", "LastModified", "ETag", "Size"}
_FIELDS = {*_REQUIRED, "StorageClass", *_CHECKSUMS}
# So many dates show whether the store lists whole seconds alone, which is all that a HEAD has.
_DATES_MIN = 3
_ORDINARY = "STANDARD"


class ListedFacts(NamedTuple):
    """An object as a LIST would show it, by the reply to a HEAD. `seconds`: its Last-Modified, as in a LIST, without
    `Z`. `checksum`: algorithm and type, as a LIST shows them; empty: the reply states none."""

    size: int
    etag: str
    seconds: str
    storage_class: str = _ORDINARY
    checksum: tuple[str, str] | tuple[()] = ()

    @classmethod
    def of(cls, headers: Headers, size: int | None) -> ListedFacts | None:
        """None: the reply does not state enough."""
        its = dict(headers)
        modified, etag = parse_http_date(its.get("last-modified")), its.get("etag", "")
        if modified is None or size is None or not is_strong_etag(etag) or _PLAIN.fullmatch(etag.strip('"')) is None:
            return None
        kind = its.get("x-amz-checksum-type", "")
        names = [name.removeprefix("x-amz-checksum-").upper() for name in its if name.startswith("x-amz-checksum-")]
        # Stores that state no type list no checksums.
        checksums = [(name, kind) for name in names if kind and name != "TYPE"]
        if len(checksums) > 1:
            return None
        seconds = modified.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        storage_class = its.get("x-amz-storage-class", _ORDINARY)
        return cls(size, etag, seconds, storage_class, checksums[0] if checksums else ())


class Bounds(NamedTuple):
    """The first and the last name of a page, and where the next one begins: its token or marker; empty: no name
    follows."""

    first: str
    last: str
    way_on: str


_WAY_ON = re.compile(rb"<(?:NextContinuationToken|NextMarker)>([^<]+)<")


def bounds(body: bytes) -> Bounds | None:
    """None: the page has no name that is as it stands there."""
    firsts, lasts = list[str](), list[str]()
    for opening in (b"<Key>", b"<CommonPrefixes><Prefix>"):
        if (first := body.find(opening)) >= 0:
            for at, found in ((first, firsts), (body.rfind(opening), lasts)):
                start = at + len(opening)
                found.append(body[start : body.find(b"<", start)].decode("ascii", "replace"))
    if not firsts or any(_PLAIN.fullmatch(name) is None for name in firsts + lasts):
        return None
    way_on, last = "", max(lasts)
    if b"<IsTruncated>false<" not in body:
        mark = _WAY_ON.search(body)
        way_on = last if mark is None else unescape(mark[1].decode("utf-8", "replace"))
    return Bounds(min(firsts), last, way_on)


def is_amendable(body: bytes) -> bool:
    """Whether `amended` understands the page."""
    return _KeptPage.parsed(body) is not None


def amended(
    body: bytes, query: Query, changes: Mapping[str, ListedFacts | None], is_covered: Callable[[str], bool]
) -> bytes | None:
    """The page that answers `query` now that these keys have these facts (None: there is no such object). None: only
    S3 knows it. `is_covered`: whether a name that is not in the range of this page is in that of the page before or
    after it, or beyond that."""
    page, request = _KeptPage.parsed(body), dict(query)
    if page is None or len(request) < len(query):
        return None
    try:
        for key, facts in changes.items():
            if key.startswith(request.get("prefix", "")):
                page.change(request, key, facts, is_covered)
    except _OnlyS3:
        return None
    return page.body()


class _OnlyS3(Exception):
    """Nothing but S3 knows the page."""


class _KeptPage:
    """The XML of each name of a page: of objects, and of common prefixes (`groups`)."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.groups: dict[bytes, bytes] = {}
        self.fields: list[dict[str, str]] = []
        """Those of each object, as the page was received."""
        self.values: dict[str, str] = {}
        self._head = self._tail = b""

    @classmethod
    def parsed(cls, body: bytes) -> _KeptPage | None:
        """None: it is no page, or an odd one."""
        reader = _PageElements(body)
        if not parses(reader.parser, body) or reader.root != "ListBucketResult":
            return None
        page = cls()
        page.values = reader.values
        last = None
        for name, fields, start, stop in reader.entries:
            key = fields.get("Key") if name == "Contents" else fields.get("Prefix")
            if not key or _PLAIN.fullmatch(key) is None or (last is not None and body[last:start].strip()):
                return None
            if last is None:
                page._head = body[:start]
            last = stop
            if name == "Contents":
                page.fields.append(fields)
            (page.objects if name == "Contents" else page.groups)[key.encode()] = body[start:stop]
        page._tail = body[last or 0 :]
        return page if len(page._names) == len(reader.entries) else None

    @property
    def _names(self) -> set[bytes]:
        return self.objects.keys() | self.groups.keys()

    @property
    def _is_truncated(self) -> bool:
        return self.values.get("IsTruncated", "").strip() != "false"

    def change(
        self, request: Mapping[str, str], key: str, facts: ListedFacts | None, is_covered: Callable[[str], bool]
    ) -> None:
        """Raises _OnlyS3."""
        if key <= self._after(request):
            return
        prefix, delimiter = request.get("prefix", ""), request.get("delimiter", "")
        shown, is_grouped, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        name = f"{prefix}{shown}{delimiter}" if is_grouped else key
        raw = name.encode("utf-8", "surrogateescape")
        is_there = raw in (self.groups if is_grouped else self.objects)
        if is_grouped and is_there:
            if facts is None:
                # Other keys may be left under the common prefix.
                raise _OnlyS3
        elif not is_there and raw in self._names:
            # An object by the name of a common prefix: an odd page.
            raise _OnlyS3
        elif is_there and facts is None:
            if self._is_truncated and len(self._names) == 1:
                # Where a page has no token, the next one begins behind its last name.
                raise _OnlyS3
            del self.objects[raw]
        elif facts is not None and (is_there or self._has_place(request, raw, name, is_covered)):
            if is_grouped:
                self.groups[raw] = self._group(name)
            else:
                self.objects[raw] = self._entry(key, facts)

    def _after(self, request: Mapping[str, str]) -> str:
        """The name behind which the LIST begins, apart from tokens."""
        is_second = request.get("list-type") == "2"
        if is_second and "marker" in request:
            raise _OnlyS3
        after = request.get("start-after" if is_second else "marker", "")
        # Without ASCII the order of texts is not that of their bytes.
        if not after.isascii() or (request.get("delimiter") and after):
            raise _OnlyS3
        return after

    def _has_place(self, request: Mapping[str, str], raw: bytes, name: str, is_covered: Callable[[str], bool]) -> bool:
        """Whether a name that is not here belongs in this page; False: in another one. `raw`: its bytes."""
        names = self._names
        is_before = all(map(raw.__lt__, names)) and bool(request.get("continuation-token"))
        is_behind = all(map(raw.__gt__, names)) and self._is_truncated
        if is_before or is_behind:
            if is_covered(name):
                return False
            raise _OnlyS3
        if not self._head:
            # It was received without a name: nothing shows where they stand.
            raise _OnlyS3
        limit = request.get("max-keys") or self.values.get("MaxKeys") or str(_MAX_KEYS)
        if not limit.isdecimal() or len(names) >= min(int(limit), _MAX_KEYS):
            raise _OnlyS3
        return True

    def _group(self, name: str) -> bytes:
        if _PLAIN.fullmatch(name) is None:
            raise _OnlyS3
        return f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>".encode()

    def _entry(self, key: str, facts: ListedFacts) -> bytes:
        """In the form of the others. Raises _OnlyS3: they show more than is known of it."""
        shown = {name for fields in self.fields for name in fields}
        endings = {fields.get("LastModified", "")[19:] for fields in self.fields}
        classes = {fields.get("StorageClass", "") for fields in self.fields}
        has_checksums = bool(shown & _CHECKSUMS)
        is_known = (
            _PLAIN.fullmatch(key) and len(self.fields) >= _DATES_MIN and len(endings) == 1 and endings <= {".000Z", "Z"}
            and all(_REQUIRED <= fields.keys() <= _FIELDS for fields in self.fields)
            and classes in ({facts.storage_class}, {""}) and (has_checksums or not facts.checksum)
        )  # fmt: skip
        if not is_known:
            raise _OnlyS3
        values = {"Key": key, "LastModified": facts.seconds + endings.pop()}
        values["ETag"] = facts.etag.replace('"', "&quot;")
        values |= dict(zip(("ChecksumAlgorithm", "ChecksumType"), facts.checksum, strict=False))
        values["Size"] = str(facts.size)
        if "StorageClass" in shown:
            values["StorageClass"] = facts.storage_class
        fields = "".join(f"<{name}>{text}</{name}>" for name, text in values.items())
        return f"<Contents>{fields}</Contents>".encode()

    def body(self) -> bytes:
        count = b"<KeyCount>%d</KeyCount>" % len(self._names)
        entries = [each[name] for each in (self.objects, self.groups) for name in sorted(each)]
        return b"".join((_KEY_COUNT.sub(count, self._head), *entries, _KEY_COUNT.sub(count, self._tail)))


class _PageElements:
    """The elements of a page, and where its entries stand."""

    def __init__(self, body: bytes) -> None:
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.root = ""
        self.values: dict[str, str] = {}
        self.entries: list[tuple[str, dict[str, str], int, int]] = []
        self._body = body
        self._path: list[str] = []
        self._texts: list[str] = []
        self._fields: dict[str, str] = {}
        self._began = 0

    def _start(self, name: str, _: object) -> None:
        if len(self._path) >= DEPTH_MAX or ":" in name:
            raise ValueError("an odd page")
        self._path.append(name)
        self._texts.clear()
        if len(self._path) == 2:
            self._fields, self._began = {}, self.parser.CurrentByteIndex

    def _text(self, text: str) -> None:
        self._texts.append(text)

    def _end(self, name: str) -> None:
        depth, text = len(self._path), "".join(self._texts)
        self._path.pop()
        self._texts.clear()
        if depth == 1:
            self.root = name
        elif depth == 2 and name in ("Contents", "CommonPrefixes"):
            stop = self._body.index(b">", self.parser.CurrentByteIndex) + 1
            self.entries.append((name, self._fields, self._began, stop))
        elif depth == 2:
            self.values[name] = text
        elif depth == 3:
            self._fields[name] = text
