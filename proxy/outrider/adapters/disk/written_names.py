"""Records names that were written through this proxy while blocks of them may be on disk.

The blocks of such a name may be those of its older version, or carry its headers. A start after a crash needs the
names; after a clean stop the snapshot says the same.

Lines of JSON: a head, then `[bucket, key]`, or `[bucket]` for all objects of it. An empty list stands between the names
that the start kept and those that were noted since: their writes may be under way at a crash. There is no fsync. A
power loss may take the last lines, so the head holds the boot id of the machine: without a file that is complete and of
this boot, any name may have been written.

Each of several disks has its own file, with all names. The head then has the run, too: a disk that was away during the
last run, or a part of it, lacks the names of that time.

The file of a member of a cluster is of another version than that of a proxy alone, which does not take it for complete:
names that other members wrote are not in it, and blocks received from them have the time of their transfer.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from outrider.adapters import sealed_file
from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.adapters.sealed_file import json_line
from outrider.core.model import ObjectRef
from outrider.core.s3.operation import without_tenant
from outrider.ports import Name

log = logging.getLogger(__name__)

# This many names take some 20 MB in memory, and a quarter of a second at a start.
NAMES_MAX = 100_000
# NAMES_MAX names take less. A file that is cut here fails to parse.
_BYTES_MAX = 1024 * 1024 * 1024
_HEAD_BYTES_MAX = 1024
_OF_MEMBER, _OF_ONE_ALONE = 1, 2


class Run(NamedTuple):
    """The runs of a proxy with several disks are numbered, each with a random text beside the number."""

    number: int
    tag: str


class Runs(NamedTuple):
    """`last`: the latest run that any of the disks has seen; None: it is not known. `this`: the run that begins."""

    last: Run | None
    this: Run

    @classmethod
    def of(cls, directories: Iterable[BlockDir]) -> Runs:
        seen = {run for directory in directories if (run := _run_in(directory)) is not None}
        number = max((run.number for run in seen), default=0)
        # With two of one number, each was without the other's disks.
        latest = [run for run in seen if run.number == number]
        return cls(latest[0] if len(latest) == 1 else None, Run(number + 1, uuid.uuid4().hex))


class WrittenNamesFile:
    """Invariant: as long as the file exists, it holds the name of each write that was answered."""

    def __init__(
        self, directory: BlockDir, work: DiskThreads, *, is_alone: bool = True, runs: Runs | None = None
    ) -> None:
        """`is_alone` False: of a member of a cluster. `runs` None: there is one disk."""
        self._directory = directory
        self._work = work
        self._lock = threading.Lock()
        version = _OF_ONE_ALONE if is_alone else _OF_MEMBER
        self._head = _head(version, None if runs is None else runs.this)
        self.is_current = runs is None or (runs.last is not None and _run_in(directory) == runs.last)
        """The disk was there during the last run: what it says of its end holds."""
        last = self._head if runs is None else _head(version, runs.last)
        kept, recent, self._file = _load(directory.touched, last) if self.is_current else ([], [], None)
        self._found = None if self._file is None else {_without_tenant(name) for name in (*kept, *recent)}
        self.recent: Sequence[Name] = recent
        """The names that the last process noted, oldest first."""
        # Names that this process has written to the file. Without a valid file they wait here for `settle`.
        self._names: set[Name] = set()
        self._lost = self._gone = False
        self._late: asyncio.Future[OSError | None] | None = None
        self._ending = self._void = False
        self.is_whole = False
        """The start has indexed all blocks: only objects in the version cache have blocks."""

    def has(self, ref: ObjectRef) -> bool:
        """Whether the object may have been written after its blocks were. Used until `settle`."""
        # A name with a tenant may have been written by another one, or without one: only the bare name has the blocks.
        return self._found is None or ":" in ref.bucket or ref in self._found or ref.bucket in self._found

    def carry(self, names: Iterable[Name]) -> None:
        """Their writes may be under way: `settle` notes these names as if this process had written them."""
        with self._lock:
            self._names.update(names)

    async def note(self, names: Sequence[Name]) -> None:
        """Record `names`. When this returns they outlive this process, or the file is given up.

        A disk that takes too long is counted and logged, and the write goes on.
        """
        if not self._ending and (self._gone or (not self._lost and self._names.issuperset(names))):
            return
        if self._work.is_unreachable or (self._late is not None and not self._late.done()):
            self._lost = True
            return
        job = self._work.begin(self._note, names)
        error: OSError | None
        try:
            async with asyncio.timeout(disk_threads.PATIENCE_S):
                error = await asyncio.shield(job)
        except TimeoutError as late:
            self._late, error = job, late
        if error is not None:
            self._work.failed("note", error)

    def _note(self, names: Sequence[Name]) -> OSError | None:
        return self._written(names, self._append)

    def settle(self, names: set[ObjectRef]) -> OSError | None:
        """After the start has indexed all blocks: keep only `names`, the objects whose blocks are not to be believed.

        Names without blocks are left out from here on. Blocks; returns the error of the disk, if any.
        """
        self.is_whole, self._found = True, set()
        return self._written(names, self._write_anew)

    def give_up(self) -> OSError | None:
        """The disk may lack names: after a crash none of its versions is believed. As `drop_if_lost`."""
        self.is_whole, self._found, self._lost, self._gone = True, set(), True, False
        return self.drop_if_lost()

    def drop_if_lost(self) -> OSError | None:
        """Remove the file if names are missing in it. Blocks. Returns an error if it could not be removed."""
        with self._lock:
            self._drop_if_lost()
            is_left = self._lost and not self._gone
        return OSError(errno.EIO, "the notes of writes cannot be removed") if is_left else None

    def _written(self, names: Collection[Name], write: Callable[[Iterable[Name]], None]) -> OSError | None:
        """Call `write`, and return its error. After an error, or beyond the bound, the file is removed."""
        failed = None
        with self._lock:
            self._lost |= len(self._names) + len(names) > NAMES_MAX
            try:
                if self._ending:
                    self._void = True
                    self._directory.snapshot.unlink(missing_ok=True)
                if not self._lost:
                    self._directory.hold()
                    write(names)
            except OSError as error:
                self._lost, failed = True, error
            self._drop_if_lost()
        return failed

    def _append(self, names: Iterable[Name]) -> None:
        self._names.update(names)
        if self._file is None:
            return
        # The file is never created here: in a directory that was made anew it would lack the earlier names.
        with open(self._directory.touched, "r+b", opener=_no_link) as file:
            if _identity(file) != self._file:
                raise OSError(errno.ESTALE, "another file is in its place")
            file.seek(0, os.SEEK_END)
            file.write(_lines(names))

    def _write_anew(self, names: Iterable[Name]) -> None:
        with sealed_file.replacing(self._directory.touched) as file:
            file.write(self._head + _lines(names) + _END_OF_KEPT + _lines(self._names))
            identity = _identity(file)
        self._file = identity

    def _drop_if_lost(self) -> None:
        if self._lost and not self._gone:
            with suppress(OSError):  # the next note tries again
                self._directory.hold()
                self._directory.touched.unlink(missing_ok=True)
                self._gone, self._names = True, set()

    def end(self) -> None:
        """A snapshot is about to be made. It will not know of names that are written from here on."""
        self._ending = True

    def put(self, part: Path) -> None:
        """Rename the snapshot into place, unless a name was written since `end`. Blocks. Raises OSError."""
        with self._lock:
            self._drop_if_lost()
            if self._void:
                part.unlink()
            else:
                part.replace(self._directory.snapshot)


class WrittenNamesFiles:
    """Those of all disks; none: the cache is in memory and ends with the process."""

    def __init__(self, files: Sequence[WrittenNamesFile], may_have_blocks: Callable[[ObjectRef], bool]) -> None:
        """`may_have_blocks`: whether an object without a tenant may, once a start has indexed all blocks."""
        self._files = files
        self._may_have_blocks = may_have_blocks

    async def note(self, names: Sequence[Name]) -> None:
        """Note those of `names` that may have blocks: a write of a new name takes no disk access."""
        if all(file.is_whole for file in self._files):
            names = [
                name for name in names if isinstance(name, str) or ":" in name.bucket or self._may_have_blocks(name)
            ]
        if names:
            await asyncio.gather(*(file.note(names) for file in self._files))


def _load(path: Path, head: bytes) -> tuple[list[Name], list[Name], tuple[int, int] | None]:
    """The names that the start kept, those noted since, and the identity of the file; None: there is no valid one."""
    try:
        with path.open("rb") as file:
            # A file of another format or of another boot is no error.
            if file.readline(_HEAD_BYTES_MAX) == head:
                kept, _, recent = file.read(_BYTES_MAX).partition(_END_OF_KEPT)
                return _names(kept), _names(recent), _identity(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, RecursionError) as error:
        log.warning("notes of writes ignored", extra={"error": repr(error)})
    return [], [], None


def _without_tenant(name: Name) -> Name:
    return without_tenant(name) if isinstance(name, str) else ObjectRef(without_tenant(name.bucket), name.key)


def _names(lines: bytes) -> list[Name]:
    return [_name(line) for line in lines.splitlines(keepends=True)]


def _name(line: bytes) -> Name:
    parts = json.loads(line)
    if not line.endswith(b"\n") or len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
        raise ValueError("no name")
    return ObjectRef(*parts) if len(parts) == 2 else str(parts[0])


def _lines(names: Iterable[Name]) -> bytes:
    return b"".join(json_line([name] if isinstance(name, str) else name) for name in names)


_END_OF_KEPT = json_line([])


def _run_in(directory: BlockDir) -> Run | None:
    """The run in the head of the file; None: there is none."""
    if directory.missing is not None:
        return None  # its disk may not answer
    try:
        with directory.touched.open("rb") as file:
            number, tag = json.loads(file.readline(_HEAD_BYTES_MAX))["run"]
            return Run(int(number), str(tag))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _head(version: int, run: Run | None = None) -> bytes:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = str(uuid.uuid4())  # the boot is not known: no file is of the same one
    return json_line({"outrider touched": version, "boot": boot.strip()} | ({} if run is None else {"run": run}))


def _no_link(path: str, flags: int) -> int:
    """An `opener` that does not follow a link."""
    return os.open(path, flags | os.O_NOFOLLOW)


def _identity(file: BinaryIO) -> tuple[int, int]:
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino
