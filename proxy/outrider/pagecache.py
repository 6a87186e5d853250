"""What the kernel has in memory, asked without a wait for the disk."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

_libc = ctypes.CDLL(None)
# Holds the interpreter: what cannot wait is over before another thread would have taken it.
_at_once = ctypes.PyDLL(None).syscall
_at_once.restype = ctypes.c_long
_at_once.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)

# Source: openat2(2), <linux/openat2.h>; one number on all architectures that Linux still gets new ones for.
_OPENAT2 = 437
_RESOLVE_CACHED = 0x20


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW = _OpenHow(os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0, _RESOLVE_CACHED)
_HOW_AT, _HOW_BYTES = ctypes.addressof(_HOW), ctypes.sizeof(_HOW)
# Source: statfs(2), <linux/magic.h>: ext2 to ext4, XFS, btrfs, tmpfs, overlayfs, F2FS, bcachefs, ZFS.
_LOCAL = frozenset((
    0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010, 0xCA451A4E, 0x2FC12FC1,
))  # fmt: skip
_ANYWHERE = -1  # the path is absolute
# The kernel reads files ahead, and drops them, in runs of this size and more: one page tells of its run.
_RUN_BYTES = 128 * 1024
_probe = [bytearray(1)]


def opens_at_once(path: bytes) -> bool:
    """Whether on that file system to open a file is no more than to find it. One that lives elsewhere (FUSE, virtiofs,
    NFS) asks there, and may wait, where the kernel knows the way. Source: statfs(2)."""
    told = (ctypes.c_long * 64)()
    return _libc.statfs(ctypes.c_char_p(path), told) == 0 and told[0] & 0xFFFFFFFF in _LOCAL


def open_known(path: bytes) -> int | None:
    """A descriptor of that file to read from, where the kernel knows the way to it; None: it would have to ask the
    disk, cannot say (before Linux 5.12, or forbidden by seccomp), or there is no such file. `path` is absolute."""
    fd = int(_at_once(_OPENAT2, _ANYWHERE, path, _HOW_AT, _HOW_BYTES))
    return fd if fd >= 0 else None


def knows(path: bytes) -> bool:
    """Whether the kernel knows the way to that file, and says so."""
    fd = open_known(path)
    if fd is not None:
        os.close(fd)
    return fd is not None


def read_known(fd: int, count: int) -> bytes | None:
    """Up to `count` bytes from a file's beginning; None: the disk would have to be asked, or fails."""
    into = bytearray(count)
    try:
        got = _read_at_once(fd, into, 0)
    except OSError:
        return None
    return None if got is None else bytes(memoryview(into)[:got])


def read_in_memory(fd: int, offset: int, into: memoryview) -> bool:
    """Fill `into` from the file, if that would not wait for the disk.

    Raises OSError: the disk fails.
    """
    return _read_at_once(fd, into, offset) == len(into)


def _read_at_once(fd: int, into: bytearray | memoryview, offset: int) -> int | None:
    """None: not without a wait. Source: preadv2(2), RWF_NOWAIT."""
    try:
        return os.preadv(fd, (into,), offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    # Such as a container's own layer (overlayfs).
    return os.preadv(fd, (into,), offset) if is_in_memory(fd, offset, len(into)) else None


def in_memory(fd: int, offset: int, count: int) -> bool:
    """Whether `sendfile` of these bytes would not wait for the disk, as far as one page in each run tells.

    Raises OSError: the disk fails.
    """
    try:
        last = offset + count - 1
        for position in range(offset, last + 1, _RUN_BYTES):
            os.preadv(fd, _probe, position, os.RWF_NOWAIT)
        if position // _RUN_BYTES != last // _RUN_BYTES:
            os.preadv(fd, _probe, last, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return is_in_memory(fd, offset, count)
    return True


def is_in_memory(fd: int, offset: int, count: int = 1) -> bool:
    """Whether all pages of these bytes are. Only a look: a read that would not wait (RWF_NOWAIT) has the kernel bring
    the page, and finds it there where the disk is fast. Source: mincore(2), which says yes where it may not tell."""
    begin = offset - offset % mmap.PAGESIZE
    length = max(1, offset + count - begin)
    resident = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    try:
        # Private, and so writable: ctypes takes the address of no other.
        pages = mmap.mmap(fd, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=begin)
    except (OSError, ValueError):
        return True  # too short a file, which its reader will say
    with pages:
        first = ctypes.c_ubyte.from_buffer(pages)
        told = _libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), resident)
        del first  # or the map cannot be closed
    return told != 0 or all(one & 1 for one in resident)
