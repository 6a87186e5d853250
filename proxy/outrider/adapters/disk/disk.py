"""One disk of the store: a cache directory with threads, a budget and a health of its own."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import TypeAlias, TypeVar

from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.core.cache.disk_limits import DiskBudget, Room, WritePace, capacities, most_bytes
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey
from outrider.metrics import Metrics
from outrider.ports import Clock
from outrider.settings import Size

log = logging.getLogger(__name__)

T = TypeVar("T")
Stored: TypeAlias = tuple[BlockKey, int, bool]
"""A block, the bytes of its file on disk, and whether the file is emptied when it is removed: those who have it open
get no more bytes of it, and it takes no more room."""

# As many files are removed in some tens of milliseconds.
_TIDIED_AT_ONCE = 256
_NO_ROOM_PAUSE_S = 60.0


class Disk:
    """Its state lives on the event loop's thread; its files are touched in `work`."""

    def __init__(
        self, directory: BlockDir, budget: DiskBudget, metrics: Metrics, clock: Clock, *, has_others: bool = False
    ) -> None:
        """`has_others`: the store has other disks, which take the blocks of this one while it fails."""
        self.directory = directory
        self.name = str(directory.root)
        self.budget = budget
        self.room = Room(directory.device, 0, 0)
        """As the last look found it; a missing directory has none."""
        self.work = DiskThreads(metrics, clock, self.name, has_others=has_others)
        if directory.missing is not None:
            self.work.left_out(directory.missing)
        # False until the scan knows the sizes in the directory: the budget could not be kept before.
        self.admitting = True
        # False: a file lies in the directory that only a scan would find, so no snapshot may be written.
        self.whole = True
        self.making_room = asyncio.Lock()
        self.leaving: set[asyncio.Future[list[int | OSError]]] = set()
        """Removals of files under way."""
        self.left_behind: dict[BlockKey, int] = {}
        """Blocks that another disk has now, and the bytes of their files here, which are still to be removed."""
        self.pace = WritePace()
        self._no_room_after = -inf
        self.blocks = 0
        self.reads = 0
        self.quiet = asyncio.Event()
        """No block is being written."""
        self.quiet.set()
        metrics.show_disk(self)

    @property
    def works(self) -> bool:
        """New blocks are put here."""
        return self.admitting and not self.work.trouble

    @property
    def state(self) -> tuple[str, str]:
        """See `metrics.ShownDisk`."""
        if self.work.trouble:
            return "failing", self.work.trouble
        return ("works" if self.admitting else "scanning"), ""

    def is_beside(self, other: Disk) -> bool:
        """Whether both are on one file system."""
        return self.directory.device == other.directory.device

    # -- files that leave -------------------------------------------------------------------------------------------

    def unlink(self, gone: Sequence[Stored]) -> asyncio.Future[list[int | OSError]]:
        """Remove the files of blocks that the index has forgotten. The result: the bytes that each gave back, or why it
        did not."""
        future = self.work.begin(self._unlink_all, gone)
        self.leaving.add(future)
        future.add_done_callback(self._left)
        return future

    def _unlink_all(self, gone: Sequence[Stored]) -> list[int | OSError]:
        results: list[int | OSError] = []
        for block, disk_bytes, is_emptied in gone:
            try:
                if is_emptied:
                    with suppress(OSError):
                        os.truncate(self.directory.path_of(block), 0)
                self.directory.remove(self.directory.raw_path_of(block))
                results.append(disk_bytes)
            except OSError as error:
                results.append(error)
        return results

    def _left(self, done: asyncio.Future[list[int | OSError]]) -> None:
        self.leaving.discard(done)
        self.budget.give_back(sum(result for result in done.result() if isinstance(result, int)))

    def tidy(self) -> None:
        """Begin to remove files that were left behind, if the disk works."""
        if self.left_behind and self.works and not self.leaving:
            self._unlink_left(list(islice(self.left_behind.items(), _TIDIED_AT_ONCE)))

    async def unlink_older(self, block: BlockKey) -> None:
        """Before a block is written again: a file that it left behind has to go first, since a later removal would take
        the new one. Raises StoreUnavailable."""
        if block not in self.left_behind:
            return
        while self.leaving:
            await asyncio.wait(self.leaving)
        if (disk_bytes := self.left_behind.get(block)) is not None:
            await asyncio.shield(self._unlink_left([(block, disk_bytes)]))
        if block in self.left_behind:
            raise StoreUnavailable("an older file of the block cannot be removed")

    def _unlink_left(self, files: Sequence[tuple[BlockKey, int]]) -> asyncio.Future[list[int | OSError]]:
        def ended(done: asyncio.Future[list[int | OSError]]) -> None:
            for (block, _), result in zip(files, done.result(), strict=True):
                if isinstance(result, OSError):
                    self.work.write_failed("unlink", result)
                else:
                    self.left_behind.pop(block, None)

        future = self.unlink([(block, disk_bytes, False) for block, disk_bytes in files])
        future.add_done_callback(ended)
        return future

    # -- reservations -----------------------------------------------------------------------------------------------

    def reserve(self, need: int) -> None:
        self.budget.reserve(need)
        self.quiet.clear()

    def reserve_at_once(self, need: int) -> bool:
        """As `reserve`, where it needs no wait: nothing has to leave, and nothing is leaving. False: it may."""
        if self.leaving or self.making_room.locked() or self.work.is_cleaning:
            return False
        if not self.budget.reserve_at_once(need, self.work.clock()):
            return False
        self.quiet.clear()
        return True

    def found_no_room(self, need: int) -> None:
        """Nothing may be evicted for so many bytes. That is usual in a cache that is full, but not in one whose file
        system others have filled."""
        if self.budget.room_bytes >= need and self.work.clock() >= self._no_room_after:
            self._no_room_after = self.work.clock() + _NO_ROOM_PAUSE_S
            log.warning("others have filled the disk of the cache", extra={
                "disk": self.name, "blocks": self.blocks, "min_free_bytes": self.budget.min_free_bytes,
            })  # fmt: skip

    def written(self, need: int) -> None:
        """The file of a reservation is in its place."""
        self.budget.landed(need)
        self._end()

    def unreserve(self, need: int) -> None:
        """A reservation is given back; no file is left of it."""
        self.budget.unreserve(need)
        self._end()

    def _end(self) -> None:
        if not self.budget.pending_bytes:
            self.quiet.set()


@dataclass(frozen=True, slots=True)
class Sizes:
    """The settings `cache_size` and `min_free`."""

    cache_size: Size
    min_free: Size

    def divide(self, disks: Sequence[Disk]) -> None:
        """Give each disk its part of the cache, by its room."""
        size = self.cache_size
        parts = capacities(size.amount_bytes, size.share, [disk.room for disk in disks])
        for disk, capacity_bytes in zip(disks, parts, strict=True):
            disk.budget.capacity_bytes = capacity_bytes
            disk.budget.min_free_bytes = self.min_free.of(disk.room.total_bytes)

    async def measure(self, disks: Sequence[Disk]) -> None:
        """Look at the room of the disks that work."""
        for beside in _by_device(disk for disk in disks if not disk.work.trouble):
            first = beside[0]
            try:
                async with asyncio.timeout(disk_threads.PATIENCE_S):
                    total_bytes, free_bytes = await first.work.run(first.directory.space)
            except OSError as error:
                first.work.failed("statvfs", error)
                continue
            held = sum(disk.budget.used_bytes for disk in beside)
            most_bytes = max(0, held + free_bytes - self.min_free.of(total_bytes))
            for disk in beside:
                disk.room = Room(disk.directory.device, total_bytes, most_bytes)


def working(disks: Sequence[Disk]) -> Sequence[Disk]:
    """Those of `disks` that work, and last those that are far slower than the others; all of them if none works."""
    found = [disk for disk in disks if disk.works]
    if len(found) > 1:
        paces = [disk.pace for disk in found]
        found.sort(key=lambda disk: disk.pace.is_behind(paces, disk.work.clock()))
    return found or disks


async def most_bytes_on(disks: Sequence[Disk]) -> int:
    """The most bytes that the disks could hold together. Raises OSError."""
    most = 0
    for beside in _by_device(disks):
        async with asyncio.timeout(disk_threads.PATIENCE_S):
            free_bytes = await beside[0].work.run(beside[0].directory.free_bytes)
        most += most_bytes(free_bytes, [disk.budget for disk in beside])
    return most


def _by_device(disks: Iterable[Disk]) -> Iterable[list[Disk]]:
    """The disks on each file system, which have its free space together."""
    found: dict[int, list[Disk]] = {}
    for disk in disks:
        found.setdefault(disk.directory.device, []).append(disk)
    return found.values()


def disks_of(directories: Sequence[BlockDir], sizes: Sizes, metrics: Metrics, clock: Clock) -> list[Disk]:
    """The disks of a store, with the capacities that are known before it knows what lies on them."""
    disks = [
        Disk(directory, DiskBudget(0), metrics, clock, has_others=len(directories) > 1) for directory in directories
    ]
    for number, disk in enumerate(disks):
        if disk.directory.missing is not None:
            disk.room = Room(-1 - number, 0, 0)
            continue
        total_bytes, _ = disk.directory.space()
        disk.room = Room(disk.directory.device, total_bytes, total_bytes - sizes.min_free.of(total_bytes))
    sizes.divide(disks)
    return disks


def open_all(roots: Sequence[Path]) -> list[BlockDir]:
    """Lock all of `roots`. A directory whose disk fails is `missing`, as long as another one can be used.

    Raises:
        UnusableCacheDir: no directory can be used; one of them cannot, for a reason that is no fault of a disk; or two
            of them are not apart.
    """
    check_apart(roots)
    opened: list[BlockDir] = []
    try:
        for root in roots:
            opened.append(BlockDir.open(root) if len(roots) == 1 else _open_in_time(root, opened))
        failed = [f"{each.root}: {each.missing.strerror}" for each in opened if each.missing is not None]
        if len(failed) == len(opened):
            why = "; ".join(failed)
            raise UnusableCacheDir(f"none of the cache directories can be used: {why}. Choose others with --cache-dir.")
    except BaseException:
        for directory in opened:
            directory.close()
        raise
    return opened


def check_apart(roots: Sequence[Path]) -> None:
    """Raises UnusableCacheDir: two of `roots` are the same, or one lies within the other."""
    places = [_place_of(root) for root in roots]
    for number, place in enumerate(places):
        for other, its_root in zip(places[:number], roots, strict=False):
            if place == other:
                raise UnusableCacheDir(
                    f"cache directory {its_root} is given twice, as {roots[number]}. Give each --cache-dir once."
                )
            if place.is_relative_to(other) or other.is_relative_to(place):
                raise UnusableCacheDir(
                    f"cache directories {its_root} and {roots[number]}: one lies within the other. Give each disk a "
                    "--cache-dir of its own."
                )


def _check_is_another(root: Path, opened: Sequence[BlockDir]) -> None:
    """Two mounts may show one directory."""
    for directory in opened:
        if directory.is_at(root):
            raise UnusableCacheDir(
                f"cache directories {directory.root} and {root} are the same directory. Give each --cache-dir once."
            )


def _open_in_time(root: Path, opened: Sequence[BlockDir]) -> BlockDir:
    """The directory is `missing` if its disk fails, or does not answer in time."""

    def open_another() -> BlockDir:
        _check_is_another(root, opened)
        return BlockDir.open_or_missing(root)

    try:
        return _in_time(open_another, BlockDir.close)
    except TimeoutError as error:
        return BlockDir.missing_at(root, error)


def _place_of(root: Path) -> Path:
    """Without symbolic links, where the disk answers."""
    try:
        return Path(_in_time(lambda: os.path.realpath(root), lambda _: None))
    except TimeoutError:
        return root.absolute()


def _in_time(work: Callable[[], T], late: Callable[[T], None]) -> T:
    """The result of blocking file work. Raises TimeoutError: the disk does not answer; `late` gets what comes of the
    work in the end."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - top of a thread
            done.set_exception(error)

    threading.Thread(target=run, name="outrider-disk-start", daemon=True).start()
    try:
        return done.result(disk_threads.PATIENCE_S)
    except TimeoutError:
        if done.done():
            raise
        done.add_done_callback(lambda ended: None if ended.exception() else late(ended.result()))
        raise TimeoutError(errno.ETIMEDOUT, "no answer") from None
