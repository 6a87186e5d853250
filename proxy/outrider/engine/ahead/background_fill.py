"""Fills blocks that no client waits for: the means of prefetch, warm-ups and pins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cachetools import LRUCache

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import BlockRun
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.fill.content_verification import ContentVerification
from outrider.engine.fill.fill_scheduler import Purpose
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import VersionLookup
from outrider.metrics import Metrics
from outrider.ports import BlockStore

# Folders of which it is remembered whether their readers ask for checksums.
_FOLDERS_MAX = 4096


class CachedBlocks(NamedTuple):
    """The blocks of a version that are in the store: bit `i` of `blocks` stands for block `i` of `total`."""

    version_id: bytes
    total: int
    blocks: int

    @property
    def is_whole(self) -> bool:
        return self.blocks == (1 << self.total) - 1


class BackgroundFill:
    """Called on the engine's thread. Every fill begun here waits behind all demand.

    A block that is here, or on its way, is not fetched again. `allowance` is the token bucket of the bytes that all
    background fills together take from the origin; the callers of `fill` spend them.
    """

    def __init__(
        self, layout: BlockLayout, versions: VersionCache, store: BlockStore, flights: FlightTable,
        contents: ContentVerification, version_lookup: VersionLookup, metrics: Metrics, allowance: TokenBucket,
    ) -> None:  # fmt: skip
        self.layout = layout
        self.allowance = allowance
        self._versions = versions
        self._store = store
        self._flights = flights
        self._contents = contents
        self._version_lookup = version_lookup
        self._metrics = metrics
        # Whether the readers of a folder ask for checksums of whole objects. A fill for them asks for these too;
        # otherwise each such reader would cost a HEAD later.
        self._checksums: LRUCache[tuple[str, str], bool] = LRUCache(_FOLDERS_MAX)

    @property
    def room_bytes(self) -> int:
        """See `BlockStore.room_bytes`."""
        return self._store.room_bytes

    def read(self, ref: ObjectRef, *, checksums: bool) -> None:
        """A client reads the object, and asks for checksums of the whole object or not."""
        self._checksums[ref.folder] = checksums

    def known(self, ref: ObjectRef) -> ObjectVersion | None:
        """The current version; None: the origin must be asked for it."""
        version = self._versions.fresh(ref)
        return None if version is None or (self._with_checksums(ref) and not version.whole_headers) else version

    async def landed(self, version: ObjectVersion) -> ObjectVersion:
        """Wait for the flight of the block that a reader's question brings now, if there is one: `fill` would bring it
        once more. Returns the version that is known then."""
        await self._version_lookup.wait_for_transfer(version, None)
        return self._versions.fresh(version.ref) or version

    def forget(self, ref: ObjectRef) -> None:
        """The origin has another version by now: the next `known` is None."""
        self._versions.forget(ref)

    def is_cached(self, ref: ObjectRef) -> bool:
        """Whether all blocks of the version last known are in the store."""
        here = self.cached_blocks(ref)
        return here is not None and here.is_whole

    def cached_blocks(self, ref: ObjectRef) -> CachedBlocks | None:
        """The blocks in the store of the version last known; None: no version is known."""
        version = self._versions.stale(ref)
        if version is None:
            return None
        vid, count = self.layout.version_id(version), self.layout.count(version.size)
        return CachedBlocks(
            vid, count, sum(1 << index for index in range(count) if self._store.has(BlockKey(vid, index)))
        )

    async def opened(
        self, ref: ObjectRef, begin: Callable[[ObjectVersion], None] = lambda version: None, *, size: int = -1,
        purpose: Purpose = Purpose.READER,
    ) -> ObjectVersion:  # fmt: skip
        """The version that the origin has, requested behind all demand.

        The request brings the first block too, if there is one, and takes a slot as any other fill does. `begin` is
        called before that block is waited for. `size`: as a LIST has it; -1: not known.

        Raises Signal, S3Error.
        """
        self._check_kept(ref)
        # A slot of fills from the origin is not held while a peer is waited for: see `FlightTable`.
        scheduler = self._flights.scheduler_of(remote=self._version_lookup.has_peer_authority(ref))
        block_bytes = self.layout.block_bytes
        first_bytes = min(size, block_bytes) if size >= 0 else block_bytes
        slot = scheduler.slot(demand=False, purpose=purpose, ref=ref, work_bytes=first_bytes)
        async with slot:
            # A reader may have asked the origin already. To wait for that answer needs no slot.
            joined = self._version_lookup.is_looking_up(ref)
            if joined:
                slot.give_back()
            version = self.known(ref)
            if version is None:
                checksums = self._with_checksums(ref)
                version = await self._version_lookup.ask(
                    ref, 0, whole_headers=checksums, if_small=True, size=size, patient=False
                )
            version = await self.landed(version)
            opened = self._flights.get(self.layout.key(version, 0))
            begin(version)
            if opened is not None and opened.slot is None:
                if not joined:
                    opened.slot = slot
                    slot.expect(opened.meta.extent.length)
                    self._metrics.prefetched_blocks.inc()
                await opened.ended()
            return version

    async def look_up(self, ref: ObjectRef, *, purpose: Purpose = Purpose.READER) -> ObjectVersion:
        """The version that the object's authority, or the origin, has now, without any of its bytes, requested behind
        all demand. Raises Signal, S3Error."""
        scheduler = self._flights.scheduler_of(remote=self._version_lookup.has_peer_authority(ref))
        async with scheduler.slot(demand=False, purpose=purpose, ref=ref):
            version = await self._version_lookup.ask(ref, None, patient=False)
        return await self.landed(version)

    def fill(self, version: ObjectVersion, blocks: Iterable[int], *, purpose: Purpose = Purpose.READER) -> list[Flight]:
        """Begins to fill those of the blocks that are neither here nor on their way. Returns the flights of all that
        are not here. Raises StoreUnavailable: the object is only relayed."""
        self._check_kept(version.ref)
        vid = self.layout.version_id(version)
        flights: list[Flight] = []
        for index in blocks:
            key = BlockKey(vid, index)
            if self._flights.wanted(key):
                # One GET per block: a reader that comes meanwhile promotes only the blocks that it waits for.
                for part in self._flights.parts(version, BlockRun(index, 1)):
                    begun = self._flights.board(version, part.run, peer=part.peer)
                    self._flights.fill(begun, prefetch=True, purpose=purpose)
                self._metrics.prefetched_blocks.inc()
            flight = self._flights.get(key)
            if flight is not None:
                flights.append(flight)
        return flights

    def _check_kept(self, ref: ObjectRef) -> None:
        if self._contents.relays(ref):
            raise StoreUnavailable("its bytes did not match the bucket's checksum")

    def _with_checksums(self, ref: ObjectRef) -> bool:
        return bool(self._checksums.get(ref.folder, False))
