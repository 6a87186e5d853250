"""Blocking reads and writes of block files: headers, payloads and checksums. The store runs them in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import xxhash

from outrider import pagecache
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BadBlock, BlockMeta
from outrider.core.model import BlockKey
from outrider.core.s3.checksums import Hash
from outrider.ports import Buffer

_VERIFY_BYTES = 1024 * 1024


class FoundFile(NamedTuple):
    """A block file seen by the scan, before its header was read."""

    place: str
    disk_bytes: int
    modified_at: float
    """When the origin confirmed its version, as far as it was known, in seconds since 1970; see `DiskBlockStore`."""

    @property
    def path(self) -> Path:
        return Path(self.place)


def file_name(block: BlockKey) -> str:
    return block_file.block_name(block).hex()


def read_header(fd: int) -> tuple[BlockMeta, bytes, int]:
    """The meta, the payload's checksum and the payload's offset.

    Raises:
        BadBlock: the header is damaged, or the file is not as long as it says.
    """
    page = os.pread(fd, block_file.PAGE_BYTES, 0)
    length = block_file.header_length(page)
    if length > len(page):
        page += os.pread(fd, length - len(page), len(page))
    meta, checksum = block_file.decode_header(page)
    size = os.fstat(fd).st_size
    if size != length + meta.extent.length:
        raise BadBlock(f"{size} bytes long, should be {length + meta.extent.length}")
    return meta, checksum, length


def read_meta(path: Path) -> BlockMeta:
    """Raises OSError, and BadBlock, also for a block under the name of another one."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        meta, _, _ = read_header(fd)
    finally:
        os.close(fd)
    if path.name != file_name(meta.key) and path.name != undated_name(meta):
        raise BadBlock("lies under another block's name")
    return meta


def read_found(paths: Iterable[Path]) -> list[BlockMeta | OSError | None]:
    """The meta of each file that a scan has found; None where it was no intact block, and has been removed."""
    metas: list[BlockMeta | OSError | None] = []
    for path in paths:
        try:
            metas.append(_read_or_remove(path))
        except OSError as error:
            metas.append(error)
    return metas


def _read_or_remove(path: Path) -> BlockMeta | None:
    try:
        meta = read_meta(path)
    except (BadBlock, FileNotFoundError):
        path.unlink(missing_ok=True)
        return None
    name = file_name(meta.key)
    if path.name != name:
        # Outrider 0.2 named a version without its date.
        folder = path.parent.with_name(name[:2])
        folder.mkdir(mode=0o700, exist_ok=True)
        path.rename(folder / name)
    return meta


def undated_name(meta: BlockMeta) -> str:
    """The name of the block's file as Outrider 0.2 made it, for which ETag and size named a version."""
    return file_name(meta.layout.key(replace(meta.version, headers=()), meta.index))


def open_block(
    path: Path, block: BlockKey, verify: bool, *, keep_pages: bool = True, content: Hash | None = None
) -> tuple[int, int]:
    """An open fd and the payload's offset; with `verify` the whole payload was read and its checksum is right.

    `keep_pages` False: pages that had to be read from the disk are dropped again, to leave memory to readers' pages.
    `content`: takes in the payload, too, if it is read.

    Raises:
        BadBlock: the file does not hold this block.
        OSError: the disk failed; FileNotFoundError: the file is gone.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # Looked up before the header is read: the kernel's own read-ahead starts there.
        was_read_in = not keep_pages and not pagecache.is_in_memory(fd, block_file.PAGE_BYTES)
        meta, checksum, offset = read_header(fd)
        if meta.key != block:
            raise BadBlock("holds another block")
        if verify:
            verify_payload(fd, offset, meta.extent.length, checksum, content)
            if was_read_in:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except BaseException:
        os.close(fd)
        raise
    return fd, offset


def open_known_block(path: bytes, block: BlockKey) -> tuple[int, int] | None:
    """Like `open_block` without `verify`, if neither path nor header must come from the disk.

    None: they must, or the file does not hold this block as it should; `open_block` finds out which.
    """
    return _opened_known(path, lambda fd: block_file.payload_offset_in(_read_known(fd, block_file.NAME_BYTES), block))


def open_verified_block(path: bytes, block: BlockKey, disk_bytes: int) -> tuple[int, int] | None:
    """Like `open_block` with `verify`, if neither path nor file must come from the disk. None: as above, or the file
    is longer than `disk_bytes`."""

    def payload_offset(fd: int) -> int | None:
        size = os.fstat(fd).st_size
        if size > disk_bytes:
            return None
        whole = memoryview(bytearray(size))
        try:
            if not pagecache.read_in_memory(fd, 0, whole):
                return None
            offset, checksum = block_file.payload_in(bytes(whole[: block_file.PAGE_BYTES]), block)
        except (OSError, BadBlock):
            return None
        return offset if block_file.PayloadChecksum(whole[offset:]).digest() == checksum else None

    return _opened_known(path, payload_offset)


def _opened_known(path: bytes, payload_offset: Callable[[int], int | None]) -> tuple[int, int] | None:
    fd = pagecache.open_known(path)
    if fd is None:
        return None
    offset = payload_offset(fd)
    if offset is not None:
        return fd, offset
    os.close(fd)
    return None


def _read_known(fd: int, count: int) -> bytes:
    return pagecache.read_known(fd, count) or b""


def page_in(path: bytes, start: int, count: int) -> None:
    """Have the kernel read the header and `count` bytes of the payload into memory.

    Errors are ignored: the read that follows reports them.
    """
    with suppress(OSError, BadBlock):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            length = block_file.header_length(os.pread(fd, block_file.PAGE_BYTES, 0))
            if length > block_file.PAGE_BYTES:
                os.pread(fd, length - block_file.PAGE_BYTES, block_file.PAGE_BYTES)
            os.pread(fd, count, length + start)
        finally:
            os.close(fd)


def verify_payload(fd: int, offset: int, length: int, checksum: bytes, content: Hash | None = None) -> None:
    digest = block_file.PayloadChecksum()
    if digest_payload(digest, content, fd, offset, length) < length:
        raise BadBlock("payload cut short")
    if digest.digest() != checksum:
        raise BadBlock("payload checksum does not match")


def digest_payload(digest: xxhash.xxh3_128, content: Hash | None, fd: int, offset: int, length: int) -> int:
    """Add `length` bytes of a file to `digest` and `content`; returns how many the file had."""
    buffer = memoryview(bytearray(min(length, _VERIFY_BYTES)))
    left = length
    while left and (count := os.preadv(fd, [buffer[: min(left, len(buffer))]], offset)):
        digest.update(buffer[:count])
        if content is not None:
            content.update(buffer[:count])
        offset += count
        left -= count
    return length - left


def write_all(fd: int, pieces: Sequence[Buffer], offset: int) -> int:
    """Write all of `pieces` at `offset`; returns the number of bytes."""
    views = [memoryview(piece) for piece in pieces if len(piece)]
    total = 0
    while views:
        count = os.pwritev(fd, views[:512], offset + total)
        total += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views and count:
            views[0] = views[0][count:]
    return total
