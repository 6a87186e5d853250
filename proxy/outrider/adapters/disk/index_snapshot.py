"""The format of the index snapshot: written at a clean stop and read at the next start, which then needs no scan.

Lines of JSON: the versions, each with a flag that says whether a LIST may vouch for its headers and with what is known
of its content (see `Contents`), then the blocks as
`[number of the version, block index]` in the policy's order, first victim first. A snapshot that is not complete is
ignored: a scan finds all that it holds, except for the flags.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator

from outrider.adapters.sealed_file import BadFile, LinesFormat, json_line
from outrider.core.block_layout import BlockLayout, shared_layout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.model import ObjectRef, ObjectVersion, shared_headers, shared_text

_FORMAT = LinesFormat("outrider index", 2)


class Snapshot:
    """The content of a snapshot.

    Iterating yields the meta of each block, first victim first, whether its version is vouched for, and what is known
    of its content. The metas are made one by one: all at once they would take many times the memory of what is kept
    here.
    """

    def __init__(self) -> None:
        self.versions: list[tuple[BlockLayout, ObjectVersion]] = []
        self.vouched = bytearray()
        self.contents: list[object] = []
        """By version: the result of `Contents.saved`."""
        self._numbers, self._indexes = array("I"), array("I")

    def add(self, number: int, index: int) -> None:
        """Raises ValueError, TypeError, LookupError, OverflowError: there can be no such block."""
        BlockMeta(*self.versions[number], index)
        self._numbers.append(number)
        self._indexes.append(index)

    def __iter__(self) -> Iterator[tuple[BlockMeta, bool, object]]:
        return (
            (BlockMeta(*self.versions[number], index), bool(self.vouched[number]), self.contents[number])
            for number, index in zip(self._numbers, self._indexes, strict=True)
        )


def encode(
    blocks: Iterable[BlockMeta], vouches: Callable[[str, ObjectVersion], bool] = lambda origin, version: False,
    content_of: Callable[[BlockLayout, ObjectVersion], object] = lambda layout, version: None,
) -> Iterator[bytes]:  # fmt: skip
    """The lines of a snapshot of `blocks`, in pieces fit for writing. `vouches`: see `Versions`. `content_of`: see
    `Contents.saved`."""
    return _FORMAT.encode(_lines(blocks, vouches, content_of))


def _lines(
    blocks: Iterable[BlockMeta], vouches: Callable[[str, ObjectVersion], bool],
    content_of: Callable[[BlockLayout, ObjectVersion], object],
) -> Iterator[bytes]:  # fmt: skip
    numbers: dict[tuple[BlockLayout, ObjectVersion], int] = {}
    for meta in blocks:
        version = meta.version
        # The headers are part of the identity: they determine the length of a block's file, and two fills of one
        # version may have received different headers.
        layout, identity = meta.layout, (meta.layout, version)
        number = numbers.get(identity)
        if number is None:
            number = numbers[identity] = len(numbers)
            vouched = vouches(layout.origin, version)
            yield json_line(
                [*version.ref, layout.origin, version.etag, version.size, layout.block_bytes, version.headers, vouched,
                 content_of(layout, version)]
            )  # fmt: skip
        yield json_line([number, meta.index])


def decode(raw: bytes) -> Snapshot:
    """Raises BadFile."""
    lines = _FORMAT.decode(raw)
    try:
        return _decode_lines(lines)
    except BadFile:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise BadFile(repr(error)) from error


def _decode_lines(lines: Iterable[bytes]) -> Snapshot:
    snapshot = Snapshot()
    for line in lines:
        fields = json.loads(line)
        if len(fields) == 2:
            number, index = fields
            if type(number) is not int or type(index) is not int or number < 0:
                raise BadFile("a block is two numbers")
            snapshot.add(number, index)
        else:
            snapshot.versions.append(_decode_version(*fields[:7]))
            # Snapshots of older releases have no flag, or no content.
            snapshot.vouched.append(fields[7:8] == [True])
            snapshot.contents.append(fields[8] if len(fields) > 8 else None)
    return snapshot


def _decode_version(
    bucket: str, key: str, origin: str, etag: str, size: int, block_bytes: int, headers: list[tuple[str, str]]
) -> tuple[BlockLayout, ObjectVersion]:
    pairs = tuple((name, value) for name, value in headers)
    for text in (bucket, key, origin, etag, *(text for pair in pairs for text in pair)):
        if not isinstance(text, str):
            raise BadFile("names and headers of a version are strings")
        text.encode("utf-8", "surrogateescape")
    if type(size) is not int or type(block_bytes) is not int:
        raise BadFile("a size is a number")
    ref = ObjectRef(shared_text(bucket), key)
    return shared_layout(origin, block_bytes), ObjectVersion(ref, etag, size, shared_headers(pairs))
