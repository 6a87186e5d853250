"""A page of an index snapshot: blocks of one layout, and their versions, in columns.

A line: a checksum, then JSON, in which each column is base64 of an array: of the versions the packed forms (see
`packed_version`), their lengths, their names, and what was believed of each (see `ports.Belief`); of the blocks the
number of the version in the page, that of the block, and the pages of its file. `more` has the facts that few versions
have (see `Contents`). A start takes a page as columns: a step of Python for each of a million blocks would take too
long.

A page has all that is needed to read it. Times are in seconds since 1970.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from struct import iter_unpack
from typing import NamedTuple, TypeAlias

import xxhash

from outrider.adapters.sealed_file import BadFile, json_line
from outrider.core.block_layout import BlockLayout, shared_layout
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta, named_block
from outrider.core.model import BlockKey, Headers, ObjectRef, ObjectVersion, is_strong_etag, shared_headers, shared_text
from outrider.core.packed_version import PACKING, Frame, Packing, number_in, pack, unpack

PAGE_BLOCKS = 1024
_ID_BYTES = 16
_COLUMNS = {
    "lengths": "I", "confirmed_at": "q", "vouched": "B", "proved": "B", "numbers": "I", "indexes": "I", "pages": "I"
}  # fmt: skip
# A `confirmed_at` that is None.
NEVER = -1
# As long as nothing is known.
BELIEFS = {"confirmed_at": NEVER, "vouched": 0, "proved": 0}


class SavedVersion(NamedTuple):
    """The entry of a version in a snapshot. `confirmed_at` None: the origin has to be asked. `content`: the result of
    `Contents.saved`."""

    version: ObjectVersion
    confirmed_at: float | None
    vouched: bool
    content: object


class SavedPage(NamedTuple):
    """A page in columns. Those down to `proved` are by the number of a version in the page, the others by block."""

    layout: BlockLayout
    refs: Sequence[ObjectRef]
    packed: Sequence[bytes]
    ids: Sequence[bytes]
    confirmed_at: Sequence[float | None]
    vouched: Sequence[bool]
    more: Mapping[int, SavedVersion]
    """The versions that have facts beside those of the columns."""
    proved: Sequence[bool]
    """Whether a version of one block was compared with what the bucket knows of it."""
    numbers: Sequence[int]
    """The version of each block."""
    indexes: Sequence[int]
    pages: Sequence[int]
    written_at: float = 0.0

    def has_newer(self, number: int) -> bool:
        """Whether the headers of a version that were believed are newer than those of its blocks' files."""
        return number in self.more and self.more[number].version != unpack(self.packed[number])

    def block(self, place: int) -> tuple[BlockMeta, int, SavedVersion]:
        """One block, the bytes of its file on disk, and what is known of its version. Raises ValueError."""
        number = self.numbers[place]
        version = unpack(self.packed[number])
        saved = self.more.get(number)
        if saved is None:
            confirmed_at, vouched = self.confirmed_at[number], self.vouched[number]
            saved = SavedVersion(version, confirmed_at, vouched, self.proved[number] or None)
        meta = named_block(self.layout, version, self.indexes[place], self.ids[number])
        return meta, self.pages[place] * PAGE_BYTES, saved


Found: TypeAlias = tuple[BlockMeta, int, float | None, bool]
"""A block that a scan has found, the bytes of its file on disk, and `confirmed_at` and `vouched` of `SavedVersion`."""


def pages_of(blocks: Iterable[Found]) -> Iterator[SavedPage]:
    """A page for each layout. All blocks are of versions of their own, even where some are of one."""
    by_layout: dict[BlockLayout, list[Found]] = {}
    for block in blocks:
        by_layout.setdefault(block[0].layout, []).append(block)
    for layout, its in by_layout.items():
        metas, sizes, confirmed_at, vouched = zip(*its, strict=True)
        yield SavedPage(
            layout, [meta.version.ref for meta in metas], [pack(meta.version) for meta in metas],
            [meta.key.version_id for meta in metas], confirmed_at, vouched, {}, [False] * len(its),
            range(len(its)), [meta.index for meta in metas], [size // PAGE_BYTES for size in sizes],
        )  # fmt: skip


class OpenPage:
    """A page that is being made."""

    def __init__(self, layout: BlockLayout, now: float) -> None:
        self.layout = layout
        self._began_at = now
        self.columns = {name: array(kind) for name, kind in _COLUMNS.items()}
        self.packed = bytearray()
        self.ids = bytearray()
        self.more: dict[int, list[object]] = {}
        self._versions: dict[tuple[bytes, bytes], int] = {}

    @property
    def blocks(self) -> int:
        return len(self.columns["numbers"])

    def add(self, block: BlockKey, packed: bytes, pages: int) -> tuple[int, bool]:
        """The number of the block's version in the page, and whether it is a new one. `pages`: of its file."""
        # The headers are part of the identity: they determine the length of a block's file, and two fills of one
        # version may have received different headers.
        number = self._versions.setdefault((block.version_id, packed), len(self._versions))
        columns, is_new = self.columns, number == len(self.columns["lengths"])
        if is_new:
            self.packed += packed
            self.ids += block.version_id
            columns["lengths"].append(len(packed))
            for name, unknown in BELIEFS.items():
                columns[name].append(unknown)
        columns["numbers"].append(number)
        columns["indexes"].append(block.index)
        columns["pages"].append(pages)
        return number, is_new

    def line(self) -> bytes:
        numbers = sorted({number_in(packed) for _, packed in self._versions})
        frames = [(number, PACKING.frames[number]) for number in numbers if number]
        columns: dict[str, bytearray | array[int]] = {"packed": self.packed, "ids": self.ids, **self.columns}
        raw = json_line({
            "order": sys.byteorder, "at": self._began_at, "layout": [self.layout.origin, self.layout.block_bytes],
            "frames": frames, "more": self.more,
            **{name: b64encode(column).decode() for name, column in columns.items()},
        })  # fmt: skip
        return sealed(raw)


def sealed(raw: bytes) -> bytes:
    """The line of a page with its checksum in front. `raw` ends with a newline."""
    return b"%s %s" % (_digest(raw), raw)


def _digest(line: bytes) -> bytes:
    return xxhash.xxh3_64(line).hexdigest().encode()


def pages_in(lines: Iterable[bytes]) -> Iterator[SavedPage]:
    """Those of lines that may be cut, or damaged, that are as they were written."""
    reader = PageReader()
    for line in lines:
        with suppress(BadFile), bad_if_odd():
            yield reader.page(line)


@contextmanager
def bad_if_odd() -> Iterator[None]:
    try:
        yield
    except BadFile:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, StopIteration, struct.error) as error:
        raise BadFile(repr(error)) from error


class PageReader:
    """Reads the pages in their order."""

    def __init__(self) -> None:
        # The contents of versions of several blocks.
        self._contents: dict[bytes, object] = {}

    def page(self, line: bytes) -> SavedPage:
        """Raises the errors that `bad_if_odd` turns into BadFile."""
        digest, _, raw = line.removesuffix(b"\n").partition(b" ")
        if digest != _digest(raw + b"\n"):
            raise BadFile("the checksum of a page does not match")
        page = json.loads(raw)
        if page["order"] != sys.byteorder:
            raise BadFile("of another machine")
        packing = Packing()
        packing.take({whole_number(number): _frame(*frame) for number, frame in page["frames"]})
        origin, block_bytes = page["layout"]
        layout = shared_layout(_text(origin), whole_number(block_bytes))
        packed, ids = (a2b_base64(page[name], strict_mode=True) for name in ("packed", "ids"))
        columns = {name: array(kind, a2b_base64(page[name], strict_mode=True)) for name, kind in _COLUMNS.items()}
        numbers, indexes, pages = columns["numbers"], columns["indexes"], columns["pages"]
        stops = [0, *accumulate(columns["lengths"])]
        by_version = len(ids) // _ID_BYTES, *(len(columns[name]) for name in ("lengths", *BELIEFS))
        if stops[-1] != len(packed) or len(set(by_version)) > 1 or len(ids) % _ID_BYTES:
            raise BadFile("other versions")
        if not len(numbers) == len(indexes) == len(pages) > 0 or 0 in pages or max(numbers) >= by_version[0]:
            raise BadFile("other blocks")
        raws = map(packed.__getitem__, map(slice, stops, stops[1:]))
        refs, sizes, its_packed = PACKING.taken_over(packing, list(raws), _check_version)
        if any(indexes) or 0 in sizes:
            for number, index in zip(numbers, indexes, strict=True):
                if index * layout.block_bytes >= sizes[number]:
                    raise BadFile(f"no block {index}")
        names = [version_id for (version_id,) in iter_unpack(f"{_ID_BYTES}s", ids)]
        confirmed_at, vouched, proved = (columns[name] for name in BELIEFS)
        saved = SavedPage(
            layout, refs, its_packed, names, [None if at == NEVER else at for at in confirmed_at],
            list(map(bool, vouched)), {}, list(map(bool, proved)), numbers, indexes, pages, time_of(page["at"]),
        )  # fmt: skip
        # Most pages have neither.
        return self._with_more(saved, page["more"], sizes) if page["more"] != {} or self._contents else saved

    def _with_more(self, page: SavedPage, more: object, sizes: Sequence[int]) -> SavedPage:
        if not isinstance(more, dict):
            raise BadFile("no facts of few versions")
        found = dict[int, SavedVersion]()
        facts = {int(number): (content, newer) for number, (content, newer) in more.items()}
        if self._contents:
            facts = {number: (None, None) for number, name in enumerate(page.ids) if name in self._contents} | facts
        for number, (content, newer) in facts.items():
            if sizes[number] > page.layout.block_bytes:
                content = self._contents.setdefault(page.ids[number], content)
            elif content is None:
                content = page.proved[number] or None
            version = unpack(page.packed[number])
            its = version if newer is None else _newer(version, *newer)
            found[number] = SavedVersion(its, page.confirmed_at[number], page.vouched[number], content)
        return page._replace(more=found)


def _check_version(version: ObjectVersion) -> None:
    check_texts(version.ref.key, version.etag, *(text for pair in version.headers for text in pair))
    if not is_strong_etag(version.etag):
        raise BadFile("not a strong ETag")


def _frame(
    bucket: str, whole: bool, has_md5: bool, headers: Iterable[tuple[str, str]], etags: Iterable[int], date: int,
    texts: Iterable[int],
) -> Frame:  # fmt: skip
    check_texts(bucket)
    pairs = _headers(headers)
    places = [*map(whole_number, etags), *map(whole_number, texts), *([] if date == -1 else [whole_number(date)])]
    if len(set(places)) < len(places) or max(places, default=-1) >= len(pairs) or not bucket:
        raise BadFile("an odd frame")
    return Frame(shared_text(bucket), whole is True, has_md5 is True, pairs, tuple(etags), date, tuple(texts))


def _newer(version: ObjectVersion, headers: Iterable[tuple[str, str]] | None, whole: bool) -> ObjectVersion:
    its = version.headers if headers is None else _headers(headers)
    return ObjectVersion(version.ref, version.etag, version.size, its, whole is True)


def _text(value: object) -> str:
    check_texts(value)
    return str(value)


def whole_number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise BadFile("not a number")
    return value


def _headers(headers: Iterable[tuple[str, str]]) -> Headers:
    pairs = tuple((name, value) for name, value in headers)
    check_texts(*(text for pair in pairs for text in pair))
    return shared_headers(pairs)


def check_texts(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise BadFile("names and headers of a version are strings")
        text.encode("utf-8", "surrogateescape")


def time_of(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFile("a time is a number")
    return float(value)
