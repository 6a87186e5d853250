"""Keeps the pins in the cache directory: a pin outlives a stop and a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from outrider.adapters import sealed_file
from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.disk import Disk, working
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.core.cache.pins import SavedPin
from outrider.core.model import ObjectRef, VersionIdentity, quoted_etag
from outrider.futures import retrieve_failure
from outrider.ports import Clock

log = logging.getLogger(__name__)

_FORMAT = sealed_file.JsonFormat("pins", 1)
# Two hundred thousand long keys take less.
_BYTES_MAX = 512 * 1024 * 1024


def load(paths: Sequence[Path]) -> list[SavedPin]:
    """The pins of the newest file that can be read, of those that `save` wrote. Blocks.

    Without one no object is pinned any more. That is logged as an error, since the blocks of the pinned objects may now
    be evicted.
    """
    for path in sealed_file.newest_first(paths):
        try:
            return [pin_of(fields) for fields in _FORMAT.decode(sealed_file.read(path, _BYTES_MAX))]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.error("pins lost", extra={"file": str(path), "error": repr(error)})
    return []


def pin_of(fields: dict[str, Any]) -> SavedPin:
    """Raises ValueError, TypeError or KeyError: no pin has these fields."""
    objects = tuple((ObjectRef(_text(bucket), _text(key)), _identity(*identity))
                    for (bucket, key), *identity in fields["objects"])  # fmt: skip
    owner, client, name, body = (_text(fields[field]) for field in ("owner", "client", "name", "body"))
    return SavedPin(owner, client, name, body, float(fields["at"]), objects, fields.get("has_ended") is True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    return value


def _identity(etag: object, size: object, modified: object = "") -> VersionIdentity:
    """Pins of older releases have no date: their objects are found by the next question about them."""
    if quoted_etag(_text(etag)) is None:
        raise TypeError(f"not an ETag: {etag!r}")
    if type(size) is not int or size < 0:
        raise TypeError(f"not a size: {size!r}")
    return VersionIdentity(_text(etag), size, _text(modified))


async def save(path: Path, pins: Sequence[SavedPin], work: DiskThreads, at: float) -> None:
    """Write all pins, as those of the wall-clock time `at`, by which a start knows the newest; the file is on the disk
    when this returns. Raises OSError; the older file then stays."""
    data = _FORMAT.encode([
        asdict(pin) | {"objects": [[ref, *identity] for ref, identity in pin.objects]} for pin in pins
    ])  # fmt: skip
    await sealed_file.write(path, [data], work.threads, durable=True, at=at)


class PinFiles:
    """A file on each disk: pins outlive any but the last of the disks. A start takes the newest that can be read."""

    def __init__(self, disks: Sequence[Disk], wall_clock: Clock) -> None:
        self._disks = disks
        self._wall_clock = wall_clock
        self._under_way: dict[_Place, asyncio.Task[None]] = {}
        self._answered: set[_Place] = set()
        """The disks that took the newest pins or refused them."""

    async def save(self, pins: Sequence[SavedPin]) -> None:
        """Write all pins to the disks that work. Raises OSError: no disk took them."""
        self._answered = set()
        disks, at = working(self._disks), self._wall_clock()
        failed = await asyncio.gather(*(self._save(disk, pins, at) for disk in disks))
        if None not in failed:
            raise next(filter(None, failed))

    def is_behind(self) -> bool:
        """Whether one of several disks works that neither took nor refused the newest pins: it is new, or works
        again."""
        return len(self._disks) > 1 and not self._answered.issuperset(map(_place, working(self._disks)))

    async def _save(self, disk: Disk, pins: Sequence[SavedPin], at: float) -> OSError | None:
        place, error = _place(disk), None
        try:
            # A disk that does not answer holds up nobody beside others: its save ends when it does.
            async with asyncio.timeout(disk_threads.PATIENCE_S if len(self._disks) > 1 else None):
                if (before := self._under_way.get(place)) is not None:
                    await asyncio.wait([before])
                saving = asyncio.create_task(save(disk.directory.pins, pins, disk.work, at), name="pins")
                saving.add_done_callback(retrieve_failure)
                self._under_way[place] = saving
                await asyncio.shield(saving)
        except OSError as refused:
            error = refused
            disk.work.failed("write", error)
            if isinstance(error, TimeoutError):
                disk.work.left_out(error)
                return error
        self._answered.add(place)
        return error


_Place: TypeAlias = tuple[Disk, int]


def _place(disk: Disk) -> _Place:
    """A disk, until it works again after it did not, or is another one."""
    return disk, disk.work.returns
