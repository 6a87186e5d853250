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
_ANYWHERE = -1  # the path is absolute


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
    """Up to `count` bytes from a file's beginning; None: the disk would have to be asked, or fails. A file system that
    cannot say is taken to be fast: a tmpfs is one. Source: preadv2(2), RWF_NOWAIT."""
    into = bytearray(count)
    try:
        try:
            got = os.preadv(fd, (into,), 0, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            got = os.preadv(fd, (into,), 0)
    except OSError:
        return None
    return bytes(memoryview(into)[:got])


def is_in_memory(fd: int, offset: int) -> bool:
    """Whether the page at `offset` is. Only a look: a read that would not wait (RWF_NOWAIT) has the kernel bring the
    page, and finds it there where the disk is fast. Source: mincore(2), which says yes where it may not tell."""
    resident = ctypes.c_ubyte(1)
    try:
        # Private, and so writable: ctypes takes the address of no other.
        page = mmap.mmap(
            fd, 1, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset - offset % mmap.PAGESIZE
        )
    except (OSError, ValueError):
        return True  # too short a file, which its reader will say
    with page:
        first = ctypes.c_ubyte.from_buffer(page)
        _libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(1), ctypes.byref(resident))
        del first  # or the map cannot be closed
    return bool(resident.value & 1)
