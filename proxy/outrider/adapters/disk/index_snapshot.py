"""The format of the index snapshot: written at a clean stop and read at the next start, which then needs no scan.

Lines of JSON: a head with the time of the stop and the names that were in doubt; the versions, each with what is known
of its content (see `Contents`) and what was believed of it (see `ports.Belief`); then the blocks as
`[number of the version, block index, pages of the file]` in the policy's order, first victim first. A snapshot that is
not complete is ignored: a scan finds all that it holds, except for the beliefs. Times are in seconds since 1970.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from math import floor
from typing import NamedTuple

from outrider.adapters.sealed_file import BadFile, LinesFormat, json_line
from outrider.core.block_layout import BlockLayout, shared_layout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta
from outrider.core.model import Headers, ObjectRef, ObjectVersion, shared_headers, shared_text
from outrider.ports import Belief, Name

_FORMAT = LinesFormat("outrider index", 3)
# That of releases which did not keep when a version was confirmed.
_OLDER_FORMAT = LinesFormat("outrider index", 2)


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
        return (
            (BlockMeta(*self.versions[number], index), pages * PAGE_BYTES, self.saved[number])
            for number, index, pages in zip(self._numbers, self._indexes, self._pages, strict=True)
        )


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
    numbers: dict[tuple[BlockLayout, ObjectVersion], int] = {}
    for meta in blocks:
        pages = facts.disk_bytes(meta) // PAGE_BYTES
        if not pages:
            continue  # dropped since the save began
        version = meta.version
        # The headers are part of the identity: they determine the length of a block's file, and two fills of one
        # version may have received different headers.
        layout, identity = meta.layout, (meta.layout, version)
        number = numbers.get(identity)
        if number is None:
            number = numbers[identity] = len(numbers)
            belief = facts.belief(layout.origin, version)
            # Rounded down, so that no version is believed for longer.
            confirmed_at = None if belief.age_s is None else floor(facts.now() - belief.age_s)
            newer = None
            if belief.version != version:
                headers = belief.version.headers
                newer = [None if headers == version.headers else headers, belief.version.whole_headers]
            yield json_line(
                [*version.ref, layout.origin, version.etag, version.size, layout.block_bytes, version.headers,
                 belief.vouched, facts.content(layout, version), version.whole_headers, confirmed_at, newer]
            )  # fmt: skip
        yield json_line([number, meta.index, pages])


def decode(raw: bytes) -> Snapshot:
    """Raises BadFile."""
    snapshot = Snapshot()
    try:
        try:
            lines = _FORMAT.decode(raw)
        except BadFile:
            lines = _OLDER_FORMAT.decode(raw)
        else:
            _decode_head(snapshot, json.loads(next(lines)))
        _decode_lines(snapshot, lines)
    except BadFile:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, StopIteration) as error:
        raise BadFile(repr(error)) from error
    return snapshot


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
                newer_headers, newer_whole = newer
                headers = version.headers if newer_headers is None else _headers(newer_headers)
                version = ObjectVersion(version.ref, version.etag, version.size, headers, newer_whole is True)
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
