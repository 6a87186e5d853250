"""The parts of a node that believe something about names, and can be made to forget it."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engine.listing.list_cache import ListCache
from outrider.engine.read.version_cache import VersionCache
from outrider.ports import Name


class Beliefs:
    """Implements `engine.cluster.forgets.Forgetter`."""

    def __init__(self, versions: VersionCache, list_cache: ListCache) -> None:
        self._versions = versions
        self._list_cache = list_cache

    def forget(self, names: Sequence[Name], *, in_doubt: bool) -> None:
        for name in names:
            if in_doubt:
                self._versions.doubt(name)
            elif isinstance(name, str):
                self._versions.forget_bucket(name)
            else:
                self._versions.forget(name)
            self._list_cache.forget(name)

    def forget_all(self) -> None:
        self._versions.forget_all()
        self._list_cache.forget_all()
