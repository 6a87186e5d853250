"""The warm-ups that a clean stop cut off, kept in the cache directory until the next start."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path

from outrider.adapters.disk import block_dir
from outrider.core.maintenance.object_list import SavedWarmup

log = logging.getLogger(__name__)

_FORMAT = 1
# Each of them has a list of 4 MiB at most; what is longer was not written by us.
_BYTES_MAX = 512 * 1024 * 1024
_AT_MAX = 1e11
_KINDS = {"owner": str, "name": str, "body": str, "at": float, "bytes_per_s": float}


def take(path: Path) -> list[SavedWarmup]:
    """What `save` left; the file is gone then. What cannot be read is ignored: it has to be asked for again."""
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ValueError("too long")
        told = json.loads(path.read_bytes())
        path.unlink()
        if not isinstance(told, dict) or told.get("format") != _FORMAT:
            raise ValueError("of another format")
        return [_warmup_of(one) for one in told["warmups"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("warm-ups ignored", extra={"error": repr(error)})
        return []


def _warmup_of(told: dict[str, object]) -> SavedWarmup:
    if told.keys() != _KINDS.keys() or any(type(told[name]) is not kind for name, kind in _KINDS.items()):
        raise TypeError("no warm-up")
    saved = SavedWarmup(**told)  # type: ignore[arg-type]
    saved.body.encode("utf-8", "surrogateescape")
    if not (0 <= saved.at < _AT_MAX and 0 <= saved.bytes_per_s < inf):
        raise ValueError("no time, or no rate")
    return saved


def save(path: Path, warmups: Sequence[SavedWarmup]) -> None:
    """Leave them for the next start, beside those that this one did not get to; a disk that fails is logged."""
    warmups = [*take(path), *warmups]
    if not warmups:
        return
    part = Path(f"{path}.part")
    try:
        # ASCII: what of a key is no UTF-8 stays an escape.
        data = json.dumps({"format": _FORMAT, "warmups": [asdict(one) for one in warmups]}).encode("ascii")
        with open(part, "wb", opener=block_dir.private) as file:
            file.write(data)
        part.replace(path)
    except OSError as error:
        log.warning("warm-ups not kept", extra={"error": str(error)})
