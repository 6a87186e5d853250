"""The names that were written through us while blocks of them may be on disk, whose headers there are then the older
ones. For a start after a crash: after a clean stop the snapshot knows.

Lines of JSON: a head, then `[bucket, key]`, or `[bucket]` for all of it. No fsync: what a power loss takes, the head
knows by the boot of the machine. Without a file that is whole, and of this boot, any name may be one of them.
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
from typing import BinaryIO

from outrider.adapters.disk import block_dir
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.core.model import ObjectRef
from outrider.ports import Name

log = logging.getLogger(__name__)

# They take some 20 MB in memory, and a quarter of a second at a start.
NAMES_MAX = 100_000
# So many take less; what is cut here is not whole.
_BYTES_MAX = 1024 * 1024 * 1024
_HEAD_BYTES_MAX = 1024


class WrittenNamesFile:
    """As long as the file is there, the name of each write that was answered is in it."""

    def __init__(self, directory: BlockDir, work: DiskThreads) -> None:
        self._directory = directory
        self._work = work
        self._lock = threading.Lock()
        self._found, self._file = _load(directory.touched)
        # What this process has put there, or will where there is none that holds.
        self._names: set[Name] = set()
        self._lost = self._gone = False
        self._late: asyncio.Future[OSError | None] | None = None
        self._ending = self._void = False
        self.is_whole = False
        """What was found at the start is known: nothing else has blocks that is not in the catalog."""

    def has(self, ref: ObjectRef) -> bool:
        """Whether it may have been written after blocks of it were; until `settle`."""
        return self._found is None or ref in self._found or ref.bucket in self._found

    async def note(self, names: Sequence[Name]) -> None:
        """Returns when these outlive this process, or no name is held to be unwritten any more. A disk that does not
        take that in time is counted and logged; the write goes on."""
        if not self._ending and (self._gone or (not self._lost and self._names.issuperset(names))):
            return
        if self._late is not None and not self._late.done():
            self._lost = True
            return
        job = self._work.begin(self._note, names)
        error: OSError | None
        try:
            async with asyncio.timeout(block_dir.PATIENCE_S):
                error = await asyncio.shield(job)
        except TimeoutError as late:
            self._late, error = job, late
        if error is not None:
            self._work.trouble("note", error)

    def _note(self, names: Sequence[Name]) -> OSError | None:
        return self._written(names, self._append)

    def settle(self, names: set[ObjectRef]) -> OSError | None:
        """After a start: of all that was found, LISTs may not vouch for `names`. Those that have no blocks any more are
        left out from here on. In a thread."""
        self.is_whole, self._found = True, set()
        return self._written(names, self._write_anew)

    def _written(self, names: Collection[Name], write: Callable[[Iterable[Name]], None]) -> OSError | None:
        """What went wrong; then, as beyond the bound, there is no file any more."""
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
                    self._names.update(names)
            except OSError as error:
                self._lost, failed = True, error
            self._drop_if_lost()
        return failed

    def _append(self, names: Iterable[Name]) -> None:
        if self._file is None:
            return
        # Never made here: in a directory that was made anew it would lack those noted before.
        with open(self._directory.touched, "r+b", opener=block_dir.private) as file:
            if _identity(file) != self._file:
                raise OSError(errno.ESTALE, "another file is in its place")
            file.seek(0, os.SEEK_END)
            file.write(_lines(names))

    def _write_anew(self, names: Iterable[Name]) -> None:
        path = self._directory.touched
        part = Path(f"{path}.part")
        with open(part, "wb", opener=block_dir.private) as file:
            file.write(_line(_head()) + _lines(self._names.union(names)))
            identity = _identity(file)
        part.replace(path)
        self._file = identity

    def _drop_if_lost(self) -> None:
        if self._lost and not self._gone:
            with suppress(OSError):  # tried again with the next note
                self._directory.hold()
                self._directory.touched.unlink(missing_ok=True)
                self._gone, self._names = True, set()

    def end(self) -> None:
        """A snapshot is about to be made, and what is written through us from here on it would not know."""
        self._ending = True

    def put(self, part: Path) -> None:
        """The snapshot into its place, unless something was. In a thread. Raises OSError."""
        with self._lock:
            self._drop_if_lost()
            if self._void:
                part.unlink()
            else:
                part.replace(self._directory.snapshot)


def _load(path: Path) -> tuple[set[Name] | None, tuple[int, int] | None]:
    """The names, and which file it is; None, None: it is none that holds."""
    try:
        with path.open("rb") as file:
            # Of another format, or of another boot, is no trouble.
            if file.readline(_HEAD_BYTES_MAX) == _line(_head()):
                return {_name(line) for line in file.read(_BYTES_MAX).splitlines(keepends=True)}, _identity(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, RecursionError) as error:
        log.warning("notes of writes ignored", extra={"error": repr(error)})
    return None, None


def _name(line: bytes) -> Name:
    told = json.loads(line)
    if not line.endswith(b"\n") or len(told) not in (1, 2) or not all(isinstance(one, str) for one in told):
        raise ValueError("no name")
    return ObjectRef(*told) if len(told) == 2 else str(told[0])


def _lines(names: Iterable[Name]) -> bytes:
    return b"".join(_line([name] if isinstance(name, str) else name) for name in names)


def _line(value: object) -> bytes:
    # ASCII: what of a key is no UTF-8 stays an escape.
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _head() -> dict[str, object]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = str(uuid.uuid4())  # nobody knows: then none is the same
    return {"outrider touched": 1, "boot": boot.strip()}


def _identity(file: BinaryIO) -> tuple[int, int]:
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino
