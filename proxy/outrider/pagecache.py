"""The kernel's page cache: reads files, and looks whether bytes are in memory, without a wait for the disk."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

from outrider.core.memo import Memo

_libc = ctypes.CDLL(None)
# Called with the GIL held: a call that cannot wait ends before another thread could have taken the GIL.
_at_once = ctypes.PyDLL(None).syscall
_at_once.restype = ctypes.c_long
_at_once.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)

# Source: openat2(2), <linux/openat2.h>. New system calls have the same number on all architectures.
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
# Source: <linux/magic.h>: tmpfs, ramfs.
_MEMORY = frozenset((0x01021994, 0x858458F6))
_SWAPS = Path("/proc/swaps")
_ANYWHERE = -1  # the path is absolute
# The kernel reads ahead and drops pages in runs of at least this size, so one page stands for its run.
_RUN_BYTES = 128 * 1024
_probe = [bytearray(1)]
_devices: Memo[int, bool] = Memo(64)


def opens_at_once(path: bytes) -> bool:
    """Whether opening a file on this file system takes no more than a lookup. A file system that lives elsewhere (FUSE,
    virtiofs, NFS) may ask there and wait, even if the kernel has the path cached. Source: statfs(2)."""
    return _kind_of(path) in _LOCAL


def stays_in_memory(path: bytes) -> bool:
    """Whether no read of a file on this file system waits: a tmpfs, and no swap space on this machine.

    A tmpfs does not support RWF_NOWAIT, and `mincore` costs as much as all the rest of a small hit.
    """
    return _kind_of(path) in _MEMORY and not _has_swap()


def _kind_of(path: bytes) -> int | None:
    """The magic number of the file system; None: it is not known. Source: statfs(2)."""
    statfs = (ctypes.c_long * 64)()
    return statfs[0] & 0xFFFFFFFF if _libc.statfs(ctypes.c_char_p(path), statfs) == 0 else None


def _has_swap() -> bool:
    """Source: proc_swaps(5): a line of titles, and one for each swap space."""
    try:
        return len(_SWAPS.read_bytes().splitlines()) > 1
    except OSError:
        return True


def open_known(path: bytes) -> int | None:
    """A descriptor for reading, if the kernel has the path cached. None: the kernel would have to ask the disk, does
    not know the call (before Linux 5.12, or seccomp forbids it), or there is no such file. `path` is absolute."""
    fd = int(_at_once(_OPENAT2, _ANYWHERE, path, _HOW_AT, _HOW_BYTES))
    return fd if fd >= 0 else None


def knows(path: bytes) -> bool:
    """Whether `open_known` can open the file."""
    fd = open_known(path)
    if fd is not None:
        os.close(fd)
    return fd is not None


def read_known(fd: int, count: int) -> bytes | None:
    """Up to `count` bytes from the beginning of a file. None: they are not in memory, or the disk fails."""
    into = bytearray(count)
    try:
        got = _read_at_once(fd, into, 0)
    except OSError:
        return None
    return None if got is None else bytes(memoryview(into)[:got])


def read_in_memory(fd: int, offset: int, into: memoryview, *, stays: bool = False) -> bool:
    """Fill `into` from the file, if that takes no wait for the disk. Returns whether it did. `stays`: see
    `stays_in_memory`.

    Raises OSError: the disk fails.
    """
    if stays:
        return os.preadv(fd, (into,), offset) == len(into)
    return _read_at_once(fd, into, offset) == len(into)


def _read_at_once(fd: int, into: bytearray | memoryview, offset: int) -> int | None:
    """The number of bytes read. None: the read would wait. Source: preadv2(2), RWF_NOWAIT."""
    try:
        return os.preadv(fd, (into,), offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    # Some file systems do not support RWF_NOWAIT, such as overlayfs, a container's own layer.
    return os.preadv(fd, (into,), offset) if is_in_memory(fd, offset, len(into)) else None


def in_memory(fd: int, offset: int, count: int) -> bool:
    """Whether `sendfile` of these bytes takes no wait for the disk. One page of each run is looked at.

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
        return fd_stays_in_memory(fd) or is_in_memory(fd, offset, count)
    return True


def fd_stays_in_memory(fd: int) -> bool:
    """As `stays_in_memory`, for an open file."""
    device = os.fstat(fd).st_dev
    if (stays := _devices.get(device)) is None:
        stays = stays_in_memory(b"/proc/self/fd/%d" % fd)
        _devices.put(device, stays)
    return stays


def is_in_memory(fd: int, offset: int, count: int = 1) -> bool:
    """Whether all pages of these bytes are in memory. It only looks, whereas a read with RWF_NOWAIT makes the kernel
    fetch the page, and with a fast disk finds it there. Source: mincore(2), which says yes where it may not answer."""
    begin = offset - offset % mmap.PAGESIZE
    length = max(1, offset + count - begin)
    resident = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    try:
        # A private map is writable, and ctypes takes the address of writable memory only.
        pages = mmap.mmap(fd, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=begin)
    except (OSError, ValueError):
        return True  # the file is too short: the read will report it
    with pages:
        first = ctypes.c_ubyte.from_buffer(pages)
        answer = _libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), resident)
        del first  # the map cannot be closed while this exists
    return answer != 0 or all(page & 1 for page in resident)
