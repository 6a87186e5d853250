"""Keeps the last good list of members in the cache directory: a start needs no source of members that answers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from outrider.adapters import sealed_file
from outrider.adapters.disk.disk_threads import DiskThreads

log = logging.getLogger(__name__)

_FORMAT = sealed_file.JsonFormat("members", 1)
# Ten thousand members take less.
_BYTES_MAX = 16 * 1024 * 1024


def load(path: Path) -> object:
    """The list that `MembersFile.save` wrote; None: there is none. Blocks."""
    try:
        return next(iter(_FORMAT.decode(sealed_file.read(path, _BYTES_MAX))), None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        log.warning("kept list of members ignored", extra={"file": str(path), "error": repr(error)})
        return None


@dataclass(frozen=True, slots=True)
class MembersFile:
    """Implements `engine.cluster.members.Keeper`."""

    path: Path
    work: DiskThreads

    async def save(self, kept: object) -> None:
        try:
            await sealed_file.write(self.path, [_FORMAT.encode([kept])], self.work.threads)
        except OSError as error:
            log.warning("list of members was not kept", extra={"file": str(self.path), "error": repr(error)})
