"""Carries out prefetch: reports to the planner what clients read, and fills the blocks that the planner wants.

The planner (`core.ahead`) decides what to prefetch, and when. This module asks it after each event, and fills what it
names, a few blocks at a time, behind all demand.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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

# At one tick reads are reported to the planner for so long, and for so long before other work has its turn. It takes 30
# to 100 us for each (`make bench-ahead`), ten times that for dozens of jobs of one dataset. Reported all at once, these
# reads were what the slowest of a hundred small hits waited for.
_REPORTING_S, _AT_ONCE_S = 0.01, 0.001
# Objects of a long hint that are looked up before other work has its turn.
_LOOKED_UP_AT_ONCE = 1000
_LOG_PAUSE_S = 60.0
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


Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after so many seconds."""


def _later(after_s: float, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(after_s, act)


@dataclass(frozen=True, slots=True)
class PrefetchPolicy:
    """How much is prefetched. `mode_of` is the mode for an object. At most `blocks` prefetched blocks are on their way
    at any time. `evicts`: the planner is the cache's eviction policy, so it hears of all reads in any mode. `later`
    makes the call that begins prefetch after a request, and `cpu` gives the seconds for which this thread has computed;
    tests replace both."""

    mode_of: Callable[[ObjectRef], Mode]
    blocks: int
    evicts: bool
    later: Later = _later
    cpu: Clock = time.thread_time


class Prefetch:
    """Owned by the composition root, and called on the engine's thread.

    1. `requested`, `sent`, `announce` and `withdraw` are events of clients. Each goes to the planner, and `think`
       follows. The planner gets a request after `READS_ON_S`: the client has its first bytes by then.
    2. `note` remembers a hit that was served without the engine. `tick` reports these to the planner.
    3. `think` asks the planner what it wants, and starts one task for each object. The planner gets each landed
       block by the store, and at the end of the task that no more blocks of the object will come.
    """

    def __init__(
        self, planner: Planner, fills: BackgroundFill, enumerator: Enumerator, scheduler: FillScheduler,
        runtime: Runtime, policy: PrefetchPolicy,
    ) -> None:  # fmt: skip
        self._planner = planner
        self._fills = fills
        self._discovery = DiscoveryRunner(planner, enumerator, scheduler, runtime, self.think)
        self._scheduler = scheduler
        self._spawn = runtime.spawn
        self._clock = runtime.clock
        self._mode_of = policy.mode_of
        self._blocks = policy.blocks
        self._evicts = policy.evicts
        self._later = policy.later
        self._cpu = policy.cpu
        # Readers of objects in the mode `object`, which are not reported to the planner.
        self._readers = Readers()
        self.on_read: Callable[[str, ObjectRef, ObjectVersion | None], None] = lambda client, ref, version: None
        """Called with each read in any mode, by a client of this node or of another: `requested`, `note`, `on_reads`.
        The version is None where it is not known."""
        self._hits = ReadLog()
        # Hits taken from the log that were not reported to the planner.
        self._unreported: deque[ClientRead] = deque()
        # Reads at other members that were not reported to the planner; the oldest are dropped.
        self._peer_reads: deque[_PeerRead] = deque(maxlen=_PEER_READS_MAX)
        self._pause = PrefetchPause()
        self._log_after = self._took_s = self._rested_at = 0.0
        self._is_stepping = self._will_report = self._will_think = False
        # The requests that the planner gets next, and the ends of requests.
        self._events: deque[tuple[Mode, ClientRead] | tuple[str, ObjectRef, float]] = deque()

    # -- events of clients ------------------------------------------------------------------------------------------

    def requested(self, client: str, version: ObjectVersion, extent: Extent, *, checksums: bool) -> None:
        """A client asks for `extent` of `version`; `checksums`: and for checksums of the whole object."""
        self.on_read(client, version.ref, version)
        mode = self._mode_of(version.ref)
        if (mode is Mode.OFF and not self._evicts) or extent.length == 0:
            return
        if mode is not Mode.OFF:
            self._fills.read(version.ref, checksums=checksums)
        self._events.append((mode, ClientRead(client, version, extent, self._clock())))
        self._will_think |= mode is Mode.EPOCH
        if not self._will_report:
            # The client has no answer yet, and may ask for more once it has.
            self._will_report = True
            self._later(READS_ON_S, self._report_reads)

    def sent(self, client: str, ref: ObjectRef) -> None:
        """A request of `client` for `ref` has ended."""
        if self._evicts or self._mode_of(ref) is Mode.EPOCH:
            self._events.append((client, ref, self._clock()))
            if not self._will_report:
                self._report_reads()

    def _report_reads(self) -> None:
        """Tell the planner what clients did, in the order in which they did it."""
        self._will_report = False
        while self._events:
            event = self._events.popleft()
            with self._harmless():
                if len(event) == 2:
                    self._report_read(*event)
                else:
                    self._planner.sent(*event)
        if self._will_think:
            self._will_think = False
            with self._harmless():
                self.think()

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
        """Called some times a second: reports noted hits to the planner, with pauses for other work, and thinks.
        Returns whether the planner knows of all hits."""
        if not self._unreported:
            self._unreported.extend(self._hits.take())
        reported_s, begun = 0.0, self._clock()
        while (self._unreported or self._peer_reads) and reported_s < _REPORTING_S:
            if self._unreported:
                self._report_hit(self._unreported.popleft())
            else:
                self._report_peer_read(self._peer_reads.popleft())
            if (took_s := self._clock() - begun) >= _AT_ONCE_S:
                reported_s += took_s
                await asyncio.sleep(0)
                begun = self._clock()
        with self._harmless():
            self._scheduler.tick()
            self.think()
        return not (self._unreported or self._hits or self._peer_reads)

    def _report_peer_read(self, peer_read: _PeerRead) -> None:
        with self._harmless():
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
        self.on_read(hit.client, hit.version.ref, hit.version)
        mode = self._mode_of(hit.version.ref)
        if mode is Mode.OFF and not self._evicts:
            return
        with self._harmless():
            self._report_read(mode, hit)
            if self._evicts or mode is Mode.EPOCH:
                self._planner.sent(hit.client, hit.version.ref, hit.at)

    def _report_read(self, mode: Mode, read: ClientRead) -> None:
        """Tells of a read. Fills the blocks that its reader is expected to ask for next, unless the mode is `off`."""
        version = read.version
        if self._evicts or mode is Mode.EPOCH:
            ahead = self._planner.requested(read.client, version.ref, version.size, read.extent, read.at)
        else:
            ahead = self._readers.requested(read.client, version.ref, version.size, read.extent, read.at).ahead
        if ahead is not None and mode is not Mode.OFF:
            self._fills.fill(version, self._fills.layout.indexes(ahead))

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """A bug in prefetch must not fail a client's request, nor end the ticks."""
        try:
            yield
        except Exception:  # logged once a minute: it may come with each request
            now = self._clock()
            if now >= self._log_after:
                self._log_after = now + _LOG_PAUSE_S
                log.exception("prefetch failed")

    # -- decisions of the planner, carried out ----------------------------------------------------------------------

    def think(self) -> None:
        """Asks the planner what it wants now, and begins it."""
        now, began_s = self._clock(), self._cpu()
        with self._harmless():
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
            with self._harmless():
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
