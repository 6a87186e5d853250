"""Notes on disk the names of which older versions are not to be believed after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import VersionLookup
from outrider.ports import Name


class WrittenNames(Protocol):
    """A file with the names that were written through this proxy. A Protocol, as an adapter implements it."""

    @property
    def is_whole(self) -> bool:
        """The index of the cache directory is complete, so that a name without blocks needs no note."""
        ...

    async def note(self, names: Sequence[Name]) -> None: ...


async def note_written(
    written: WrittenNames | None, versions: VersionCache, version_lookup: VersionLookup, names: Sequence[Name]
) -> None:
    """Note those of `names` that may have blocks: a write of a new name takes no disk access.

    `written` None: the cache is in memory and ends with the process, so nothing is noted.
    """
    if written is not None and written.is_whole:
        names = [n for n in names if isinstance(n, str) or ":" in n.bucket
                 or versions.may_have(n) or version_lookup.is_asking(n)]  # fmt: skip
    if written is not None and names:
        await written.note(names)
