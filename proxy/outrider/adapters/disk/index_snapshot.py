"""The format of the index snapshot: written at a clean stop and read at the next start, which then needs no scan.

Lines of JSON: a head with the time of the stop, the number of blocks and the names that were in doubt; then pages of
blocks in the policy's order, first victim first. A page has its blocks as numbers (of the version in the page, of the
block, and the pages of its file) and the versions of these blocks, packed (see `packed_version`), each with its name,
the number of its layout and what was believed of it (see `ports.Belief`); and what is known of the content of some (see
`Contents`). A start takes a page as columns: a step of Python for each of a million blocks would take too long. A
snapshot that is not complete, or of another format, is ignored: a scan finds all that it holds, except for the beliefs.
Times are in seconds since 1970.
"""

from __future__ import annotations

import json
import struct
from array import array
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, islice
from math import floor
from struct import iter_unpack
from typing import Any, NamedTuple

from outrider.adapters.sealed_file import BadFile, LinesFormat, json_line
from outrider.core.block_layout import BlockLayout, shared_layout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta, named_block
from outrider.core.model import Headers, ObjectRef, ObjectVersion, is_strong_etag, shared_headers, shared_text
from outrider.core.packed_version import PACKING, Frame, Packing, pack, unpack
from outrider.ports import Belief, Name

_FORMAT = LinesFormat("outrider index", 4)
_PAGE_BLOCKS = 1024
_ID_BYTES = 16


class SavedVersion(NamedTuple):
    """The entry of a version in a snapshot. `confirmed_at` None: the origin has to be asked. `content`: the result of
    `Contents.saved`."""

    version: ObjectVersion
    confirmed_at: float | None
    vouched: bool
    content: object


class SavedPage(NamedTuple):
    """A page in columns. Those down to `proved` are by the number of a version in the page, the others by block."""

    layouts: Sequence[BlockLayout]
    """By the numbers in `layout_numbers`."""
    layout_numbers: Sequence[int]
    refs: Sequence[ObjectRef]
    packed: Sequence[bytes]
    ids: Sequence[bytes]
    confirmed_at: Sequence[float | None]
    vouched: Sequence[bool]
    more: Mapping[int, SavedVersion]
    """The versions that have facts beside those of the columns."""
    proved: Collection[int]
    """Versions of one block that was compared with what the bucket knows of it."""
    numbers: Sequence[int]
    """The version of each block."""
    indexes: array[int]
    pages: array[int]

    def block(self, place: int) -> tuple[BlockMeta, int, SavedVersion]:
        """One block, the bytes of its file on disk, and what is known of its version. Raises ValueError."""
        number = self.numbers[place]
        version = unpack(self.packed[number])
        saved = self.more.get(number)
        if saved is None:
            confirmed_at, vouched = self.confirmed_at[number], self.vouched[number]
            saved = SavedVersion(version, confirmed_at, vouched, True if number in self.proved else None)
        layout = self.layouts[self.layout_numbers[number]]
        meta = named_block(layout, version, self.indexes[place], self.ids[number])
        return meta, self.pages[place] * PAGE_BYTES, saved


def page_of(blocks: Sequence[tuple[BlockMeta, int, float | None, bool]]) -> SavedPage:
    """Blocks that a scan has found: each with the bytes of its file on disk, and `confirmed_at` and `vouched` of
    `SavedVersion`. They are versions of their own, even where some are of one."""
    layouts = list(dict.fromkeys(meta.layout for meta, *_ in blocks))
    return SavedPage(
        layouts, [layouts.index(meta.layout) for meta, *_ in blocks], [meta.version.ref for meta, *_ in blocks],
        [pack(meta.version) for meta, *_ in blocks], [meta.key.version_id for meta, *_ in blocks],
        [confirmed_at for _, _, confirmed_at, _ in blocks], [vouched for *_, vouched in blocks], {}, (),
        range(len(blocks)), array("I", [meta.index for meta, *_ in blocks]),
        array("I", [disk_bytes // PAGE_BYTES for _, disk_bytes, _, _ in blocks]),
    )  # fmt: skip


class Snapshot:
    """The content of a snapshot. Iterating yields all blocks, first victim first, as `SavedPage.block` does."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        """Raises the errors that `_bad_if_odd` turns into BadFile."""
        head = json.loads(next(lines))
        self.saved_at = _time(head["saved_at"])
        self.blocks = _whole(head.get("blocks", 0))
        """How many there are, about; 0: not known."""
        self.doubts: list[tuple[Name, float]] = []
        """Names, and buckets, that a write may still change, and until when."""
        if not isinstance(head["doubts"], list):
            raise BadFile("doubts are a list")
        for name, until in head["doubts"]:
            bucket, *key = name
            _check_texts(*name)
            self.doubts.append((ObjectRef(bucket, *key) if key else bucket, _time(until)))
        self._lines = lines

    def pages(self) -> Iterator[SavedPage]:
        """To be iterated once. Raises BadFile: a page makes no sense."""
        reader = _PageReader()
        for line in self._lines:
            with _bad_if_odd():
                page = reader.page(line)
            yield page

    def __iter__(self) -> Iterator[tuple[BlockMeta, int, SavedVersion]]:
        for page in self.pages():
            yield from map(page.block, range(len(page.numbers)))


class OnDisk(NamedTuple):
    """A block as the index has it. `disk_bytes`: of its file; 0: it was dropped since. `packed`: its version. `proved`:
    it was compared with what the bucket knows of it."""

    disk_bytes: int
    packed: bytes
    proved: bool = False


class SnapshotFacts(NamedTuple):
    """Where a snapshot's facts come from. `belief`: see `Versions`. `content`: see `Contents.saved`. Only of
    versions of several blocks; of others `OnDisk.proved` says it. `doubts`, `blocks`: see `Snapshot`."""

    now: Callable[[], float]
    belief: Callable[[str, ObjectVersion], Belief]
    content: Callable[[BlockLayout, ObjectVersion], object] = lambda layout, version: None
    doubts: Iterable[tuple[Name, float]] = ()
    blocks: int = 0
    on_disk: Callable[[BlockMeta], OnDisk] = lambda meta: OnDisk(block_file.Header(meta).disk_bytes, pack(meta.version))


_NO_FACTS = SnapshotFacts(lambda: 0.0, lambda origin, version: Belief(version))


def encode(blocks: Iterable[BlockMeta], facts: SnapshotFacts = _NO_FACTS) -> Iterator[bytes]:
    """The lines of a snapshot of `blocks`, in pieces fit for writing."""
    return _FORMAT.encode(_lines(blocks, facts))


def _lines(blocks: Iterable[BlockMeta], facts: SnapshotFacts) -> Iterator[bytes]:
    doubts = [[[name] if isinstance(name, str) else name, until] for name, until in facts.doubts]
    yield json_line({"saved_at": facts.now(), "blocks": facts.blocks, "doubts": doubts})
    writer, waiting = _PageWriter(facts), iter(blocks)
    # One by one: a version that was unpacked is at hand for a moment only, and is compared with what is believed of it.
    for first in waiting:
        yield json_line(writer.page(chain((first,), islice(waiting, _PAGE_BLOCKS - 1))))


class _PageWriter:
    def __init__(self, facts: SnapshotFacts) -> None:
        self._facts = facts
        # Those of the process that were written. Frame 0 is the same everywhere.
        self._frames = 1
        # Versions of several blocks whose content was written: it may be long, and their blocks may be in many pages.
        self._written: set[bytes] = set()

    def page(self, blocks: Iterable[BlockMeta]) -> dict[str, object]:
        numbers: dict[tuple[bytes, bytes], int] = {}
        layouts: list[BlockLayout] = []
        packed, ids = bytearray(), bytearray()
        versions: list[int | float | None] = []
        more: dict[int, list[object]] = {}
        found: list[int] = []
        for meta in blocks:
            on_disk = self._facts.on_disk(meta)
            if not on_disk.disk_bytes:
                continue  # dropped since the save began
            # The headers are part of the identity: they determine the length of a block's file, and two fills of one
            # version may have received different headers.
            identity = meta.key.version_id, on_disk.packed
            number = numbers.get(identity)
            if number is None:
                number = numbers[identity] = len(numbers)
                if meta.layout not in layouts:
                    layouts.append(meta.layout)
                belief = self._facts.belief(meta.layout.origin, meta.version)
                # Rounded down, so that no version is believed for longer.
                at = None if belief.age_s is None else floor(self._facts.now() - belief.age_s)
                packed += on_disk.packed
                ids += meta.key.version_id
                versions += (len(on_disk.packed), layouts.index(meta.layout), at, int(belief.vouched))
                if (rest := self._more(meta, belief, is_proved=on_disk.proved)) != [None, None]:
                    more[number] = rest
            found += (number, meta.index, on_disk.disk_bytes // PAGE_BYTES)
        # Read after the versions, as the loop may pack others while this runs in a thread.
        frames = PACKING.frames[self._frames :]
        self._frames += len(frames)
        return {
            "layouts": [[layout.origin, layout.block_bytes] for layout in layouts], "frames": frames,
            "packed": b64encode(packed).decode(), "ids": b64encode(ids).decode(),
            "versions": versions, "more": more, "blocks": found,
        }  # fmt: skip

    def _more(self, meta: BlockMeta, belief: Belief, *, is_proved: bool) -> list[object]:
        """The facts that few versions have: findings about the content, and headers that are newer than the file's."""
        version, newer = meta.version, None
        if belief.version is not version and belief.version != version:
            headers = belief.version.headers
            newer = [None if headers == version.headers else headers, belief.version.whole_headers]
        content: object = is_proved or None
        if version.size > meta.layout.block_bytes:
            content = None
            if meta.key.version_id not in self._written:
                content = self._facts.content(meta.layout, version)
            if content is not None:
                self._written.add(meta.key.version_id)
        return [content, newer]


def decode(raw: bytes) -> Snapshot:
    """Raises BadFile."""
    with _bad_if_odd():
        saved = Snapshot(_FORMAT.decode(raw))
        if saved.blocks > len(raw):
            raise BadFile("more blocks than bytes")
        return saved


@contextmanager
def _bad_if_odd() -> Iterator[None]:
    try:
        yield
    except BadFile:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, StopIteration, struct.error) as error:
        raise BadFile(repr(error)) from error


class _PageReader:
    """Reads the pages in their order."""

    def __init__(self) -> None:
        self._packing = Packing()
        self._taken_over = PACKING.taken_over(self._packing, _check_version)
        # The contents of versions of several blocks.
        self._contents: dict[bytes, object] = {}

    def page(self, line: bytes) -> SavedPage:
        """Raises the errors that `_bad_if_odd` turns into BadFile."""
        page = json.loads(line)
        for frame in page["frames"]:
            self._packing.frames.append(_frame(*frame))
        layouts = [shared_layout(_text(origin), _whole(block_bytes)) for origin, block_bytes in page["layouts"]]
        packed, ids = (a2b_base64(page[name], strict_mode=True) for name in ("packed", "ids"))
        lengths, layout_numbers, confirmed_at, vouched = _columns(page["versions"], 4)
        numbers, indexes, pages = _columns(page["blocks"], 3)
        _check_whole(lengths, layout_numbers, numbers, indexes, pages)
        if set(map(type, confirmed_at)) - {int, float, type(None)}:
            raise BadFile("a time is a number")
        stops = [0, *accumulate(lengths)]
        if stops[-1] != len(packed) or _ID_BYTES * len(lengths) != len(ids):
            raise BadFile("other versions")
        if not pages or 0 in pages:
            raise BadFile("an empty file")
        raws = map(packed.__getitem__, map(slice, stops, stops[1:]))
        refs, sizes, its_packed = zip(*self._taken_over.versions(raws), strict=True)
        names = [version_id for (version_id,) in iter_unpack(f"{_ID_BYTES}s", ids)]
        block_bytes = [layouts[number].block_bytes for number in layout_numbers]
        for number, index in zip(numbers, indexes, strict=True):
            if index * block_bytes[number] >= sizes[number]:
                raise BadFile(f"no block {index}")
        saved = SavedPage(
            layouts, layout_numbers, refs, its_packed, names, confirmed_at, list(map((1).__eq__, vouched)), {}, set(),
            numbers, array("I", indexes), array("I", pages),
        )  # fmt: skip
        # Most pages have neither.
        return self._with_more(saved, page["more"], sizes) if page["more"] != {} or self._contents else saved

    def _with_more(self, page: SavedPage, more: object, sizes: Sequence[int]) -> SavedPage:
        if not isinstance(more, dict):
            raise BadFile("no facts of few versions")
        found, proved = dict[int, SavedVersion](), set[int]()
        facts = {int(number): (content, newer) for number, (content, newer) in more.items()}
        if self._contents:
            facts = {number: (None, None) for number, name in enumerate(page.ids) if name in self._contents} | facts
        for number, (content, newer) in facts.items():
            if sizes[number] > page.layouts[page.layout_numbers[number]].block_bytes:
                content = self._contents.setdefault(page.ids[number], content)
            elif content is True and newer is None:
                proved.add(number)
                continue
            version = unpack(page.packed[number])
            its = version if newer is None else _newer(version, *newer)
            found[number] = SavedVersion(its, page.confirmed_at[number], page.vouched[number], content)
        return page._replace(more=found, proved=proved)


def _columns(values: object, count: int) -> list[list[Any]]:
    """The columns of a table that stands row by row."""
    if not isinstance(values, list) or len(values) % count:
        raise BadFile("no table")
    return [values[column::count] for column in range(count)]


def _check_whole(*columns: list[Any]) -> None:
    for column in columns:
        if set(map(type, column)) - {int} or min(column, default=0) < 0:
            raise BadFile("not a number")


def _check_version(version: ObjectVersion) -> None:
    _check_texts(version.ref.key, version.etag, *(text for pair in version.headers for text in pair))
    if not is_strong_etag(version.etag):
        raise BadFile("not a strong ETag")


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
