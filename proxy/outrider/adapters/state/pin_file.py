"""Keeps the pins in the cache directory: a pin outlives a stop and a crash."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.adapters import sealed_file
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.core.cache.pins import SavedPin
from outrider.core.model import ObjectRef, quoted_etag

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
        return [_pin_of(fields) for fields in _FORMAT.decode(sealed_file.read(path, _BYTES_MAX))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.error("pins lost", extra={"file": str(path), "error": repr(error)})
        return []


def _pin_of(fields: dict[str, Any]) -> SavedPin:
    objects = tuple((ObjectRef(_text(bucket), _text(key)), _etag(etag), _size(size))
                    for (bucket, key), etag, size in fields["objects"])  # fmt: skip
    owner, client, name, body = (_text(fields[field]) for field in ("owner", "client", "name", "body"))
    return SavedPin(owner, client, name, body, float(fields["at"]), objects, fields.get("has_ended") is True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    return value


def _etag(value: object) -> str:
    if quoted_etag(_text(value)) is None:
        raise TypeError(f"not an ETag: {value!r}")
    return _text(value)


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"not a size: {value!r}")
    return value


async def save(path: Path, pins: Sequence[SavedPin], work: DiskThreads) -> None:
    """Write all pins; the file is on the disk when this returns. Raises OSError; the older file then stays."""
    data = _FORMAT.encode([asdict(pin) for pin in pins])
    await sealed_file.write(path, [data], work.threads, durable=True)
