"""Carries out prefetch: reports to the planner what clients read, and fills the blocks that the planner wants.

The planner (`core.ahead`) decides what to prefetch, and when. This module asks it after each bundle of events, and
fills what it names, a few blocks at a time, behind all demand.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from outrider.core.ahead.hint_messages import PlanProgress
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.planner import Planner
from outrider.core.ahead.prefetch_candidates import Want
from outrider.core.ahead.prefetch_pause import PrefetchPause
from outrider.core.ahead.readers import Readers
from outrider.core.cluster.messages import BegunRead, ReadsNotice
from outrider.core.errors import S3Error, ServiceUnavailable, Signal, SlowDown, VersionChanged
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.core.origin.backoff import RETRYABLE_STATUSES
from outrider.core.origin.oddities import Uncached
from outrider.engine.ahead.background_fill import BackgroundFill
from outrider.engine.ahead.discovery_runner import UNAVAILABLE_STATUSES, DiscoveryRunner
from outrider.engine.ahead.event_log import AT_ONCE_S, BUNDLE_S, EventLog
from outrider.engine.ahead.read_log import ClientRead, ReadLog
from outrider.engine.fill.fill_scheduler import READS_ON_S, FillScheduler, Purpose
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.tasks.runtime import Runtime
from outrider.ports import Clock

log = logging.getLogger(__name__)

CountCached = Callable[[Sequence[ObjectRef]], Awaitable[int]]
"""How many of these objects are here as a whole."""

# At one tick hits are reported to the planner for so long. Reported all at once, these reads were what the slowest of a
# hundred small hits waited for.
_REPORTING_S = 0.01
# Objects of a long hint that are looked up before other work has its turn.
_LOOKED_UP_AT_ONCE = 1000
# A call of the planner that computes for longer than this holds all readers up. Then it rests for ten times as long as
# the call computed. The thread's own CPU time counts: on a busy machine it is interrupted amid a call, and if prefetch
# rested for that, it would rest just where readers wait longest.
_LONG_S, _REST = 0.002, 10.0
# The planner's long computations run for so long at once, with the same rests.
_STEPS_S = 0.0005


# Reads at other members that wait to be reported.
_PEER_READS_MAX = 16_384


def _purpose_of(want: Want) -> Purpose:
    return Purpose.GUESS if want.is_guess else Purpose.READER


class _PeerRead(NamedTuple):
    """`reader`: its name in the whole cluster; one of `readers` at `member`."""

    member: str
    readers: int
    reader: str
    read: BegunRead
    at: float


class Mode(Enum):
    """The setting `prefetch`: nothing, the rest of an object that is being read, or what the epoch will read next."""

    OFF = "off"
    OBJECT = "object"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class PrefetchPolicy:
    """How much is prefetched. `mode_of` is the mode for an object; `is_off`: it is off for all. At most `blocks`
    prefetched blocks are on their way at any time. `evicts`: the planner is the cache's eviction policy, so it learns
    of all reads in any mode. `cpu` gives the seconds for which this thread has computed."""

    mode_of: Callable[[ObjectRef], Mode]
    blocks: int
    evicts: bool
    is_off: bool
    cpu: Clock


class Prefetch:
    """Owned by the composition root, and called on the engine's thread.

    1. `requested` and `sent` are events of clients. They go to the log, and so do the blocks that the store admits and
       drops. The planner gets a bundle of them, and `think` follows.
    2. `note` remembers a hit that was served without the engine. `tick` reports these to the planner.
    3. `announce` and `withdraw` go to the planner at once, and `think` follows.
    4. `think` asks the planner what it wants, and starts one task for each object. At the end of the task the planner
       learns that no more blocks of the object will come.
    """

    def __init__(
        self, planner: Planner, fills: BackgroundFill, enumerator: Enumerator, scheduler: FillScheduler,
        runtime: Runtime, policy: PrefetchPolicy, events: EventLog,
    ) -> None:  # fmt: skip
        self._planner = planner
        self._events = events
        events.on_reported = self.think
        self._fills = fills
        self._discovery = DiscoveryRunner(planner, enumerator, scheduler, runtime, self.think)
        self._scheduler = scheduler
        self._spawn = runtime.spawn
        self._clock = runtime.clock
        self._mode_of = policy.mode_of
        self._blocks = policy.blocks
        self._evicts = policy.evicts
        self._is_off = policy.is_off
        self._is_deaf = policy.is_off and not policy.evicts
        self._cpu = policy.cpu
        # Readers of objects in the mode `object`, which are not reported to the planner.
        self._readers = Readers()
        self.on_read: Callable[[str, ObjectRef, ObjectVersion | None], None] | None = None
        """Called with each read in any mode, by a client of this node or of another: `requested`, `note`, `on_reads`.
        The version is None where it is not known."""
        self._hits = ReadLog()
        # Hits taken from the log that were not reported to the planner.
        self._unreported: deque[ClientRead] = deque()
        # Reads at other members that were not reported to the planner; the oldest are dropped.
        self._peer_reads: deque[_PeerRead] = deque(maxlen=_PEER_READS_MAX)
        self._pause = PrefetchPause()
        self._took_s = self._rested_at = 0.0
        self._is_stepping = self._is_stopped = False

    def stop(self) -> None:
        """The planner learns of what ends from here on, for the next start, and nothing is begun any more."""
        self._is_off = self._is_stopped = True
        self._events.stop()

    def learned(self) -> Planner:
        """The planner, which has learned of all events until now: for whoever shows what it knows. Hits that were
        served without the engine are reported at the next tick."""
        self._events.report_all()
        return self._planner

    # -- events of clients ------------------------------------------------------------------------------------------

    def requested(self, client: str, version: ObjectVersion, extent: Extent, *, checksums: bool) -> None:
        """A client asks for `extent` of `version`; `checksums`: and for checksums of the whole object."""
        if self.on_read is not None:
            self.on_read(client, version.ref, version)
        if self._is_deaf or extent.length == 0:
            return
        # The client has no answer yet, and may ask for more once it has. Only a reader that leaves a block or more
        # needs bytes of this object soon.
        is_soon = version.size - extent.stop >= self._fills.layout.block_bytes
        read = ClientRead(client, version, extent, self._clock())
        self._events.add(self._report_request, read, checksums, within_s=READS_ON_S if is_soon else BUNDLE_S)

    def sent(self, client: str, ref: ObjectRef) -> None:
        """A request of `client` for `ref` has ended."""
        if not self._is_deaf:
            self._events.add(self._report_sent, client, ref, self._clock())

    def _report_request(self, read: ClientRead, checksums: bool) -> None:
        mode = self._mode_of(read.version.ref)
        if mode is not Mode.OFF:
            self._fills.read(read.version.ref, checksums=checksums)
        self._report_read(mode, read)

    def _report_sent(self, client: str, ref: ObjectRef, at: float) -> None:
        if self._evicts or self._mode_of(ref) is Mode.EPOCH:
            self._planner.sent(client, ref, at)

    def note(self, client: str, version: ObjectVersion, start: int, stop: int, now: float) -> None:
        """A hit was served without the engine: the bytes from `start` to `stop`. The planner gets it at the next
        `tick`."""
        self._scheduler.read_at = now
        self._hits.add((client, version, start, stop, now))

    def on_reads(self, message: ReadsNotice) -> None:
        """A member of the cluster reports what its clients read. The planner gets it at the next `tick`."""
        now = self._clock()
        for read in message.reads:
            if self._evicts or self._mode_of(read.ref) is Mode.EPOCH:
                at, reader = now - read.age_s, message.reader_name(read)
                self._peer_reads.append(_PeerRead(message.sender, message.readers, reader, read, at))

    def announce(
        self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None, hint: Hint | None = None,
        on_peer: bool = False,
    ) -> None:  # fmt: skip
        """The order in which one worker of `client` will read; see `http.control.control_bucket.Plans`. `on_peer`:
        see `Planner.announced`."""
        self._events.report_all()
        wanted = [ref for ref in refs if self._mode_of(ref) is Mode.EPOCH]
        if hint is not None:
            hint.ignored += len(refs) - len(wanted)
        if wanted:
            self._planner.announced(
                client, wanted, self._clock(), start=start, total=total, hint=hint, on_peer=on_peer
            )  # fmt: skip
        self.think()

    def withdraw(self, hint: Hint, others: Iterable[Hint]) -> int:
        """See `http.control.control_bucket.Plans`."""
        self._events.report_all()
        count = self._planner.withdraw(hint, others, self._clock())
        self.think()
        return count

    async def progress(self, hint: Hint, count_cached: CountCached | None = None) -> PlanProgress:
        """See `http.control.control_bucket.Plans`. `count_cached` None: those in the store."""
        read = here = unread = unknown = 0
        for piece in hint.pieces(_LOOKED_UP_AT_ONCE):
            read, unread, unknown = read + piece.read, unread + len(piece.unread), unknown + piece.unknown
            if count_cached is None:
                here += sum(map(self._fills.is_cached, piece.unread))
            else:
                here += await count_cached(piece.unread)
            await asyncio.sleep(0)
        return PlanProgress(read + unread + unknown, read, here, unread - here, unknown, hint.ignored)

    async def tick(self) -> bool:
        """Called some times a second: reports events and noted hits to the planner, with pauses for other work, and
        thinks. Returns whether the planner knows of all."""
        if not self._unreported:
            self._unreported.extend(self._hits.take())
        reported_s, begun = 0.0, self._clock()
        while reported_s < _REPORTING_S and (self._unreported or self._peer_reads or not self._events.is_empty):
            if not self._events.is_empty:
                self._events.report_one()
            elif self._unreported:
                self._report_hit(self._unreported.popleft())
            else:
                self._report_peer_read(self._peer_reads.popleft())
            if (took_s := self._clock() - begun) >= AT_ONCE_S:
                reported_s += took_s
                await asyncio.sleep(0)
                begun = self._clock()
        with self._events.harmless():
            self._scheduler.tick()
            self.think()
        return not (self._unreported or self._hits or self._peer_reads) and self._events.is_empty

    def _report_peer_read(self, peer_read: _PeerRead) -> None:
        with self._events.harmless():
            if self.on_read is not None:
                self.on_read(peer_read.reader, peer_read.read.ref, None)
            self._planner.opened_on_peer(
                peer_read.member,
                peer_read.reader,
                peer_read.read.ref,
                peer_read.read.size,
                peer_read.readers,
                peer_read.at,
            )

    def _report_hit(self, hit: ClientRead) -> None:
        if self.on_read is not None:
            self.on_read(hit.client, hit.version.ref, hit.version)
        with self._events.harmless():
            self._report_read(self._mode_of(hit.version.ref), hit)
            self._report_sent(hit.client, hit.version.ref, hit.at)

    def _report_read(self, mode: Mode, read: ClientRead) -> None:
        """Reports a read. Fills the blocks that its reader is expected to ask for next, unless the mode is `off`."""
        version = read.version
        if self._evicts or mode is Mode.EPOCH:
            ahead = self._planner.requested(read.client, version.ref, version.size, read.extent, read.at)
        elif mode is Mode.OFF:
            return
        else:
            ahead = self._readers.requested(read.client, version.ref, version.size, read.extent, read.at).ahead
        if ahead is not None and mode is not Mode.OFF and not self._is_stopped:
            self._fills.fill(version, self._fills.layout.indexes(ahead))

    # -- decisions of the planner, carried out ----------------------------------------------------------------------

    def think(self) -> None:
        """Asks the planner what it wants now, and begins it."""
        if self._is_off:
            return
        self._events.report_all()
        self._events.has_reported = False
        now, began_s = self._clock(), self._cpu()
        with self._events.harmless():
            if not self._is_stepping and self._planner.step():
                self._is_stepping = True
                self._spawn(self._take_steps(), "planner steps")
        self._discovery.begin()
        if now < max(self._pause.until, self._rested_at):
            return
        for want in self._wants(now):
            self._spawn(self._bring(want), f"prefetch {want.ref}")
        before_s, self._took_s = self._took_s, self._cpu() - began_s
        # The last two calls: one alone is no habit.
        if (took_s := min(before_s, self._took_s)) > _LONG_S:
            self._rested_at = now + _REST * took_s

    async def _take_steps(self) -> None:
        """Runs the planner's long computations: on a tenth of a core at most, and briefly enough at once that no reader
        notices."""
        began_s = self._cpu()
        try:
            with self._events.harmless():
                while self._planner.step():
                    if (took_s := self._cpu() - began_s) >= _STEPS_S:
                        await asyncio.sleep(_REST * took_s)
                        began_s = self._cpu()
        finally:
            self._is_stepping = False
        self.think()

    def _wants(self, now: float) -> Iterator[Want]:
        """The objects to prefetch now, as far as the token bucket allows."""
        room_bytes, allowance = self._fills.room_bytes, self._fills.allowance
        if allowance.bytes_per_s == 0:
            yield from self._planner.wants(now, room_bytes, self._blocks)
            return
        block_bytes = self._fills.layout.block_bytes
        while allowance.may_spend(now):
            wants = self._planner.wants(now, room_bytes, min(self._blocks, self._planner.outstanding.blocks + 1))
            if not wants:
                return
            for want in wants:
                size = want.size if want.size >= 0 else block_bytes
                allowance.spend(min(size, len(want.blocks) * block_bytes))
                yield want

    async def _bring(self, want: Want) -> None:
        """Fills the missing blocks of one object, and reports to the planner at the end that no more of them will
        come."""
        again = missing = False
        try:
            version = self._fills.known(want.ref)
            if version is not None:
                version = await self._fills.landed(version)
            flights = await self._begin_unknown(want) if version is None else self._begin(want, version)
            ended = [await flight.ended() for flight in flights]
            again = not all(ended)
            if any(isinstance(flight.failure, VersionChanged) for flight in flights):
                # Otherwise the next attempt would ask for the old version, in vain again.
                self._fills.forget(want.ref)
        except (Signal, S3Error) as error:
            status = error.status if isinstance(error, OriginRefused) else 0
            again = isinstance(error, ServiceUnavailable | SlowDown) or status in RETRYABLE_STATUSES
            missing = status in UNAVAILABLE_STATUSES
            log.debug("prefetch given up", extra={"object": str(want.ref), "error": repr(error)})
        finally:
            blocks = None if want.size < 0 else want.blocks
            self._events.report_all()
            self._planner.dropped(want.ref, blocks, again=again, missing=missing)
        if again:
            self._pause.failed(self._clock())
        else:
            self._pause.succeeded()
        self.think()

    def _begin(self, want: Want, version: ObjectVersion) -> list[Flight]:
        if version.size != want.size:
            self._planner.found(want.ref, version.size)
        count = self._fills.layout.count(version.size)
        wanted = self._planner.blocks(want, count) if want.size < 0 else want.blocks
        blocks = [index for index in wanted if index < count]
        return self._fills.fill(version, blocks, purpose=_purpose_of(want))

    async def _begin_unknown(self, want: Want) -> list[Flight]:
        flights: list[Flight] = []

        def begin(version: ObjectVersion) -> None:
            if version.size == 0:
                raise NotCacheable(want.ref, Uncached.EMPTY)
            flights.extend(self._begin(want, version))

        if want.is_shared and 0 not in want.blocks:
            # Each member that owns a block of the object asks. Together they would bring the first block, which is
            # another member's, as often over the links.
            begin(await self._fills.look_up(want.ref, purpose=_purpose_of(want)))
        else:
            await self._fills.opened(want.ref, begin, size=want.size, purpose=_purpose_of(want))
        return flights
