"""Riding ahead, carried out: what the planner wants is brought, in the room and at the pace that it may take.

The planner (core) decides; this tells it what clients ask for, and does what it says: a few fills at a time, behind all
that somebody waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from cachetools import LRUCache

from outrider.core.ahead.candidates import Want
from outrider.core.ahead.hint_messages import PlanProgress
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.planner import Planner
from outrider.core.ahead.readers import Readers
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import BlockRun
from outrider.core.errors import S3Error, ServiceUnavailable, Signal, SlowDown, VersionChanged
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion
from outrider.core.origin.backoff import RETRYABLE_STATUSES
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.ahead.discovery_runner import NOT_TO_BE_HAD, DiscoveryRunner
from outrider.engine.fill.fill_scheduler import READS_ON_S, FillScheduler
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_reader import OriginRefused
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import NotCacheable, VersionLookup
from outrider.engine.tasks.runtime import Spawn
from outrider.metrics import Metrics
from outrider.ports import BlockStore, Clock

log = logging.getLogger(__name__)

# Hits that are remembered until the planner is told; of more than these it hears of the last.
_NOTES_MAX = 16_384
# Of one object, at one time that the planner is told: runs of bytes, after joining those that touch.
_RUNS_MAX = 4
# Heard at one tick: so many, for so long, and for so long before others have their turn. The planner takes 30 to 100 us
# for each (`make bench-ahead`), ten times that for dozens of jobs of one dataset. All at once they were what the
# slowest of a hundred small hits waited for. Of a storm the oldest are heard, and beyond `_NOTES_MAX` some never are.
_HEARD_MAX = 256
_HEARING_S, _AT_ONCE_S = 0.01, 0.001
_FOLDERS_MAX = 4096
# Of a long plan, objects that are looked for before others get their turn.
_LOOKED_FOR = 1000
# After a fill that failed, prefetching rests: twice as long after each in a row.
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
_LOG_PAUSE_S = 60.0
# A thought that takes longer holds all readers up: then at most one part in so many of the time goes into thinking.
_LONG_S, _REST = 0.002, 10.0
# What takes longer than a thought is pondered so long at once.
_PONDER_S = 0.0005


class Mode(Enum):
    """The setting `prefetch`: nothing ahead, the rest of an object that is being read, or what the epoch will read."""

    OFF = "off"
    OBJECT = "object"
    EPOCH = "epoch"


class Note(NamedTuple):
    """A read that was answered: from any thread, told to the planner later."""

    client: str
    version: ObjectVersion
    extent: Extent
    at: float


@dataclass(frozen=True, slots=True)
class PrefetchLimits:
    """`blocks`: on their way for nobody yet, at most. `bytes_per_s`: of such from the origin, on average over a few
    seconds; 0: without a limit."""

    blocks: int
    bytes_per_s: float = 0.0


Later = Callable[[float, Callable[[], None]], object]
"""Calls something after so many seconds."""


def _later(after_s: float, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(after_s, act)


class Prefetch:
    """Owned by the composition root, called on the engine's thread; only `note` may be called from others."""

    def __init__(
        self, planner: Planner, layout: BlockLayout, versions: VersionCache, store: BlockStore, flights: FlightTable,
        version_lookup: VersionLookup,
        enumerator: Enumerator, scheduler: FillScheduler, spawn: Spawn, clock: Clock, metrics: Metrics,
        *, mode_of: Callable[[ObjectRef], Mode], budget: PrefetchLimits, later: Later = _later,
    ) -> None:  # fmt: skip
        self._planner = planner
        self._layout = layout
        self._versions = versions
        self._store = store
        self._flights = flights
        self._version_lookup = version_lookup
        self._discovering = DiscoveryRunner(planner, enumerator, scheduler, spawn, clock, self.think)
        self._scheduler = scheduler
        self._spawn = spawn
        self._clock = clock
        self._metrics = metrics
        self._mode_of = mode_of
        self._budget = budget
        self._streams = Readers()
        self._notes: deque[Note] = deque(maxlen=_NOTES_MAX)
        self._unheard: deque[Note] = deque()
        # Folders whose readers ask for checksums of the whole: a fill that does not ask for them would cost such a
        # reader a question to the origin.
        self._checksums: LRUCache[tuple[str, str], bool] = LRUCache(_FOLDERS_MAX)
        self._pause_s = self._paused_until = 0.0
        self._log_after = self._took_s = self._rested_at = 0.0
        self._later = later
        self._pondering = self._will_think = False
        self.allowance = TokenBucket(budget.bytes_per_s, clock())

    # -- facts ----------------------------------------------------------------------------------------------------

    def asked(self, client: str, version: ObjectVersion, extent: Extent, *, checksums: bool) -> None:
        """A client asks for `extent` of `version`. `checksums`: and for those of the whole object."""
        mode = self._mode_of(version.ref)
        if mode is Mode.OFF or extent.length == 0:
            return
        self._checksums[_folder(version.ref)] = checksums
        with self._harmless():
            ahead = self._tell(mode, Note(client, version, extent, self._clock()))
            if ahead is not None:
                self._bring_ahead(version, ahead)
            if mode is Mode.EPOCH and not self._will_think:
                # Its reader has no answer yet, and asks for more when he has it.
                self._will_think = True
                self._later(READS_ON_S, self._think_at_last)

    def _think_at_last(self) -> None:
        self._will_think = False
        with self._harmless():
            self.think()

    def sent(self, client: str, ref: ObjectRef) -> None:
        """A request of `client` for `ref` has ended."""
        if self._mode_of(ref) is Mode.EPOCH:
            with self._harmless():
                self._planner.sent(client, ref, self._clock())

    def note(self, client: str, version: ObjectVersion, extent: Extent) -> None:
        """A hit that needed nobody: asked for and sent. From any thread; heard of at the next `tick`."""
        now = self._scheduler.read_at = self._clock()
        self._notes.append(Note(client, version, extent, now))

    def told(
        self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None, telling: Hint | None = None
    ) -> None:
        """The order in which one worker of `client` will read; see `http.control.control_bucket.Plans`."""
        wanted = [ref for ref in refs if self._mode_of(ref) is Mode.EPOCH]
        if telling is not None:
            telling.ignored += len(refs) - len(wanted)
        if wanted:
            self._planner.told(client, wanted, self._clock(), start=start, total=total, telling=telling)
        self.think()

    def withdraw(self, telling: Hint, others: Iterable[Hint]) -> int:
        """See `http.control.control_bucket.Plans`."""
        count = self._planner.withdraw(telling, others, self._clock())
        self.think()
        return count

    async def progress(self, telling: Hint) -> PlanProgress:
        """See `http.control.control_bucket.Plans`."""
        read = here = unread = unknown = 0
        for piece in telling.told(_LOOKED_FOR):
            read, unread, unknown = read + piece.read, unread + len(piece.unread), unknown + piece.unknown
            here += sum(map(self._is_here, piece.unread))
            await asyncio.sleep(0)
        return PlanProgress(read + unread + unknown, read, here, unread - here, unknown, telling.ignored)

    def _is_here(self, ref: ObjectRef) -> bool:
        """All of it, in the version last heard of."""
        version = self._versions.stale(ref)
        if version is None:
            return False
        vid = self._layout.version_id(version)
        return all(self._store.has(BlockKey(vid, index)) for index in range(self._layout.count(version.size)))

    async def tick(self) -> bool:
        """Called some times a second: hears the notes, with pauses in which others are served, and thinks. Whether it
        has heard all."""
        if not self._unheard:
            self._unheard.extend(_joined(self._notes))
        heard_s, slot = 0.0, self._clock()
        while self._unheard and heard_s < _HEARING_S:
            self._hear(self._unheard.popleft())
            if (took_s := self._clock() - slot) >= _AT_ONCE_S:
                heard_s += took_s
                await asyncio.sleep(0)
                slot = self._clock()
        with self._harmless():
            self.think()
        return not (self._unheard or self._notes)

    def _hear(self, note: Note) -> None:
        mode = self._mode_of(note.version.ref)
        if mode is Mode.OFF:
            return
        with self._harmless():
            ahead = self._tell(mode, note)
            if ahead is not None:
                self._bring_ahead(note.version, ahead)
            if mode is Mode.EPOCH:
                self._planner.sent(note.client, note.version.ref, note.at)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """An error of our own in what only guesses costs no reader his reply, and does not end the ticks."""
        try:
            yield
        except Exception:  # said once a minute: it may come with each request
            now = self._clock()
            if now >= self._log_after:
                self._log_after = now + _LOG_PAUSE_S
                log.exception("prefetch failed")

    def _tell(self, mode: Mode, note: Note) -> Extent | None:
        """What else of the object is worth bringing."""
        version = note.version
        if mode is Mode.OBJECT:
            return self._streams.asked(note.client, version.ref, version.size, note.extent, note.at).ahead
        return self._planner.asked(note.client, version.ref, version.size, note.extent, note.at)

    # -- decisions, carried out -------------------------------------------------------------------------------------

    def think(self) -> None:
        """Ask the planner what it wants now, and begin it."""
        now = self._clock()
        with self._harmless():
            if not self._pondering and self._planner.ponder():
                self._pondering = True
                self._spawn(self._ponder(), "ponder")
        self._discovering.begin()
        if now < max(self._paused_until, self._rested_at):
            return
        for want in self._wants(now):
            self._spawn(self._bring(want), f"prefetch {want.ref}")
        before_s, self._took_s = self._took_s, self._clock() - now
        # Twice in a row: one may have been held up itself.
        if (took_s := min(before_s, self._took_s)) > _LONG_S:
            self._rested_at = now + _REST * took_s

    async def _ponder(self) -> None:
        """A tenth of a core at most, and never so long at once that a reader would feel it."""
        began = self._clock()
        try:
            with self._harmless():
                while self._planner.ponder():
                    if (took_s := self._clock() - began) >= _PONDER_S:
                        await asyncio.sleep(_REST * took_s)
                        began = self._clock()
        finally:
            self._pondering = False
        self.think()

    def _wants(self, now: float) -> Iterator[Want]:
        room_bytes, blocks = self._store.room_bytes, self._budget.blocks
        if self._budget.bytes_per_s == 0:
            yield from self._planner.wants(now, room_bytes, blocks)
            return
        while self.allowance.may_spend(now):
            wants = self._planner.wants(now, room_bytes, min(blocks, self._planner.blocks_coming + 1))
            if not wants:
                return
            for want in wants:
                size = want.size if want.size >= 0 else self._layout.block_bytes
                self.allowance.spend(min(size, len(want.blocks) * self._layout.block_bytes))
                yield want

    async def _bring(self, want: Want) -> None:
        """One object's missing blocks; the planner hears of each by the store, or here that they will not come."""
        again = missing = False
        try:
            version = self.known(want.ref)
            flights = await self._begin_unknown(want) if version is None else self._begin(want, version)
            ended = [await flight.ended() for flight in flights]
            again = not all(ended)
            if any(isinstance(flight.failure, VersionChanged) for flight in flights):
                # Else the same version would be asked for again, and again in vain.
                self._versions.forget(want.ref)
        except (Signal, S3Error) as error:
            status = error.status if isinstance(error, OriginRefused) else 0
            again = isinstance(error, ServiceUnavailable | SlowDown) or status in RETRYABLE_STATUSES
            missing = status in NOT_TO_BE_HAD
            log.debug("prefetch given up", extra={"object": str(want.ref), "error": repr(error)})
        finally:
            self._planner.dropped(want.ref, again=again, missing=missing)
        self._pause(again)
        self.think()

    def _pause(self, failed: bool) -> None:
        """Where there is no room, or no origin, to try again at once would be to try for ever."""
        now = self._clock()
        if not failed:
            self._pause_s = 0.0
        elif now >= self._paused_until:
            # Else it was under way beside one that has failed, and both have the same reason.
            self._pause_s = min(_PAUSE_MAX_S, max(_PAUSE_S, 2 * self._pause_s))
            self._paused_until = now + self._pause_s

    def known(self, ref: ObjectRef) -> ObjectVersion | None:
        """None: the origin must be asked."""
        version = self._versions.fresh(ref)
        asks = self._checksums.get(_folder(ref), False)
        return None if version is None or (asks and not version.whole_headers) else version

    def _begin(self, want: Want, version: ObjectVersion) -> list[Flight]:
        if version.size != want.size:
            self._planner.found(want.ref, version.size)
        count = self._layout.count(version.size)
        blocks = range(count) if want.size < 0 else [index for index in want.blocks if index < count]
        return self.fill(version, blocks)

    async def _begin_unknown(self, want: Want) -> list[Flight]:
        flights: list[Flight] = []

        def begin(version: ObjectVersion) -> None:
            if version.size == 0:
                raise NotCacheable("nothing to bring")
            flights.extend(self._begin(want, version))

        await self.opened(want.ref, begin, size=want.size)
        return flights

    async def opened(
        self, ref: ObjectRef, begin: Callable[[ObjectVersion], None] = lambda version: None, *, size: int = -1,
        by_command: bool = False,
    ) -> ObjectVersion:  # fmt: skip
        """The version that the origin has, for who is in no hurry. The question brings the first block, if there is
        one: it waits for its turn as every other fill does. `begin` is called before that block is waited for.
        `size`: as a LIST told it; -1: nobody did. `by_command`: see `FillSlot`.

        Raises Signal, S3Error.
        """
        slot = self._scheduler.slot(demand=False, by_command=by_command)
        async with slot:
            # A reader may have come first; to wait for what he has asked takes nothing from anybody.
            joined = self._version_lookup.is_asking(ref)
            if joined:
                slot.give_back()
            version = self.known(ref)
            if version is None:
                asks = self._checksums.get(_folder(ref), False)
                version = await self._version_lookup.ask(ref, 0, whole_headers=asks, if_small=True, size=size)
            opened = self._flights.get(self._layout.key(version, 0))
            begin(version)
            if opened is not None and opened.slot is None:
                if not joined:
                    opened.slot = slot
                    slot.expect(opened.meta.extent.length)
                    self._metrics.prefetched_blocks.inc()
                await opened.ended()
            return version

    def fill(self, version: ObjectVersion, blocks: Iterable[int], *, by_command: bool = False) -> list[Flight]:
        """Begin to fill those that are neither here nor coming; the flights of all that are not here. `by_command`: see
        `FillSlot`."""
        vid = self._layout.version_id(version)
        flights: list[Flight] = []
        for index in blocks:
            key = BlockKey(vid, index)
            if self._flights.wanted(key):
                # A GET each: a reader that comes meanwhile brings forward just what it waits for.
                begun = self._flights.board(version, BlockRun(index, 1))
                self._flights.fill(begun, prefetch=True, by_command=by_command)
                self._metrics.prefetched_blocks.inc()
            flight = self._flights.get(key)
            if flight is not None:
                flights.append(flight)
        return flights

    def _bring_ahead(self, version: ObjectVersion, extent: Extent) -> None:
        self.fill(version, self._layout.indexes(extent))


def _joined(notes: deque[Note]) -> list[Note]:
    """The notes taken so far, oldest first; of one client and object those that touch are one."""
    runs: dict[tuple[str, ObjectRef], list[Note]] = {}
    heard = 0
    for _ in range(len(notes)):
        if heard == _HEARD_MAX:
            break
        note = notes.popleft()
        known = runs.setdefault((note.client, note.version.ref), [])
        if known and known[-1].extent.stop == note.extent.start and known[-1].version is note.version:
            known[-1] = known[-1]._replace(extent=Extent(known[-1].extent.start, note.extent.stop), at=note.at)
        elif len(known) < _RUNS_MAX:
            known.append(note)
            heard += 1
    return [note for its in runs.values() for note in its]


def _folder(ref: ObjectRef) -> tuple[str, str]:
    return ref.bucket, ref.key.rpartition("/")[0]
