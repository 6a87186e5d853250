"""The format of the index snapshot: written at a clean stop and read at the next start, which then needs no scan.

Lines of JSON: a head with the time of the stop and the names that were in doubt; then pages of blocks in the policy's
order, first victim first. A page has its blocks as numbers (of the version in the page, of the block, and the pages of
its file) and the versions of these blocks, packed (see `packed_version`), each with its name, the number of its layout
and what was believed of it (see `ports.Belief`); and what is known of the content of some (see `Contents`). A line for
each version and block took three times as long to read. A snapshot that is not complete is ignored: a scan finds all
that it holds, except for the beliefs. Times are in seconds since 1970.
"""

from __future__ import annotations

import json
import struct
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import floor
from typing import NamedTuple

from outrider.adapters.sealed_file import BadFile, LinesFormat, json_line
from outrider.core.block_layout import BlockLayout, shared_layout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta, named_block
from outrider.core.model import Headers, ObjectRef, ObjectVersion, is_strong_etag, shared_headers, shared_text
from outrider.core.packed_version import PACKING, Frame, Packing, frame_number
from outrider.ports import Belief, Name

_FORMAT = LinesFormat("outrider index", 4)
# With a line for each version and each block; the last one does not tell when a version was confirmed.
_OLDER_FORMATS = LinesFormat("outrider index", 3), LinesFormat("outrider index", 2)
_PAGE_BLOCKS = 1024


class Saved(NamedTuple):
    """The entry of a version in a snapshot. `confirmed_at` None: the origin has to be asked. `content`: the result of
    `Contents.saved`."""

    version: ObjectVersion
    confirmed_at: float | None
    vouched: bool
    content: object


class Snapshot:
    """The content of a snapshot.

    Iterating yields the meta of each block, first victim first, the bytes of its file on disk, and what is known of its
    version. The metas are made one by one: all at once they would take many times the memory of what is kept here.
    """

    def __init__(self) -> None:
        self.saved_at = 0.0
        self.doubts: list[tuple[Name, float]] = []
        """Names, and buckets, that a write may still change, and until when."""
        self.versions: list[tuple[BlockLayout, ObjectVersion]] = []
        self.saved: list[Saved] = []
        """By version."""
        self._numbers, self._indexes, self._pages = array("I"), array("I"), array("I")
        self.pages: Iterator[bytes] = iter(())
        """Pages that are read as the snapshot is iterated."""

    def add(self, number: int, index: int, pages: int | None) -> None:
        """`pages` None: an older release did not tell. Raises ValueError, TypeError, LookupError, OverflowError: there
        can be no such block."""
        layout, version = self.versions[number]
        # `BlockMeta` refuses the same, and hashes the version: a start may read millions.
        if index < 0 or index * layout.block_bytes >= version.size:
            raise ValueError(f"no block {index}")
        if pages is None:
            pages = block_file.paged_disk_bytes(BlockMeta(layout, version, index)) // PAGE_BYTES
        self._numbers.append(number)
        self._indexes.append(index)
        self._pages.append(pages)

    def __iter__(self) -> Iterator[tuple[BlockMeta, int, Saved]]:
        """Raises BadFile: a page makes no sense."""
        for number, index, pages in zip(self._numbers, self._indexes, self._pages, strict=True):
            yield BlockMeta(*self.versions[number], index), pages * PAGE_BYTES, self.saved[number]
        reader = _Reader()
        for line in self.pages:
            with _bad_if_odd():
                yield from reader.page(line)


class Facts(NamedTuple):
    """Where a snapshot's facts come from. `belief`: see `Versions`. `content`: see `Contents.saved`. `doubts`: see
    `Snapshot`. `disk_bytes`: of the block's file."""

    now: Callable[[], float]
    belief: Callable[[str, ObjectVersion], Belief]
    content: Callable[[BlockLayout, ObjectVersion], object] = lambda layout, version: None
    doubts: Iterable[tuple[Name, float]] = ()
    disk_bytes: Callable[[BlockMeta], int] = lambda meta: block_file.Header(meta).disk_bytes


_NO_FACTS = Facts(lambda: 0.0, lambda origin, version: Belief(version))


def encode(blocks: Iterable[BlockMeta], facts: Facts = _NO_FACTS) -> Iterator[bytes]:
    """The lines of a snapshot of `blocks`, in pieces fit for writing."""
    return _FORMAT.encode(_lines(blocks, facts))


def _lines(blocks: Iterable[BlockMeta], facts: Facts) -> Iterator[bytes]:
    doubts = [[[name] if isinstance(name, str) else name, until] for name, until in facts.doubts]
    yield json_line({"saved_at": facts.now(), "doubts": doubts})
    # The loop may pack versions while this runs in a thread.
    writer, waiting = _Writer(facts, Packing()), iter(blocks)
    while batch := list(islice(waiting, _PAGE_BLOCKS)):
        yield json_line(writer.page(batch))


class _Writer:
    def __init__(self, facts: Facts, packing: Packing) -> None:
        self._facts = facts
        self._packing = packing
        # Frame 0 is the same everywhere.
        self._frames = 1
        # Versions of several blocks whose content was written: it may be long, and their blocks may be in many pages.
        self._written: set[bytes] = set()

    def page(self, blocks: Iterable[BlockMeta]) -> dict[str, object]:
        numbers: dict[tuple[BlockLayout, ObjectVersion], int] = {}
        layouts: list[BlockLayout] = []
        packed, ids = bytearray(), bytearray()
        versions: list[int | float | None] = []
        more: dict[int, list[object]] = {}
        found: list[int] = []
        for meta in blocks:
            pages = self._facts.disk_bytes(meta) // PAGE_BYTES
            if not pages:
                continue  # dropped since the save began
            # The headers are part of the identity: they determine the length of a block's file, and two fills of one
            # version may have received different headers.
            identity = meta.layout, meta.version
            number = numbers.get(identity)
            if number is None:
                number = numbers[identity] = len(numbers)
                if meta.layout not in layouts:
                    layouts.append(meta.layout)
                belief = self._facts.belief(meta.layout.origin, meta.version)
                # Rounded down, so that no version is believed for longer.
                at = None if belief.age_s is None else floor(self._facts.now() - belief.age_s)
                raw = self._packing.pack(meta.version)
                packed += raw
                ids += meta.key.version_id
                versions += (len(raw), layouts.index(meta.layout), at, int(belief.vouched))
                if (rest := self._more(meta, belief)) != [None, None]:
                    more[number] = rest
            found += (number, meta.index, pages)
        frames = self._packing.frames[self._frames :]
        self._frames += len(frames)
        return {
            "layouts": [[layout.origin, layout.block_bytes] for layout in layouts], "frames": frames,
            "packed": b64encode(packed).decode(), "ids": b64encode(ids).decode(),
            "versions": versions, "more": more, "blocks": found,
        }  # fmt: skip

    def _more(self, meta: BlockMeta, belief: Belief) -> list[object]:
        """The facts that few versions have: findings about the content, and headers that are newer than the file's."""
        version, newer = meta.version, None
        if belief.version != version:
            headers = belief.version.headers
            newer = [None if headers == version.headers else headers, belief.version.whole_headers]
        content = None if meta.key.version_id in self._written else self._facts.content(meta.layout, version)
        if content is not None and version.size > meta.layout.block_bytes:
            self._written.add(meta.key.version_id)
        return [content, newer]


def decode(raw: bytes) -> Snapshot:
    """Raises BadFile."""
    snapshot = Snapshot()
    with _bad_if_odd():
        for form in (_FORMAT, *_OLDER_FORMATS):
            try:
                lines = form.decode(raw)
                break
            except BadFile:
                if form is _OLDER_FORMATS[-1]:
                    raise
        if form is not _OLDER_FORMATS[-1]:
            _decode_head(snapshot, json.loads(next(lines)))
        if form is _FORMAT:
            snapshot.pages = lines
        else:
            _decode_lines(snapshot, lines)
    return snapshot


@contextmanager
def _bad_if_odd() -> Iterator[None]:
    try:
        yield
    except BadFile:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, StopIteration, struct.error) as error:
        raise BadFile(repr(error)) from error


class _Reader:
    """Reads the pages in their order."""

    def __init__(self) -> None:
        self._packing = Packing()
        # The contents of versions of several blocks.
        self._contents: dict[bytes, object] = {}

    def page(self, line: bytes) -> Iterator[tuple[BlockMeta, int, Saved]]:
        """Raises the errors that `_bad_if_odd` turns into BadFile."""
        page = json.loads(line)
        for frame in page["frames"]:
            self._packing.frames.append(_frame(*frame))
        layouts = [shared_layout(_text(origin), _whole(block_bytes)) for origin, block_bytes in page["layouts"]]
        packed, ids = (b64decode(page[name], validate=True) for name in ("packed", "ids"))
        more, fields, blocks = page["more"], iter(page["versions"]), iter(page["blocks"])
        entries: list[tuple[BlockLayout, bytes, Saved, ObjectVersion, bytes]] = []
        if not isinstance(more, dict):
            raise BadFile("no facts of few versions")
        at = 0
        for length, number, confirmed_at, vouched in zip(fields, fields, fields, fields, strict=True):
            raw, version_id = packed[at : at + _whole(length)], ids[16 * len(entries) : 16 * len(entries) + 16]
            at += length
            version, layout = self._version(raw), layouts[_whole(number)]
            confirmed_at = None if confirmed_at is None else _time(confirmed_at)
            content, newer = more.get(str(len(entries)), (None, None)) if more else (None, None)
            if version.size > layout.block_bytes:
                content = self._contents.setdefault(version_id, content)
            saved = Saved(version if newer is None else _newer(version, *newer), confirmed_at, vouched == 1, content)
            entries.append((layout, version_id, saved, version, raw))
        if at != len(packed) or 16 * len(entries) != len(ids):
            raise BadFile("other versions")
        for number, index, pages in zip(blocks, blocks, blocks, strict=True):
            layout, version_id, saved, version, raw = entries[_whole(number)]
            meta = named_block(layout, version, _whole(index), version_id)
            if _whole(pages) == 0:
                raise BadFile("an empty file")
            PACKING.take_over(raw, self._packing.frames[frame_number(raw)], version)
            yield meta, pages * PAGE_BYTES, saved

    def _version(self, raw: bytes) -> ObjectVersion:
        version = self._packing.unpack_once(raw)
        if not version.ref.key.isascii():
            _check_texts(version.ref.key)
        frame = self._packing.frames[frame_number(raw)]
        if frame.texts or not frame.has_md5:
            _check_texts(version.etag, *(text for pair in version.headers for text in pair))
            if not is_strong_etag(version.etag):
                raise BadFile("not a strong ETag")
        return version


def _frame(
    bucket: str, whole: bool, has_md5: bool, headers: Iterable[tuple[str, str]], etags: Iterable[int], date: int,
    texts: Iterable[int],
) -> Frame:  # fmt: skip
    _check_texts(bucket)
    pairs = _headers(headers)
    places = [*map(_whole, etags), *map(_whole, texts), *([] if date == -1 else [_whole(date)])]
    if len(set(places)) < len(places) or max(places, default=-1) >= len(pairs) or not bucket:
        raise BadFile("an odd frame")
    return Frame(shared_text(bucket), whole is True, has_md5 is True, pairs, tuple(etags), date, tuple(texts))


def _newer(version: ObjectVersion, headers: Iterable[tuple[str, str]] | None, whole: bool) -> ObjectVersion:
    its = version.headers if headers is None else _headers(headers)
    return ObjectVersion(version.ref, version.etag, version.size, its, whole is True)


def _text(value: object) -> str:
    _check_texts(value)
    return str(value)


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise BadFile("not a number")
    return value


def _decode_head(snapshot: Snapshot, head: dict[str, object]) -> None:
    snapshot.saved_at = _time(head["saved_at"])
    doubts = head["doubts"]
    if not isinstance(doubts, list):
        raise BadFile("doubts are a list")
    for name, until in doubts:
        bucket, *key = name
        _check_texts(*name)
        snapshot.doubts.append((ObjectRef(bucket, *key) if key else bucket, _time(until)))


def _decode_lines(snapshot: Snapshot, lines: Iterable[bytes]) -> None:
    for line in lines:
        fields = json.loads(line)
        if len(fields) <= 3:
            number, index, pages = fields if len(fields) == 3 else (*fields, None)
            if any(type(each) is not int for each in fields) or number < 0 or pages == 0:
                raise BadFile("a block is three numbers")
            snapshot.add(number, index, pages)
        else:
            # Snapshots of older releases end before: without the content, or what was believed. The flag that they
            # have at its place is as good as the one of now.
            fields += [None] * (12 - len(fields))
            vouched, content, whole, confirmed_at, newer = fields[7:]
            layout, version = _decode_version(*fields[:7], whole=whole is True)
            snapshot.versions.append((layout, version))
            if newer is not None:
                version = _newer(version, *newer)
            confirmed_at = None if confirmed_at is None else _time(confirmed_at)
            snapshot.saved.append(Saved(version, confirmed_at, vouched is True, content))


def _decode_version(
    bucket: str, key: str, origin: str, etag: str, size: int, block_bytes: int, headers: Iterable[tuple[str, str]],
    *, whole: bool,
) -> tuple[BlockLayout, ObjectVersion]:  # fmt: skip
    _check_texts(bucket, key, origin, etag)
    if type(size) is not int or type(block_bytes) is not int:
        raise BadFile("a size is a number")
    ref = ObjectRef(shared_text(bucket), key)
    return shared_layout(origin, block_bytes), ObjectVersion(ref, etag, size, _headers(headers), whole)


def _headers(headers: Iterable[tuple[str, str]]) -> Headers:
    pairs = tuple((name, value) for name, value in headers)
    _check_texts(*(text for pair in pairs for text in pair))
    return shared_headers(pairs)


def _check_texts(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise BadFile("names and headers of a version are strings")
        text.encode("utf-8", "surrogateescape")


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFile("a time is a number")
    return float(value)
