"""Versions from other members of the cluster: the authority of an object is asked before the origin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import BlockRun, fill_start
from outrider.core.cluster.peer_messages import Confirmed, PeerFailed
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.peer_block import PeerBlock
from outrider.engine.read.version_cache import AGE_UNKNOWN_S, VersionCache
from outrider.engine.read.version_rows import Mark

Learn = Callable[[ObjectVersion, Mark, bool], None]
"""Called with a version, the mark of its confirmation, and whether it is settled."""


class PeerAnswer(Protocol):
    """The answer of a member to a question about an object."""

    @property
    def confirmed(self) -> Confirmed: ...

    @property
    def extent(self) -> Extent | None:
        """The bytes that come with it; None: none."""
        ...

    @property
    def block(self) -> PeerBlock:
        """Brings the bytes of the first block, those of `extent` without a further question."""
        ...


class PeerVersions(Protocol):
    """The other members, as far as the version lookup needs them. `engine/cluster` implements it."""

    def has_owner(self, ref: ObjectRef, index: int) -> bool:
        """Whether another member owns the block, and is to be asked for it; that of the first one is the authority."""
        ...

    def had_authority(self, ref: ObjectRef) -> bool:
        """Whether another member was the authority until the ring changed, and is to be asked for what it has."""
        ...

    def lookup(
        self, ref: ObjectRef, extent: Extent | None, *, whole_headers: bool, is_ahead: bool, only_if_cached: bool
    ) -> AbstractAsyncContextManager[PeerAnswer]:
        """The authority's answer. `extent`: bytes of the first block that are to come along. `is_ahead`: no reader
        waits. `only_if_cached`: that of the authority before, which asks nobody.

        Raises:
            PeerFailed: no member gives an answer that may be believed.
        """
        ...


class VersionFromPeers:
    """Puts a question to the authority, and the block that comes along into a flight."""

    def __init__(
        self, layout: BlockLayout, peers: PeerVersions, versions: VersionCache, flights: FlightTable
    ) -> None:  # fmt: skip
        self._layout = layout
        self._peers = peers
        self._versions = versions
        self._flights = flights

    def has_authority(self, ref: ObjectRef) -> bool:
        """Whether a question about the object goes to a peer first. Where each read must ask, only the origin will
        do."""
        return self._versions.may_take_from_peers(ref) and self._peers.has_owner(ref, 0)

    def brings(self, ref: ObjectRef, byte: int) -> bool:
        """Whether another member brings the block of `byte`, and not along with its answer about the version."""
        index = self._layout.index_of(byte)
        return not (index == 0 and self.has_authority(ref)) and self._peers.has_owner(ref, index)

    def had_authority(self, ref: ObjectRef) -> bool:
        """Whether a question goes to the member first that was the authority before. Its answer waits for nobody, so
        this holds on behalf of a peer, too."""
        return self._versions.may_take_from_peers(ref) and self._peers.had_authority(ref)

    async def ask(
        self, ref: ObjectRef, requested_at: float, first_byte: int | None, learn: Learn,
        *, whole_headers: bool, is_ahead: bool, only_if_cached: bool,
    ) -> bool | None:  # fmt: skip
        """Ask the authority. `requested_at`: when the question began. `first_byte`: a reader waits for it.
        `only_if_cached`: see `PeerVersions.lookup`. False: the origin is to be asked. None: it is to be asked about the
        version alone. A member has the bytes, and its answer may be too old."""
        extent = self._extent(first_byte)
        try:
            async with self._peers.lookup(
                ref, extent, whole_headers=whole_headers, is_ahead=is_ahead, only_if_cached=only_if_cached
            ) as answer:
                version, mark = answer.confirmed.version, self._versions.mark_at(requested_at - answer.confirmed.age_s)
                if answer.confirmed.age_s >= AGE_UNKNOWN_S:
                    return None
                # A write that this node knows may have come in between, or the peer be less strict.
                if not self._versions.will_be_fresh(ref, mark):
                    if self._versions.likely(ref) is None:
                        self._versions.learn(version, mark)
                    return None if self._versions.likely(ref) == version else False
                if whole_headers and not version.whole_headers:
                    return False
                if (newer := self._versions.fresh(ref)) is not None and newer.identity != version.identity:
                    return False
                has_bytes = extent is not None and answer.extent is not None and answer.extent.start == extent.start
                if not has_bytes or not self._flights.wanted(self._layout.key(version, 0)):
                    learn(version, mark, answer.confirmed.is_settled)
                    return True
                assert extent is not None
                flights = self._flights.board(version, BlockRun(0, 1), extent.start, answer.block)
                learn(version, mark, answer.confirmed.is_settled)
                await self._flights.fill_begun(flights)
                return True
        except PeerFailed:
            return False

    def _extent(self, first_byte: int | None) -> Extent | None:
        """The bytes to ask for with the version: those of the first block, if the reader waits for it."""
        block_bytes = self._layout.block_bytes
        if first_byte is None or first_byte >= block_bytes:
            return None
        return Extent(fill_start(first_byte, block_bytes), block_bytes)
