"""What is pinned, kept in the cache directory: a pin outlives a stop and a crash."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.adapters.disk import block_dir
from outrider.core.cache.pins import SavedPin
from outrider.core.model import ObjectRef

log = logging.getLogger(__name__)

_FORMAT = 1
# Two hundred thousand long keys take less.
_BYTES_MAX = 512 * 1024 * 1024


def load(path: Path) -> list[SavedPin]:
    """What cannot be read is no pin any more; that is logged as an error, for its blocks may go now."""
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ValueError("too long")
        told = json.loads(path.read_bytes())
        if not isinstance(told, dict) or told.get("format") != _FORMAT:
            raise ValueError("of another format")
        return [_pin_of(fields) for fields in told["pins"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.error("pins lost", extra={"file": str(path), "error": repr(error)})
        return []


def _pin_of(fields: dict[str, Any]) -> SavedPin:
    objects = tuple((ObjectRef(_text(bucket), _text(key)), _text(etag), _size(size))
                    for (bucket, key), etag, size in fields["objects"])  # fmt: skip
    owner, client, name, body = (_text(fields[one]) for one in ("owner", "client", "name", "body"))
    return SavedPin(owner, client, name, body, float(fields["at"]), objects)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    return value


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"not a size: {value!r}")
    return value


def save(path: Path, pins: Sequence[SavedPin]) -> None:
    """Whole or not at all, and on the disk when it returns. Raises OSError."""
    part = Path(f"{path}.part")
    # ASCII: what of a key is no UTF-8 stays an escape.
    data = json.dumps({"format": _FORMAT, "pins": [asdict(pin) for pin in pins]}).encode("ascii")
    with open(part, "wb", opener=block_dir.private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
