"""The cache directory on disk: its layout, its lock, and the files in it. All methods block.

    <dir>/outrider-cache    version of the layout, and the lock: one process per directory
    <dir>/v2/aa/<name>      one file per block (see core/cache/block_file); the name is a hash of the block's identity
    <dir>/tmp/              blocks that are being written, and the socket of `http.control.lender`
    <dir>/index             snapshot of the index, present only between a clean stop and the next start
    <dir>/landed            the last snapshot, and the blocks that landed since: see `landed_blocks`
    <dir>/orders            orders of reads that the planner had learned at the last clean stop
    <dir>/pins              the pins
    <dir>/warmups           warm-ups that the last clean stop cut off
    <dir>/members           the members of the cluster
    <dir>/touched           names written through this proxy, whose blocks may carry older headers

A marker file that is empty, cut or otherwise damaged is written anew if the rest of the directory is this layout. The
snapshot is then dropped, so that the start scans the directory as after a power loss.

The files from `orders` on are written as <file>.part first: see `adapters/sealed_file`. No file outside this layout is
ever touched.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from outrider import pagecache
from outrider.adapters import sealed_file
from outrider.adapters.disk.block_io import FoundFile, file_name
from outrider.core.cache import block_file
from outrider.core.model import BlockKey

log = logging.getLogger(__name__)

_LAYOUT = b"outrider cache, layout 2\n"
_ANY_LAYOUT = re.compile(rb"outrider cache, layout [0-9]{1,9}\n")
_FOLDER = re.compile(r"[0-9a-f]{2}")
_NAME = re.compile(r"[0-9a-f]{32}")
_TMP_NAME = re.compile(r"[0-9a-f]{32}\.[0-9]+")
# A name that a start sweeps, and that no block has.
_PROBE = b"/" + b"0" * 32 + b".0"


class UnusableCacheDir(ValueError):
    """The directory cannot hold a cache; the message says why and what to do."""


def _is_a_link(path: Path) -> str:
    return f"cache directory {path.parent}: {path.name} is a link. Choose another --cache-dir."


def _close_to_others(folder: Path) -> None:
    """Make `folder` private: the cache directory may be open to all users, as an emptyDir is; its content is not."""
    if folder.is_symlink():
        raise UnusableCacheDir(_is_a_link(folder))
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        folder.chmod(0o700)


def _content(fd: int) -> bytes | None:
    """The begin of the file; None: the disk cannot read it."""
    try:
        return os.pread(fd, 256, 0)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None


def _is_plain(fd: int) -> bool:
    found = os.fstat(fd)
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


class BlockDir:
    """One cache directory, locked for this process from `open` to `close`. All methods block."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blocks = root / "v2"
        self._raw_blocks = os.fsencode(self.blocks.absolute())
        self.tmp = root / "tmp"
        self.snapshot = root / "index"
        self.landed = root / "landed"
        self.orders = root / "orders"
        self._raw_tmp = os.fsencode(self.tmp.absolute())
        self._marker = root / "outrider-cache"
        self._raw_marker = os.fsencode(self._marker)
        self.pins = root / "pins"
        self.warmups = root / "warmups"
        self.members = root / "members"
        self.touched = root / "touched"
        self._lock_fd = -1
        self.can_probe_memory = False
        """The kernel shows which files it opens without waiting for the disk: see `pagecache`."""
        self.stays_in_memory = False
        """See `pagecache.stays_in_memory`."""
        self.is_remote = False
        """Any call on a file may wait for another process or machine, whatever the kernel has in memory."""
        # Device and inode number of the marker file that this process has locked.
        self._locked = (-1, -1)
        self._holding = threading.Lock()
        self.missing: OSError | None = None
        """Why the directory could not be opened; None: it was."""
        self.changes = 0
        """How many times `hold` has found another directory in its place."""

    @classmethod
    def open(cls, root: Path) -> BlockDir:
        """Create or adopt the directory, and lock it.

        Raises:
            UnusableCacheDir: not writable, in use by another process, of another layout, or with a damaged marker among
                files that are no cache's.
        """
        self = cls(root)
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock()
            self.prepare()
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

    @classmethod
    def open_or_missing(cls, root: Path) -> BlockDir:
        """As `open`, but a disk that fails leaves the directory `missing`: `hold` takes it up once it is there."""
        try:
            return cls.open(root)
        except UnusableCacheDir as error:
            # Another process and other files there are mistakes of people, who want to know.
            cause = error.__cause__
            if not isinstance(cause, OSError) or isinstance(cause, BlockingIOError):
                raise
            return cls.missing_at(root, cause)

    @classmethod
    def missing_at(cls, root: Path, error: OSError) -> BlockDir:
        self = cls(root)
        self.missing = error
        return self

    def prepare(self) -> None:
        """Make the folders that a locked directory needs, and remove what the last process left. Raises OSError,
        UnusableCacheDir."""
        for folder in (self.blocks, self.tmp):
            folder.mkdir(exist_ok=True, mode=0o700)
            _close_to_others(folder)
        self._sweep_tmp()
        self._probe_kernel()

    def is_at(self, root: Path) -> bool:
        """Whether this is the directory at `root`."""
        with suppress(OSError):
            there = (root / self._marker.name).stat()
            return (there.st_dev, there.st_ino) == self._locked
        return False

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
                if self._lock_fd != old_fd and old_fd >= 0:
                    os.close(old_fd)
            self.changes += 1
            # The blocks may lie on another file system now.
            with suppress(OSError):
                self.blocks.mkdir(exist_ok=True, mode=0o700)
            self._probe_kernel()

    def _probe_kernel(self) -> None:
        is_local = pagecache.opens_at_once(self._raw_blocks)
        self.can_probe_memory = is_local and pagecache.knows(self._raw_blocks)
        self.stays_in_memory = pagecache.stays_in_memory(self._raw_blocks)
        self.is_remote = not (is_local or self.stays_in_memory)

    def _is_ours(self) -> bool:
        try:
            there = os.stat(self._raw_marker)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == self._locked

    def _lock(self) -> None:
        """Raises UnusableCacheDir, OSError; an earlier lock is then still held."""
        if self._marker.is_symlink():
            # It may lead to a file of somebody else, which must not be written.
            raise UnusableCacheDir(_is_a_link(self._marker))
        fd = os.open(self._marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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
        found = _content(fd)
        if found == _LAYOUT:
            return
        if found is not None and _ANY_LAYOUT.fullmatch(found):
            raise UnusableCacheDir(
                f"cache directory {self.root}: it is of another format ({self._marker} says "
                f"{found.decode().strip()!r}). Choose an empty directory with --cache-dir, or delete this one."
            )
        if found != b"" or self.blocks.exists():
            self._distrust(fd, found)
        os.ftruncate(fd, 0)
        os.pwrite(fd, _LAYOUT, 0)
        os.fsync(fd)

    def _distrust(self, fd: int, found: bytes | None) -> None:
        """The marker file is damaged; `found`: its content, None if it cannot be read. Without the snapshot the
        directory is scanned, as after a power loss.

        Raises UnusableCacheDir: the directory may belong to something else.
        """
        # A power loss leaves a file without its last bytes, or with NULs in their place.
        cut = found is not None and _LAYOUT.startswith(found.rstrip(b"\0"))
        if not (_is_plain(fd) and (cut or self._is_layout())):
            raise UnusableCacheDir(
                f"cache directory {self.root}: {self._marker} is no marker of a cache, and other files lie in the "
                "directory. Choose an empty directory with --cache-dir, or remove that file."
            )
        log.warning(
            "marker file of the cache directory was damaged, and is written anew",
            extra={"directory": str(self.root), "found": "unreadable" if found is None else repr(found[:64])},
        )
        self.snapshot.unlink(missing_ok=True)

    def _is_layout(self) -> bool:
        """The directory has blocks, and nothing that is not of this layout."""
        files = (self.snapshot, self.landed, self.orders, self.pins, self.warmups, self.members, self.touched)
        own = {path.name for path in (self._marker, self.blocks, self.tmp, *files, *map(sealed_file.part_of, files))}
        # mke2fs makes `lost+found` at the root of each file system.
        strange = {path.name for path in self.root.iterdir()} - own - {"lost+found"}
        folders = _directories(self.blocks)
        return not strange and bool(folders) and all(_FOLDER.fullmatch(folder.name) for folder in folders)

    def _sweep_tmp(self) -> None:
        for path in self.tmp.iterdir():
            if _TMP_NAME.fullmatch(path.name):
                path.unlink(missing_ok=True)
        for path in (self.snapshot, self.orders, self.pins, self.warmups, self.members, self.touched):
            sealed_file.part_of(path).unlink(missing_ok=True)

    def use_snapshot(self) -> None:
        """Take its name from the snapshot, also on the disk: after a power loss it would describe an older directory.
        From here on it only helps a scan."""
        self.snapshot.replace(self.landed)
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

    def raw_tmp_path_of(self, block: BlockKey, number: int) -> bytes:
        """A name in `tmp` for the file of a block that is being written."""
        return b"%s/%s.%d" % (self._raw_tmp, file_name(block).encode(), number)

    def create(self, path: bytes) -> int:
        """A new file in `tmp`, open for reading and writing."""
        self.hold()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            # The directory was emptied while in use, or its disk came back: it is used again without a restart.
            self.tmp.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(path, flags, 0o600)

    def put(self, path: bytes, block: BlockKey) -> None:
        """Rename `path` into the block's place. As long as `path` exists, the directory is the one that `create`
        held."""
        final = self.raw_path_of(block)
        try:
            os.rename(path, final)
        except FileNotFoundError:
            self.hold()
            self.path_of(block).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.rename(path, final)

    def remove(self, path: bytes) -> None:
        self.hold()
        with suppress(FileNotFoundError):
            os.unlink(path)

    def free_bytes(self) -> int:
        self.hold()
        return self.space()[1]

    def space(self) -> tuple[int, int]:
        """The bytes of the file system, and those that are free. Raises OSError."""
        found = os.statvfs(self.root)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    @property
    def device(self) -> int:
        """The number of the file system that has the directory."""
        return self._locked[0]

    def probe(self) -> None:
        """Write to the disk, and remove what was written. Raises OSError."""
        path = self._raw_tmp + _PROBE
        with suppress(FileNotFoundError):
            os.unlink(path)
        fd = self.create(path)
        try:
            os.pwrite(fd, bytes(block_file.PAGE_BYTES), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
            self.remove(path)

    def names(self) -> Iterator[str]:
        """The names of all files that may be of blocks, in no particular order."""
        for folder in _directories(self.blocks):
            with os.scandir(folder) as entries:
                yield from [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    def found(self, names: Iterable[str] | None = None) -> Iterator[FoundFile]:
        """Block files with their size on disk. `names` None: all. A look takes ten times as long as the name."""
        for name in filter(_NAME.fullmatch, self.names() if names is None else names):
            place = f"{self.blocks}/{name[:2]}/{name}"
            with suppress(FileNotFoundError):
                found = os.lstat(place)
                pages = -(-found.st_size // block_file.PAGE_BYTES)
                yield FoundFile(place, pages * block_file.PAGE_BYTES, found.st_mtime)

    def changed_at(self) -> float:
        """When a file came to the blocks, or left them, the last time, in seconds since 1970; 0: never."""
        return max((folder.stat().st_mtime for folder in _directories(self.blocks)), default=0.0)


def _directories(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
