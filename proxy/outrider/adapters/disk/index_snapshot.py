"""The index, written at a clean stop and read at the next start, so that no directory has to be scanned.

Lines of JSON: a head, the versions, each with whether a LIST may vouch for its headers, the blocks as `[number of the
version, block index]` in the policy's order, first victim first; then a checksum of all lines before. A snapshot that
is not whole is ignored: the scan knows everything, but who vouches.
"""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Callable, Iterable, Iterator

import xxhash

from outrider.core.block_layout import BlockLayout, shared_layout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.model import ObjectRef, ObjectVersion, shared_headers, shared_text

_HEAD = {"outrider index": 1}


class BadSnapshot(ValueError):
    """Cut, altered, or of another format."""


class Snapshot:
    """What stood in a snapshot. Iterating makes the meta of each block, first victim first, and tells whether its
    version is vouched for: all at once they would take many times the room of what is kept here."""

    def __init__(self) -> None:
        self.versions: list[tuple[BlockLayout, ObjectVersion]] = []
        self.vouched = bytearray()
        self._numbers, self._indexes = array("I"), array("I")

    def add(self, number: int, index: int) -> None:
        """Raises ValueError, TypeError, LookupError, OverflowError: there can be no such block."""
        BlockMeta(*self.versions[number], index)
        self._numbers.append(number)
        self._indexes.append(index)

    def __iter__(self) -> Iterator[tuple[BlockMeta, bool]]:
        return (
            (BlockMeta(*self.versions[number], index), bool(self.vouched[number]))
            for number, index in zip(self._numbers, self._indexes, strict=True)
        )


def encode(
    blocks: Iterable[BlockMeta], vouches: Callable[[str, ObjectVersion], bool] = lambda origin, version: False
) -> Iterator[bytes]:
    """The lines of a snapshot of `blocks`, in pieces fit for writing. `vouches`: see `Versions`."""
    seal = xxhash.xxh3_64()
    for line in _lines(blocks, vouches):
        seal.update(line)
        yield line
    yield _line({"xxh3": seal.hexdigest()})


def _lines(blocks: Iterable[BlockMeta], vouches: Callable[[str, ObjectVersion], bool]) -> Iterator[bytes]:
    yield _line(_HEAD)
    numbers: dict[tuple[BlockLayout, ObjectVersion], int] = {}
    for meta in blocks:
        version = meta.version
        # With its headers: they decide how long a block's file is, and two fills may have been told different ones.
        layout, identity = meta.layout, (meta.layout, version)
        number = numbers.get(identity)
        if number is None:
            number = numbers[identity] = len(numbers)
            vouched = vouches(layout.origin, version)
            yield _line(
                [*version.ref, layout.origin, version.etag, version.size, layout.block_bytes, version.headers, vouched]
            )
        yield _line([number, meta.index])


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def decode(raw: bytes) -> Snapshot:
    """Raises BadSnapshot."""
    body, newline, last = raw.rstrip(b"\n").rpartition(b"\n")
    seal = xxhash.xxh3_64(body + newline).hexdigest()
    try:
        if json.loads(last) != {"xxh3": seal}:
            raise BadSnapshot("the checksum does not match")
        lines = io.BytesIO(body)
        if json.loads(next(lines)) != _HEAD:
            raise BadSnapshot("of another format")
        return _decode_lines(lines)
    except BadSnapshot:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, StopIteration, RecursionError) as error:
        raise BadSnapshot(repr(error)) from error


def _decode_lines(lines: Iterable[bytes]) -> Snapshot:
    snapshot = Snapshot()
    for line in lines:
        fields = json.loads(line)
        if len(fields) == 2:
            number, index = fields
            if type(number) is not int or type(index) is not int or number < 0:
                raise BadSnapshot("a block is two numbers")
            snapshot.add(number, index)
        else:
            snapshot.versions.append(_decode_version(*fields[:7]))
            # An older one does not tell.
            snapshot.vouched.append(fields[7:] == [True])
    return snapshot


def _decode_version(
    bucket: str, key: str, origin: str, etag: str, size: int, block_bytes: int, headers: list[tuple[str, str]]
) -> tuple[BlockLayout, ObjectVersion]:
    pairs = tuple((name, value) for name, value in headers)
    for text in (bucket, key, origin, etag, *(text for pair in pairs for text in pair)):
        if not isinstance(text, str):
            raise BadSnapshot("a version is told in words")
        text.encode("utf-8", "surrogateescape")
    if type(size) is not int or type(block_bytes) is not int:
        raise BadSnapshot("a size is a number")
    ref = ObjectRef(shared_text(bucket), key)
    return shared_layout(origin, block_bytes), ObjectVersion(ref, etag, size, shared_headers(pairs))
