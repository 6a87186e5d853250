"""Keeps the warm-ups that a clean stop cut off in the cache directory, until the next start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path

from outrider.adapters import sealed_file
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.core.maintenance.object_list import SavedWarmup

log = logging.getLogger(__name__)

_FORMAT = sealed_file.JsonFormat("warmups", 1)
# Each warm-up has a list of at most 4 MiB. A longer file was not written by this program.
_BYTES_MAX = 512 * 1024 * 1024
_AT_MAX = 1e11
# A stop has some seconds in all.
_REMOVAL_S = 1.0
_FIELDS = {"owner": str, "name": str, "body": str, "at": float, "bytes_per_s": float, "copies": int}
# That of a warm-up of 0.2, which knew no copies.
_COPIES = 1


def load(path: Path) -> list[SavedWarmup]:
    """The warm-ups that `save` wrote. Blocks.

    A file that cannot be read is ignored: its warm-ups have to be requested again.
    """
    try:
        return [warmup_of(fields) for fields in _FORMAT.decode(sealed_file.read(path, _BYTES_MAX))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        log.warning("warm-ups ignored", extra={"error": repr(error)})
        return []


async def remove(path: Path, work: DiskThreads) -> None:
    """The warm-ups of the file are resumed."""
    removing = work.begin(path.unlink, True)
    try:
        await asyncio.shield(removing)
    except asyncio.CancelledError:
        # The proxy stops, and must not lose the file that it writes then.
        await asyncio.wait([removing], timeout=_REMOVAL_S)
        raise
    except OSError as error:
        work.failed("unlink", error)


def warmup_of(fields: dict[str, object]) -> SavedWarmup:
    """Raises ValueError or TypeError: no warm-up has these fields."""
    if not isinstance(fields, dict):
        raise TypeError("no warm-up")
    fields = {"copies": _COPIES, **fields}
    if fields.keys() != _FIELDS.keys() or any(type(fields[name]) is not kind for name, kind in _FIELDS.items()):
        raise TypeError("no warm-up")
    saved = SavedWarmup(**fields)  # type: ignore[arg-type]
    saved.body.encode("utf-8", "surrogateescape")
    if not (0 <= saved.at < _AT_MAX and 0 <= saved.bytes_per_s < inf and saved.copies >= 0):
        raise ValueError("no time, no rate, or no number of copies")
    return saved


async def save(path: Path, warmups: Sequence[SavedWarmup], work: DiskThreads) -> None:
    """Write `warmups` for the next start, after those of the last stop that this process has not resumed. A newer one
    of the same name takes the place of an older one.

    A disk that fails is logged.
    """
    newer = {(warmup.owner, warmup.name) for warmup in warmups}
    older = [warmup for warmup in await work.run(load, path) if (warmup.owner, warmup.name) not in newer]
    warmups = [*older, *warmups]
    if not warmups:
        return
    try:
        data = _FORMAT.encode([asdict(warmup) for warmup in warmups])
        await sealed_file.write(path, [data], work.threads)
    except OSError as error:
        log.warning("warm-ups not kept", extra={"error": str(error)})
