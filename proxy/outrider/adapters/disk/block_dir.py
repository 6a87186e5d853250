"""The cache directory on disk: its layout, its lock, and the blocking file work that `block_store` runs in threads.

    <dir>/outrider-cache    version of the layout, and the lock: one process per directory
    <dir>/v2/aa/<name>      one file per block (see core/cache/block_file); the name is a hash of the block's identity
    <dir>/tmp/              blocks that are being written
    <dir>/index             snapshot of the index, present only between a clean stop and the next start
    <dir>/orders            orders of reads that the planner had learned at the last clean stop
    <dir>/pins              the pins
    <dir>/warmups           warm-ups that the last clean stop cut off
    <dir>/touched           names written through this proxy, whose blocks may carry older headers

The last five are written as <file>.part first: see `adapters/sealed_file`. No file outside this layout is ever touched.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import xxhash

from outrider import pagecache
from outrider.adapters import sealed_file
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BadBlock, BlockMeta
from outrider.core.model import BlockKey
from outrider.ports import Buffer

_LAYOUT = "outrider cache, layout 2\n"
_NAME = re.compile(r"[0-9a-f]{32}")
_TMP_NAME = re.compile(r"[0-9a-f]{32}\.[0-9]+")
# A disk that takes longer for one operation counts as failed (usually it is on a network): its waiters go on with the
# origin. The thread comes back when the disk answers.
PATIENCE_S = 10.0
_VERIFY_BYTES = 1024 * 1024


class UnusableCacheDir(ValueError):
    """The directory cannot hold a cache; the message says why and what to do."""


def _close_to_others(folder: Path) -> None:
    """Make `folder` private: the cache directory may be open to all users, as an emptyDir is; its content is not."""
    if folder.is_symlink():
        raise UnusableCacheDir(f"cache directory {folder.parent}: {folder.name} is a link. Choose another --cache-dir.")
    stat = folder.stat()
    if stat.st_uid == os.geteuid() and stat.st_mode & 0o077:
        folder.chmod(0o700)


def file_name(block: BlockKey) -> str:
    return blake2b(block.version_id + block.index.to_bytes(8, "big"), digest_size=16).hexdigest()


class BlockDir:
    """One cache directory, locked for this process from `open` to `close`. All methods block."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blocks = root / "v2"
        self._raw_blocks = os.fsencode(self.blocks.absolute())
        self.tmp = root / "tmp"
        self.snapshot = root / "index"
        self.orders = root / "orders"
        self._marker = root / "outrider-cache"
        self.pins = root / "pins"
        self.warmups = root / "warmups"
        self.touched = root / "touched"
        self._lock_fd = -1
        self.can_probe_memory = False
        """The kernel can tell which files it opens without waiting for the disk: see `pagecache`."""
        # Device and inode number of the marker file that this process has locked.
        self._locked = (-1, -1)
        self._holding = threading.Lock()

    @classmethod
    def open(cls, root: Path) -> BlockDir:
        """Create or adopt the directory, and lock it.

        Raises:
            UnusableCacheDir: not writable, in use by another process, or of another layout.
        """
        self = cls(root)
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock()
            for folder in (self.blocks, self.tmp):
                folder.mkdir(exist_ok=True, mode=0o700)
                _close_to_others(folder)
            self._sweep_tmp()
            self._probe_kernel()
        except OSError as error:
            self.close()
            raise UnusableCacheDir(
                f"cache directory {root}: {error.strerror or error}. Make it writable for this user, "
                "or choose another one with --cache-dir (or `--cache-dir memory`)."
            ) from error
        except UnusableCacheDir:
            self.close()
            raise
        return self

    def snapshot_bytes(self) -> int:
        """The length of the last stop's snapshot; 0: there is none."""
        try:
            return self.snapshot.stat().st_size
        except OSError:
            return 0

    def hold(self) -> None:
        """Make sure that this process has locked the directory that lies at `root` now.

        The directory may have been removed and made again, or another disk mounted in its place. The old lock is then
        on a file that is gone, and a new one is taken.

        Raises:
            OSError: another process has locked it, or it does not exist.
        """
        if self._is_ours():
            return
        with self._holding:
            if self._is_ours():
                return
            old_fd = self._lock_fd
            try:
                self._lock()
            except UnusableCacheDir as error:
                raise BlockingIOError(errno.EWOULDBLOCK, str(error)) from error
            finally:
                if self._lock_fd != old_fd:
                    os.close(old_fd)
            # The blocks may lie on another file system now.
            with suppress(OSError):
                self.blocks.mkdir(exist_ok=True, mode=0o700)
            self._probe_kernel()

    def _probe_kernel(self) -> None:
        self.can_probe_memory = pagecache.opens_at_once(self._raw_blocks) and pagecache.knows(self._raw_blocks)

    def _is_ours(self) -> bool:
        try:
            there = self._marker.stat()
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == self._locked

    def _lock(self) -> None:
        """Raises UnusableCacheDir, OSError; an earlier lock is then still held."""
        fd = os.open(self._marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(fd)
            ours = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        self._lock_fd, self._locked = fd, (ours.st_dev, ours.st_ino)

    def _take(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise UnusableCacheDir(
                f"cache directory {self.root}: another process uses it. "
                "Stop that one, or give each its own --cache-dir."
            ) from error
        found = os.pread(fd, 256, 0).decode("utf-8", "replace")
        if not found:
            os.pwrite(fd, _LAYOUT.encode(), 0)
        elif found != _LAYOUT:
            raise UnusableCacheDir(
                f"cache directory {self.root}: it is of another format ({self._marker} says {found.strip()!r}). "
                "Choose an empty directory with --cache-dir, or delete this one."
            )

    def _sweep_tmp(self) -> None:
        for path in self.tmp.iterdir():
            if _TMP_NAME.fullmatch(path.name):
                path.unlink(missing_ok=True)
        for path in (self.snapshot, self.orders, self.pins, self.warmups, self.touched):
            sealed_file.part_of(path).unlink(missing_ok=True)

    def drop_snapshot(self) -> None:
        """Remove the snapshot, also from the disk: after a power loss it would describe an older directory."""
        self.snapshot.unlink()
        sealed_file.sync_directory(self.root)

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def path_of(self, block: BlockKey) -> Path:
        # 256 directories. With a second level nearly every block of a new cache needed a directory of its own: a rename
        # that fails, two mkdirs, and a second rename.
        name = file_name(block)
        return self.blocks / name[:2] / name

    def raw_path_of(self, block: BlockKey) -> bytes:
        """The absolute path as bytes, for system calls: making a `Path` takes longer than opening the file."""
        name = file_name(block)
        return b"%s/%s/%s" % (self._raw_blocks, name[:2].encode(), name.encode())

    def create(self, path: Path) -> int:
        """A new file in `tmp`, open for reading and writing."""
        self.hold()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            # The directory was emptied while in use, or its disk came back: it is used again without a restart.
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(path, flags, 0o600)

    def put(self, path: Path, final: Path) -> None:
        """Rename `path` into place. As long as `path` exists, the directory is the one that `create` held."""
        try:
            path.rename(final)
        except FileNotFoundError:
            self.hold()
            final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.rename(final)

    def remove(self, path: Path) -> None:
        self.hold()
        path.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        self.hold()
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_blocks * stat.f_frsize

    def walk(self) -> Iterator[FoundFile]:
        """All block files with their size on disk, in no particular order."""
        for folder in _directories(self.blocks):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        stat = entry.stat(follow_symlinks=False)
                        pages = -(-stat.st_size // block_file.PAGE_BYTES)
                        yield FoundFile(Path(entry.path), pages * block_file.PAGE_BYTES, stat.st_mtime)


def _directories(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A block file seen by the scan, before its header was read."""

    path: Path
    disk_bytes: int
    modified_at: float


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
    if file_name(meta.key) != path.name:
        raise BadBlock("lies under another block's name")
    return meta


def open_block(path: Path, block: BlockKey, verify: bool, *, keep_pages: bool = True) -> tuple[int, int]:
    """An open fd and the payload's offset; with `verify` the whole payload was read and its checksum is right.

    `keep_pages` False: pages that had to be read from the disk are dropped again, to leave memory to readers' pages.

    Raises:
        BadBlock: the file does not hold this block.
        OSError: the disk failed; FileNotFoundError: the file is gone.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # Looked up before the header is read: the kernel's own read-ahead starts there.
        came_in = not keep_pages and not pagecache.is_in_memory(fd, block_file.PAGE_BYTES)
        meta, checksum, offset = read_header(fd)
        if meta.key != block:
            raise BadBlock("holds another block")
        if verify:
            verify_payload(fd, offset, meta.extent.length, checksum)
            if came_in:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except BaseException:
        os.close(fd)
        raise
    return fd, offset


def open_known_block(path: bytes, meta: BlockMeta) -> tuple[int, int] | None:
    """Like `open_block` for a block that was verified before, if neither path nor header must come from the disk.

    None: they must, or the file holds another block; `open_block` then tells which.
    """
    fd = pagecache.open_known(path)
    if fd is None:
        return None
    header = block_file.Header(meta)
    if header.begins(pagecache.read_known(fd, header.length)):
        return fd, header.length
    os.close(fd)
    return None


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


def verify_payload(fd: int, offset: int, length: int, checksum: bytes) -> None:
    digest = block_file.PayloadChecksum()
    if digest_payload(digest, fd, offset, length) < length:
        raise BadBlock("payload cut short")
    if digest.digest() != checksum:
        raise BadBlock("payload checksum does not match")


def digest_payload(digest: xxhash.xxh3_128, fd: int, offset: int, length: int) -> int:
    """Add `length` bytes of a file to `digest`; returns how many the file had."""
    buffer = memoryview(bytearray(min(length, _VERIFY_BYTES)))
    left = length
    while left and (count := os.preadv(fd, [buffer[: min(left, len(buffer))]], offset)):
        digest.update(buffer[:count])
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


_MEMORY_PARENT = Path("/dev/shm")  # noqa: S108 - a tmpfs is the point: `--cache-dir memory`
_MEMORY_PREFIX = "outrider-"


def make_memory_dir() -> Path:
    """Create a directory on the tmpfs. Directories of killed processes are removed first: their lock is free.

    Raises:
        UnusableCacheDir: there is no writable tmpfs.
    """
    try:
        for path in _MEMORY_PARENT.glob(_MEMORY_PREFIX + "*"):
            _remove_if_orphaned(path)
        return Path(tempfile.mkdtemp(prefix=_MEMORY_PREFIX, dir=_MEMORY_PARENT))
    except OSError as error:
        raise UnusableCacheDir(f"--cache-dir memory needs a writable {_MEMORY_PARENT}: {error.strerror}") from error


def remove_memory_dir(path: Path) -> None:
    assert path.parent == _MEMORY_PARENT
    assert path.name.startswith(_MEMORY_PREFIX)
    shutil.rmtree(path, ignore_errors=True)


def _remove_if_orphaned(path: Path) -> None:
    try:
        fd = os.open(path / "outrider-cache", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # another program's, or just being made
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_memory_dir(path)
    except OSError:
        pass  # the lock is held: its process runs
    finally:
        os.close(fd)
