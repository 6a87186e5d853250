"""Keeps the pins in the cache directory: a pin outlives a stop and a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.adapters import sealed_file
from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.core.cache.pins import SavedPin
from outrider.core.model import ObjectRef, VersionIdentity, quoted_etag

log = logging.getLogger(__name__)

_FORMAT = sealed_file.JsonFormat("pins", 1)
# Two hundred thousand long keys take less.
_BYTES_MAX = 512 * 1024 * 1024


def load(path: Path) -> list[SavedPin]:
    """The pins that `save` wrote. Blocks.

    An unreadable file means that no object is pinned any more. That is logged as an error, since the blocks of the
    pinned objects may now be evicted.
    """
    try:
        return [pin_of(fields) for fields in _FORMAT.decode(sealed_file.read(path, _BYTES_MAX))]
    except FileNotFoundError:
        return []
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


async def save(path: Path, pins: Sequence[SavedPin], work: DiskThreads) -> None:
    """Write all pins; the file is on the disk when this returns. Raises OSError; the older file then stays."""
    data = _FORMAT.encode([
        asdict(pin) | {"objects": [[ref, *identity] for ref, identity in pin.objects]} for pin in pins
    ])  # fmt: skip
    await sealed_file.write(path, [data], work.threads, durable=True)


async def save_on_all(disks: Sequence[Disk], pins: Sequence[SavedPin]) -> None:
    """Pins outlive any but the last of the disks; a start takes the newest ones. Raises OSError: no disk took them."""
    saving = [save(disk.directory.pins, pins, disk.work) for disk in disks]
    failed = [error for error in await asyncio.gather(*saving, return_exceptions=True) if error is not None]
    if len(failed) == len(disks):
        raise failed[0]
