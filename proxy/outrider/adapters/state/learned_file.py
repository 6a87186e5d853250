"""What the planner has learned, kept in the cache directory from a stop to the next start."""

from __future__ import annotations

import logging
from pathlib import Path

import xxhash

from outrider.adapters.disk import block_dir
from outrider.adapters.disk.block_dir import BlockDir
from outrider.core.ahead.dataset.registry import DatasetRegistry

log = logging.getLogger(__name__)

_SEAL_BYTES = 16
# A million keys take some tens of MB; what is longer was not written by us.
_BYTES_MAX = 512 * 1024 * 1024


def load(path: Path, registry: DatasetRegistry) -> None:
    """Restore `registry` from `path`, before anything else is told to it. What cannot be read is ignored: it is learned
    anew in one epoch."""
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ValueError("too long")
        raw = path.read_bytes()
        seal, data = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        if xxhash.xxh3_128_digest(data) != seal:
            raise ValueError("the checksum does not match")
        registry.restore(data)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("learned orders ignored", extra={"error": str(error)})


def save(directory: BlockDir, registry: DatasetRegistry) -> None:
    """Leave what was learned in `directory`; a disk that fails is logged."""
    path = directory.orders
    part = Path(f"{path}.part")
    try:
        directory.hold()
        data = registry.export()
        with open(part, "wb", opener=block_dir.private) as file:
            file.write(xxhash.xxh3_128_digest(data) + data)
        part.replace(path)
    except OSError as error:
        log.warning("learned orders not kept", extra={"error": str(error)})
