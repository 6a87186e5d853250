"""Checks of `outrider doctor` on this machine: cache directory, disk, ports and limits."""

from __future__ import annotations

import mmap
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from outrider.adapters.disk import memory_dir
from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.adapters.disk.disk import check_apart
from outrider.adapters.process.listening import bind, remedy
from outrider.cli.doctor.finding import Diagnosis, fail, ok, warn
from outrider.core.block_layout import BLOCKS_FEW
from outrider.core.cache.disk_limits import Room, capacities
from outrider.core.text import in_words
from outrider.settings import Settings

_SPEED_BYTES = 64 * 2**20
_SPEED_PIECE_BYTES = 4 * 2**20
# The longest time for writing and for reading. A slower disk is judged by the part that it did in this time.
_SPEED_DEADLINE_S = 5.0
# 1 Gbit/s, the slowest network over which buckets are read today. A slower disk is of no use as a cache.
_SLOW_BYTES_S = 125e6
# Enough to show how full a cache is. More files take long to count.
_FILES_COUNTED_MAX = 200_000
_ROOM_LITTLE_BYTES = 2**30
_FILES_FEW = 4096


def cache_findings(settings: Settings, running_here: bool) -> Iterator[Diagnosis]:
    """Directory, room and speed, of each disk. `running_here`: an outrider already listens at the address in the
    settings."""
    memory = settings.cache_in_memory
    wanted = [memory_dir.PARENT if memory else path.expanduser() for path in settings.cache_dir]
    try:
        check_apart(wanted)
    except UnusableCacheDir as error:
        yield fail("cache dir", *_what_and_do(error))
        return
    usable: list[tuple[Path, Path]] = []
    for directory in wanted:
        existing = _existing(directory)
        yield check_directory(directory, existing, memory, running_here)
        if existing.is_dir() and os.access(existing, os.W_OK):
            usable.append((directory, existing))
    held = [
        0 if memory else sum(found.disk_bytes for found in islice(BlockDir(directory).found(), _FILES_COUNTED_MAX))
        for directory, _ in usable
    ]
    rooms = [_room(settings, existing, used) for (_, existing), used in zip(usable, held, strict=True)]
    if len({room.device for room in rooms}) < len(rooms):
        yield warn(
            "cache dir", "two directories are on one file system: they share its room, and are no faster than one",
            "Give each disk one --cache-dir.",
        )  # fmt: skip
    budgets = capacities(settings.cache_size.amount_bytes, settings.cache_size.share, rooms)
    for (_, existing), used, budget in zip(usable, held, budgets, strict=True):
        where = f"{existing}: " if len(wanted) > 1 else ""
        yield check_room(settings, existing, used, budget, where)
        yield check_speed(existing, where)


def _room(settings: Settings, existing: Path, used_bytes: int) -> Room:
    stat = os.statvfs(existing)
    total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    return Room(existing.stat().st_dev, total, max(0, used_bytes + free - settings.min_free.of(total)))


def check_directory(wanted: Path, existing: Path, memory: bool, running_here: bool) -> Diagnosis:
    if memory or existing != wanted.absolute():
        if os.access(existing, os.W_OK | os.X_OK) and existing.is_dir():
            if running_here and not memory:
                return warn(
                    "cache dir", f"{wanted}: does not exist",
                    "Mount its disk and make the directory: the outrider that runs here makes it only at a start.",
                )  # fmt: skip
            return ok("cache dir", f"{wanted}" + ("" if memory else ": will be made"))
        return fail(
            "cache dir", f"{wanted}: {existing} is not writable for this user",
            "Make it writable, or choose another one with --cache-dir.",
        )  # fmt: skip
    try:
        BlockDir.open(wanted).close()
    except UnusableCacheDir as error:
        if isinstance(error.__cause__, BlockingIOError) and running_here:
            return ok("cache dir", f"{wanted}: in use by the outrider that runs here")
        return fail("cache dir", *_what_and_do(error))
    return ok("cache dir", f"{wanted}: writable, not in use")


def _what_and_do(error: UnusableCacheDir) -> tuple[str, str]:
    what, _, do = str(error).removeprefix("cache directory ").partition(". ")
    return what, do


def check_room(
    settings: Settings, existing: Path, used_bytes: int, part_bytes: int | None = None, where: str = ""
) -> Diagnosis:
    """`part_bytes`: the part of one of several disks in the cache; None: there is one disk."""
    stat = os.statvfs(existing)
    total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    budget = settings.cache_size.of(total) if part_bytes is None else part_bytes
    floor = settings.min_free.of(total)
    room = min(budget, max(0, used_bytes + free - floor))
    text = f"{where}room for {in_words(room)} ({in_words(used_bytes)} held, {in_words(free)} free of {in_words(total)})"
    do = "Free some space, choose another disk with --cache-dir, or lower --min-free."
    if room < 2 * settings.block_size:
        return fail("disk space", f"{text}: nothing can be kept", do)
    if room < BLOCKS_FEW * settings.block_size:
        return warn("disk space", f"{text}: fewer than {BLOCKS_FEW} blocks", f"{do} Or make --block-size smaller.")
    # A share of the disk is only an upper bound. A number of bytes is relied on, so less room is worth a warning.
    if room < budget and (settings.cache_size.amount_bytes or room < _ROOM_LITTLE_BYTES):
        return warn("disk space", f"{text}, not the {in_words(budget)} of --cache-size", do)
    return ok("disk space", text)


def check_speed(directory: Path, where: str = "") -> Diagnosis:
    """Write and read a file without a name: the kernel removes it, even if this process is killed."""
    try:
        stat = os.statvfs(directory)
        if stat.f_bavail * stat.f_frsize < 2 * _SPEED_BYTES:
            return warn("disk speed", f"{where}not measured: the disk is full", "Free some space.")
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            written, write_bytes_s = _timed_write(file.fileno())
            read_bytes_s = _timed_read(file.fileno(), written)
    except OSError as error:
        return fail("disk speed", f"{directory}: {error.strerror}", "Check the disk, or choose another --cache-dir.")
    return judged_speed(write_bytes_s, read_bytes_s, where)


def judged_speed(write_bytes_s: float, read_bytes_s: float, where: str = "") -> Diagnosis:
    text = f"{where}writes {write_bytes_s / 1e6:,.0f} MB/s, reads {read_bytes_s / 1e6:,.0f} MB/s"
    if min(write_bytes_s, read_bytes_s) < _SLOW_BYTES_S:
        return warn("disk speed", text, "Slower than a network: put --cache-dir on a local SSD, or use memory.")
    return ok("disk speed", text)


def _timed_write(fd: int) -> tuple[int, float]:
    piece = os.urandom(_SPEED_PIECE_BYTES)  # a disk that compresses must not look faster than it is
    began = time.perf_counter()
    written = 0
    while written < _SPEED_BYTES and time.perf_counter() - began < _SPEED_DEADLINE_S:
        written += os.pwrite(fd, piece, written)
    os.fdatasync(fd)
    return written, written / (time.perf_counter() - began)


def _timed_read(fd: int, size: int) -> float:
    # Drop the file from the page cache, else its speed would be measured. A tmpfs ignores this: it is memory.
    os.posix_fadvise(fd, 0, size, os.POSIX_FADV_DONTNEED)
    buffer = mmap.mmap(-1, _SPEED_PIECE_BYTES)
    began = time.perf_counter()
    done = 0
    while done < size and time.perf_counter() - began < _SPEED_DEADLINE_S:
        done += os.preadv(fd, [buffer], done)
    return done / (time.perf_counter() - began)


def check_port(flag: str, address: str, running: str | None, elsewhere: str | None = None) -> Diagnosis:
    """`running`: the version of the outrider that already listens there; None: none does. `elsewhere`: its origin, if
    the doctor checked another one."""
    name = flag.lstrip("-")
    host, _, port = address.rpartition(":")
    if running is not None and elsewhere is not None:
        text = f"{address}: outrider {running} listens there already, in front of {elsewhere}"
        return warn(
            name, text, "The doctor checked another origin. Give it the flags and the environment of the proxy."
        )
    if running is not None:
        return ok(name, f"{address}: outrider {running} listens there already")
    try:
        bind(host.strip("[]"), int(port)).close()
    except OSError as error:
        return fail(name, f"{address}: {error.strerror}", remedy(flag, error.errno))
    return ok(name, f"{address}: free")


def check_open_files(hard: int | None = None) -> Diagnosis:
    """A connection takes two descriptors, an open block file one."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    text = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    if limit != resource.RLIM_INFINITY and limit < _FILES_FEW:
        return warn("open files", f"at most {text}", f"Raise it to {_FILES_FEW:,} or more: ulimit -Hn, LimitNOFILE=.")
    return ok("open files", f"at most {text}")


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())
