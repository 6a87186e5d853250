"""Keeps what the planner has learned in the cache directory, from a clean stop to the next start."""

from __future__ import annotations

import logging
from pathlib import Path

from outrider.adapters import sealed_file
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.core.ahead.dataset.registry import DatasetRegistry

log = logging.getLogger(__name__)

_FORMAT = sealed_file.DigestFormat()
# A million keys take some tens of MB. A longer file was not written by this program.
_BYTES_MAX = 512 * 1024 * 1024


def load(path: Path, registry: DatasetRegistry) -> None:
    """Restore `registry` from `path`, before it learns anything else. Blocks.

    A file that cannot be read is ignored: one epoch teaches the same again.
    """
    try:
        registry.restore(_FORMAT.decode(sealed_file.read(path, _BYTES_MAX)))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("learned orders ignored", extra={"error": str(error)})


async def save(directory: BlockDir, registry: DatasetRegistry, work: DiskThreads) -> None:
    """Write what was learned to `directory`. A disk that fails is logged."""
    try:
        await work.run(directory.hold)
        await sealed_file.write(directory.orders, [_FORMAT.encode(registry.export())], work.threads)
    except OSError as error:
        log.warning("learned orders not kept", extra={"error": str(error)})
