"""Reads that can be answered at once: the version is fresh, all blocks are here, nobody is asked or waited for."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion, version_id
from outrider.engine.catalog import Catalog
from outrider.ports import BlockStore, Clock, Lease

# A read over more blocks than this is long enough for the longer way not to matter.
_BLOCKS_MAX = 64


@dataclass(slots=True)
class Known:
    """A version that was fresh; `Hits.is_current` says whether it still is."""

    version: ObjectVersion
    version_id: bytes
    until: float
    changes: int


class Hits:
    """Looks only, and keeps nothing; from any thread."""

    def __init__(self, origin: str, catalog: Catalog, store: BlockStore, clock: Clock, *, block_bytes: int) -> None:
        self._origin = origin
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._block_bytes = block_bytes

    def known(self, ref: ObjectRef) -> Known | None:
        """None: the origin has to be asked first."""
        fresh = self._catalog.look(ref)
        if fresh is None:
            return None
        vid = version_id(self._origin, fresh.version, self._block_bytes)
        return Known(fresh.version, vid, fresh.until, fresh.changes)

    def is_current(self, known: Known) -> bool:
        """Whether the catalog would say the same again. False may also mean: look it up again."""
        return known.changes == self._catalog.changes and self._clock() < known.until

    def first_block(self, known: Known, extent: Extent) -> tuple[Lease, int, int] | None:
        """A lease, offset in the file and count of the first bytes of `extent`, when all of its blocks are here.

        None: something is missing, or not open.
        """
        block_bytes = self._block_bytes
        index, inside = divmod(extent.start, block_bytes)
        last = (extent.stop - 1) // block_bytes
        if last != index and not self._are_here(known, index + 1, last):
            return None
        lease = self._store.lease_at_once(BlockKey(known.version_id, index))
        if lease is None:
            return None
        return lease, lease.block.payload_offset + inside, min(block_bytes - inside, extent.length)

    def _are_here(self, known: Known, first: int, last: int) -> bool:
        if last - first >= _BLOCKS_MAX:
            return False
        return all(self._store.has(BlockKey(known.version_id, index)) for index in range(first, last + 1))
