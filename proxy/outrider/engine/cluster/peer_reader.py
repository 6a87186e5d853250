"""Reads of blocks and versions from other members: which one is asked, and what becomes of one that fails.

A missing block is requested from its owner, or from the successor that acts for it. A member that fails is followed by
the next one that is alive, once; then the origin is asked. A body that breaks goes on at its offset there. After a
change of the ring, the member that had a block before is asked for what it has on disk.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from cachetools import TTLCache

from outrider.core.block_layout import BlockLayout
from outrider.core.cluster.member import Member
from outrider.core.cluster.peer_messages import Confirmed, PeerFailed, PeerRead, ReadClass
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.cluster.members import LiveMembers
from outrider.engine.cluster.peer_requests import PeerRequests
from outrider.engine.cluster.requested_block import LEFT_OUT, RequestedBlock
from outrider.engine.fill.content_verification import ContentVerification
from outrider.engine.fill.peer_block import PeerBlock
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_from_peers import PeerAnswer
from outrider.engine.tasks.runtime import Runtime
from outrider.metrics import Metrics
from outrider.ports import PeerTransport

log = logging.getLogger(__name__)

# The acting owner, and one more: whoever fails costs a time-out.
_ASKED_MAX = 2
# For how long a block is not asked of peers that came with a wrong digest.
_REFUTED_S = 60.0
_REFUTED_MAX = 10_000
# Failures after which the bucket is asked for a block that no other member can bring: the object has changed, or the
# member's process has gone.
_NOBODY_HAS_IT = frozenset(("changed", "connect"))


class PeerReads:
    """Implements `engine.fill.PeerReader` and `engine.read.PeerVersions`."""

    def __init__(
        self, members: LiveMembers, transport: PeerTransport, layout: BlockLayout, versions: VersionCache,
        contents: ContentVerification, runtime: Runtime, metrics: Metrics,
    ) -> None:  # fmt: skip
        self._members = members
        self.requests = PeerRequests(members, transport, layout, runtime)
        self._layout = layout
        self._versions = versions
        self._contents = contents
        self._runtime = runtime
        self._metrics = metrics
        # Blocks of which a peer stated a wrong digest.
        self._refuted: TTLCache[tuple[bytes, int], None] = TTLCache(_REFUTED_MAX, _REFUTED_S, runtime.clock)

    # -- for fills and relays: see `engine.fill.peer_block` -----------------------------------------------------------

    def block(self, version: ObjectVersion, index: int) -> PeerBlock | None:
        if self._is_doubted(version, index):
            self.gave_up(version.ref, index, "doubted")
            return None
        candidates = self.candidates(version.ref, index)
        if candidates:
            return RequestedBlock(self.requests, self, version, index, candidates, is_remote=True)
        previous = self._previous(version, index)
        if previous is None:
            self.gave_up(version.ref, index, LEFT_OUT)
        return previous

    def previous(self, version: ObjectVersion, index: int) -> PeerBlock | None:
        """As `block`, for a read on behalf of a peer: only disks are asked."""
        return None if self._is_doubted(version, index) else self._previous(version, index)

    def _previous(self, version: ObjectVersion, index: int) -> PeerBlock | None:
        member = self._previous_owner(version.ref, index)
        if member is None:
            return None
        return RequestedBlock(self.requests, self, version, index, [member], is_remote=False)

    def _previous_owner(self, ref: ObjectRef, index: int) -> Member | None:
        """The member that is to be asked for what it has on disk; None: nobody had the block before this node."""
        view = self._members.view
        member = view.previous_owner(ref, index) if view.previous else None
        if member is None or member.name == view.me.name:
            return None
        return member if self._members.health.of(member.name).may_hold(self._runtime.clock()) else None

    def _is_doubted(self, version: ObjectVersion, index: int) -> bool:
        """Bytes of the version, or this block, were wrong: only the origin will do."""
        key = self._layout.key(version, index)
        return (key.version_id, index) in self._refuted or self._contents.condemned_at(key.version_id) > 0

    def candidates(self, ref: ObjectRef, index: int) -> list[Member]:
        """The members to ask; none if this node is the first that acts for the block."""
        view = self._members.view
        found: list[Member] = []
        if len(view.acting.members) == 1 and view.acting.members[0].name == view.me.name:
            return found
        for member in view.acting.owners(ref, index):
            if member.name == view.me.name or len(found) == _ASKED_MAX:
                break
            if self._members.health.of(member.name).may_request(self._runtime.clock()):
                found.append(member)
        return found

    def gave_up(self, ref: ObjectRef, index: int, why: str) -> None:
        """This node is about to ask the bucket for the block. It is counted if a member that owns it is there."""
        view = self._members.view
        if why not in _NOBODY_HAS_IT and view.acting_owner(ref, index).name != view.me.name:
            self._metrics.peers.duplicate_fetches.labels(why).inc()

    def origin_flowed(self, count: int, waited_s: float, *, is_first: bool) -> None:
        bucket, now = self._members.health.bucket, self._runtime.clock()
        if is_first:
            bucket.replied(waited_s, now)
        else:
            bucket.flowed(count, waited_s, now)

    def known(self, version: ObjectVersion) -> Confirmed:
        """The version, and the age of its confirmation by the origin, as this node knows it."""
        return Confirmed(version, self._versions.age_s(version))

    def refuted(self, version: ObjectVersion, index: int, member: Member) -> None:
        """The member stated a digest that the bytes do not have."""
        self._refuted[self._layout.version_id(version), index] = None
        self._members.failed(member, "digest")
        log.warning(
            "bytes of a peer do not have its digest",
            extra={"object": str(version.ref), "block": index, "peer": member.name},
        )

    # -- for the version lookup: see `engine.read.version_from_peers` -------------------------------------------------

    def has_owner(self, ref: ObjectRef, index: int) -> bool:
        return bool(self.candidates(ref, index))

    def had_authority(self, ref: ObjectRef) -> bool:
        return self._previous_owner(ref, 0) is not None

    @asynccontextmanager
    async def lookup(
        self, ref: ObjectRef, extent: Extent | None, *, whole_headers: bool, is_ahead: bool, only_if_cached: bool
    ) -> AsyncIterator[PeerAnswer]:
        read_class = ReadClass.AHEAD if is_ahead else ReadClass.DEMAND
        read = PeerRead(
            ref, extent, read_class=read_class, whole_headers=whole_headers, only_if_cached=only_if_cached
        )  # fmt: skip
        failure = PeerFailed("absent")
        previous = self._previous_owner(ref, 0) if only_if_cached else None
        candidates = self.candidates(ref, 0) if not only_if_cached else [previous] if previous is not None else []
        for place, member in enumerate(candidates):
            async with AsyncExitStack() as stack:
                try:
                    begun = await stack.enter_async_context(self.requests.opened(member, read))
                except PeerFailed as error:
                    failure = error
                    continue
                reply, _ = begun
                block = RequestedBlock(
                    self.requests, self, reply.confirmed.version, 0, candidates[place:], is_remote=not only_if_cached,
                    begun=begun,
                )  # fmt: skip
                yield _ConfirmedRead(reply.confirmed, reply.extent, block)
                return
        # No member has a block of an object that the bucket does not have.
        if extent is not None and not only_if_cached and failure.why != "absent":
            self.gave_up(ref, 0, failure.why)
        try:
            raise failure
        finally:
            # Its traceback knows this frame.
            del failure


@dataclass(frozen=True, slots=True)
class _ConfirmedRead:
    confirmed: Confirmed
    extent: Extent | None
    block: RequestedBlock
