"""The messages between the kernel and a FUSE file system, as far as a read-only one needs them.

Source: include/uapi/linux/fuse.h, version 7.31 (Linux 5.4). Numbers are in the machine's byte order.
"""

from __future__ import annotations

import errno
import stat
import sys
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

MAJOR, MINOR = 7, 31
READ_BYTES_MAX = 1024 * 1024
"""The kernel asks for at most so much with one READ."""
_PAGE_BYTES = 4096
# A file system that takes no writes still must offer a page.
_WRITE_BYTES_MAX = _PAGE_BYTES
REQUEST_BYTES_MAX = 128 * 1024
"""The longest request: a batch of FORGETs."""

_ASYNC_READ = 1 << 0
# Pages of a file are dropped when its time or size changes.
_AUTO_INVAL_DATA = 1 << 12
_DO_READDIRPLUS = 1 << 13
_PARALLEL_DIROPS = 1 << 18
_MAX_PAGES = 1 << 22
_FLAGS = _ASYNC_READ | _AUTO_INVAL_DATA | _DO_READDIRPLUS | _PARALLEL_DIROPS | _MAX_PAGES
# How many READs ahead of a reader the kernel has under way.
_BACKGROUND = 128

HEADER = Struct("=IIQQIIIHH")
READ = Struct("=QQIIQII")
_OUT = Struct("=IiQ")
_INIT_IN = Struct("=IIII")
_INIT_OUT = Struct("=IIIIHHIIHHI28x")
_ATTR = Struct("=QQQQQQIIIIIIIIII")
_ENTRY = Struct("=QQQQII")
_ATTR_OUT = Struct("=QII")
_DIRENT = Struct("=QQII")
_OPENED = Struct("=QII")
_STATFS = Struct("=QQQQQIIII24x")
_INVALID_INODE = Struct("=Qqq")
_FORGOTTEN = Struct("=QQ")

OUT_BYTES = _OUT.size
_NOTIFY_INVAL_INODE = 2
_FILES_MAX = 1 << 40
NAME_BYTES_MAX = 255
"""The longest name in a directory."""


class Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    STATFS = 17
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    READDIRPLUS = 44


class Attributes(NamedTuple):
    """Sizes in bytes, times in nanoseconds."""

    number: int
    is_directory: bool
    size: int
    time_ns: int


class Owner(NamedTuple):
    uid: int
    gid: int


def reply_head(unique: int, body_bytes: int, error: int = 0) -> bytes:
    """`error`: an errno; 0: there is none."""
    return _OUT.pack(OUT_BYTES + body_bytes, -error, unique)


def init_reply(request: memoryview) -> bytes:
    """Raises OSError: this kernel speaks another version."""
    major, minor, readahead, flags = _INIT_IN.unpack_from(request)
    if major != MAJOR or minor < MINOR:
        raise OSError(errno.EPROTO, f"the kernel speaks version {major}.{minor} of FUSE, and {MAJOR}.{MINOR} is needed")
    return _INIT_OUT.pack(
        MAJOR, MINOR, max(readahead, READ_BYTES_MAX), flags & _FLAGS, _BACKGROUND, _BACKGROUND * 3 // 4,
        _WRITE_BYTES_MAX, 1, READ_BYTES_MAX // _PAGE_BYTES, 0, 0,
    )  # fmt: skip


def entry_reply(attributes: Attributes, owner: Owner, valid_s: float, attributes_valid_s: float) -> bytes:
    """How long the kernel believes the name, and how long the attributes."""
    whole, rest = _seconds(valid_s)
    attributes_whole, attributes_rest = _seconds(attributes_valid_s)
    head = _ENTRY.pack(attributes.number, 0, whole, attributes_whole, rest, attributes_rest)
    return head + _packed(attributes, owner)


def absent_reply(valid_s: float) -> bytes:
    """There is no such name, and the kernel may believe that for `valid_s`."""
    whole, rest = _seconds(valid_s)
    return _ENTRY.pack(0, 0, whole, 0, rest, 0) + bytes(_ATTR.size)


def attributes_reply(attributes: Attributes, owner: Owner, valid_s: float) -> bytes:
    whole, rest = _seconds(valid_s)
    return _ATTR_OUT.pack(whole, rest, 0) + _packed(attributes, owner)


def opened_reply(handle: int) -> bytes:
    return _OPENED.pack(handle, 0, 0)


def statfs_reply(file_bytes: int) -> bytes:
    """Nothing is free: it is read-only. `file_bytes`: of all files that are known."""
    blocks = -(-file_bytes // _PAGE_BYTES)
    return _STATFS.pack(blocks, 0, 0, _FILES_MAX, 0, _PAGE_BYTES, NAME_BYTES_MAX, _PAGE_BYTES, 0)


def directory_entry(name: bytes, attributes: Attributes, offset: int, entry: bytes | None) -> bytes:
    """`offset`: that of the next entry. `entry`: an `entry_reply` for READDIRPLUS; None: READDIR."""
    kind = stat.S_IFDIR if attributes.is_directory else stat.S_IFREG
    dirent = _DIRENT.pack(attributes.number, offset, len(name), kind >> 12) + name
    return (entry or b"") + dirent + bytes(-len(dirent) % 8)


def forgotten(op: int, number: int, body: memoryview) -> list[tuple[int, int]]:
    """The nodes of a FORGET, or of a batch, and how many lookups of each are forgotten."""
    if op == Op.FORGET:
        return [(number, int.from_bytes(body[:8], sys.byteorder))]
    count = int.from_bytes(body[:4], sys.byteorder)
    return list(_FORGOTTEN.iter_unpack(body[8 : 8 + count * _FORGOTTEN.size]))


def named(body: memoryview) -> int:
    """The handle or the request that a notice is about."""
    return int.from_bytes(body[:8], sys.byteorder)


def outdated_attributes(number: int) -> bytes:
    """A notice of ours: the kernel's attributes of a file are out of date.

    The negative offset leaves its pages alone: to drop them the kernel waits for the READs that are under way, and our
    write of this notice would wait with it.
    """
    body = _INVALID_INODE.pack(number, -1, 0)
    return _OUT.pack(OUT_BYTES + len(body), _NOTIFY_INVAL_INODE, 0) + body


def _packed(attributes: Attributes, owner: Owner) -> bytes:
    number, is_directory, size, time_ns = attributes
    seconds, rest = divmod(time_ns, 1_000_000_000)
    mode, links = (stat.S_IFDIR | 0o555, 2) if is_directory else (stat.S_IFREG | 0o444, 1)
    return _ATTR.pack(
        number, size, -(-size // 512), seconds, seconds, seconds, rest, rest, rest, mode, links, *owner, 0,
        _PAGE_BYTES, 0,
    )  # fmt: skip


def _seconds(valid_s: float) -> tuple[int, int]:
    # The kernel counts in ticks of 64 bits: a year is for ever.
    whole, rest = divmod(min(max(valid_s, 0.0), 365 * 86400.0), 1)
    return int(whole), int(rest * 1e9)
