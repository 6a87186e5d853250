"""Whether the bytes that were sent of one version are those of another, which has the same ETag and another date.

The ETag is no proof: a store may keep it over an overwrite. The blocks of both versions are compared by their digests.
Those of the newer one are not fetched in vain: the cache has no use for the others any more.
"""

from __future__ import annotations

from itertools import groupby

from outrider.core.cache.readahead import BlockRun
from outrider.core.model import Extent, ObjectVersion
from outrider.engine.read.body import BodyParts

# The client waits for its next byte meanwhile, a minute at most. 64 blocks are 512 MiB: 13 s at 40 MB/s.
COMPARED_BLOCKS_MAX = 64


class SentBytes:
    """The bytes of `extent` were sent of `version`. Read before the newer version is known, whose blocks may take the
    room of these."""

    def __init__(self, version: ObjectVersion, extent: Extent, parts: BodyParts) -> None:
        self._version = version
        self._parts = parts
        self._indexes = parts.layout.indexes(extent)
        self._digests: list[str] = []

    async def read(self) -> bool:
        """Read the digests of the blocks. False: a block is not here, or there are too many to compare."""
        if len(self._indexes) <= COMPARED_BLOCKS_MAX:
            self._digests = await self._digests_of(self._version)
        return all(self._digests) and len(self._digests) == len(self._indexes)

    async def are_of(self, version: ObjectVersion) -> bool:
        """Whether they are also the bytes of this version, whose missing blocks are fetched for that."""
        if (version.etag, version.size) != (self._version.etag, self._version.size):
            return False
        flights, layout = self._parts.flights, self._parts.layout
        for wanted, run in groupby(self._indexes, lambda index: flights.wanted(layout.key(version, index))):
            first, *rest = run
            for part in flights.parts(version, BlockRun(first, 1 + len(rest))) if wanted else ():
                flights.fill(flights.board(version, part.run, peer=part.peer))
        return await self._digests_of(version) == self._digests

    async def _digests_of(self, version: ObjectVersion) -> list[str]:
        """Empty for a block that is not here."""
        digests = []
        for index in self._indexes:
            key, digest = self._parts.layout.key(version, index), ""
            if (flight := self._parts.flights.get(key)) is not None:
                await flight.ended()
            if (lease := await self._parts.store.lease(key)) is not None:
                try:
                    digest = await self._parts.store.digest(key, lease)
                finally:
                    lease.release()
            digests.append(digest)
        return digests
