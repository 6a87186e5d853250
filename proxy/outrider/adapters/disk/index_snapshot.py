"""The format of the index snapshot: written at a clean stop and read at the next start, which then needs no scan.

A line of JSON with the time of the stop, the number of blocks and the names that were in doubt; then pages of blocks,
in the policy's order, first victim first (see `snapshot_page`). A snapshot that is not complete, or of another format,
is ignored: a scan finds all that it holds, except for the beliefs. Times are in seconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from math import floor
from typing import NamedTuple

from outrider.adapters.disk.snapshot_page import (
    BELIEFS,
    NEVER,
    PAGE_BLOCKS,
    OpenPage,
    PageReader,
    SavedPage,
    SavedVersion,
    bad_if_odd,
    check_texts,
    time_of,
    whole_number,
)
from outrider.adapters.sealed_file import BadFile, LinesFormat, json_line
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.packed_version import pack
from outrider.ports import Belief, Name

_FORMAT = LinesFormat("outrider index", 5)
HEAD = json_line({_FORMAT.name: _FORMAT.version})


class Snapshot:
    """The content of a snapshot. Iterating yields all blocks, first victim first, as `SavedPage.block` does."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        """Raises the errors that `bad_if_odd` turns into BadFile."""
        head = json.loads(next(lines))
        self.saved_at = time_of(head["saved_at"])
        self.blocks = whole_number(head.get("blocks", 0))
        """How many there are, about; 0: not known."""
        self.doubts: list[tuple[Name, float]] = []
        """Names, and buckets, that a write may still change, and until when."""
        if not isinstance(head["doubts"], list):
            raise BadFile("doubts are a list")
        for name, until in head["doubts"]:
            bucket, *key = name
            check_texts(*name)
            self.doubts.append((ObjectRef(bucket, *key) if key else bucket, time_of(until)))
        self._lines = lines

    def pages(self) -> Iterator[SavedPage]:
        """To be iterated once. Raises BadFile: a page makes no sense."""
        reader = PageReader()
        for line in self._lines:
            with bad_if_odd():
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
    for page in pages_to_write(blocks, facts):
        yield page.line()


def pages_to_write(blocks: Iterable[BlockMeta], facts: SnapshotFacts) -> Iterator[OpenPage]:
    """Pages of `blocks`, whole ones but for the last of each layout."""
    writer, pages = _Writer(facts), dict[BlockLayout, OpenPage]()
    # One by one: a version that was unpacked is at hand for a moment only, and is compared with what is believed of it.
    for meta in blocks:
        if (page := pages.get(meta.layout)) is None:
            page = pages[meta.layout] = OpenPage(meta.layout, facts.now())
        writer.add(page, meta)
        if page.blocks == PAGE_BLOCKS:
            yield pages.pop(meta.layout)
    yield from (page for page in pages.values() if page.blocks)


class _Writer:
    def __init__(self, facts: SnapshotFacts) -> None:
        self._facts = facts
        # Versions of several blocks whose content was written: it may be long, and their blocks may be in many pages.
        self._written: set[bytes] = set()

    def add(self, page: OpenPage, meta: BlockMeta) -> None:
        on_disk = self._facts.on_disk(meta)
        if not on_disk.disk_bytes:
            return  # dropped since the save began
        number, is_new = page.add(meta.key, on_disk.packed, on_disk.disk_bytes // PAGE_BYTES)
        if is_new:
            belief = self._facts.belief(meta.layout.origin, meta.version)
            # Rounded down, so that no version is believed for longer.
            at = NEVER if belief.age_s is None else floor(self._facts.now() - belief.age_s)
            is_small = meta.version.size <= meta.layout.block_bytes
            for name, value in zip(BELIEFS, (at, belief.vouched, is_small and on_disk.proved), strict=True):
                page.columns[name][number] = value
            if (rest := self._more(meta, belief, is_small=is_small)) != [None, None]:
                page.more[number] = rest

    def _more(self, meta: BlockMeta, belief: Belief, *, is_small: bool) -> list[object]:
        """The facts that few versions have: findings about the content, and headers that are newer than the file's."""
        version, newer = meta.version, None
        if belief.version is not version and belief.version != version:
            headers = belief.version.headers
            newer = [None if headers == version.headers else headers, belief.version.whole_headers]
        content = None
        if not is_small and meta.key.version_id not in self._written:
            content = self._facts.content(meta.layout, version)
            if content is not None:
                self._written.add(meta.key.version_id)
        return [content, newer]


def decode(raw: bytes) -> Snapshot:
    """Raises BadFile."""
    with bad_if_odd():
        saved = Snapshot(_FORMAT.decode(raw))
        if saved.blocks > len(raw):
            raise BadFile("more blocks than bytes")
        return saved
