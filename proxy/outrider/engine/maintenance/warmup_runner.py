"""The runner of warm-ups: objects are fetched by command, and counted once they are on disk and verified there.

Warm-ups fill behind all demand and beside prefetch, by the means of `Prefetch`: a block that is cached, or on its way,
is not fetched again."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from itertools import takewhile
from typing import TYPE_CHECKING

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.pins import Pins
from outrider.core.cache.tenants import Tenants
from outrider.core.errors import S3Error, Signal, StoreUnavailable, VersionChanged
from outrider.core.maintenance.object_list import OBJECTS_MAX, ObjectList
from outrider.core.maintenance.progress import State
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.ahead.background_fill import BackgroundFill
from outrider.engine.fill.fill_scheduler import Purpose
from outrider.engine.fill.patience import A_CLIENT
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.maintenance.failures import NoRoomForObject, is_passing, is_unreachable, reason_of
from outrider.engine.maintenance.fair_places import FairPlaces
from outrider.engine.maintenance.own_part import KeptPart, OwnPart
from outrider.engine.maintenance.warmup import Item, Warmup
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.tasks.runtime import Runtime
from outrider.engine.tasks.task_group import TaskGroup
from outrider.ports import ControlledStore

if TYPE_CHECKING:
    from outrider.core.cluster.view import View

log = logging.getLogger(__name__)

# For each warm-up: enough to hide the round trips of small objects. For large ones the number of blocks is the bound.
_OBJECTS_AT_ONCE = 16
# Pauses before an object is tried again that was overwritten, or for which there was no room.
_PAUSES_S = (0.5, 2.0, 5.0)
# Pauses while the origin is away: a minute in all, for as long as a client would wait.
_OUTAGE_PAUSES_S = (0.5, 2.0, 5.0, 10.0, 20.0, 20.0)
# Objects that HEADs asked to warm, or that were written, and that are not here yet. One more is not warmed.
_HINTS_MAX = 1000
# Tokens are spent before the size of an object is known, and the excess is given back when it is. So a warm-up that
# waits for tokens looks this often whether there are some.
_TOKENS_AGAIN_S = 0.1
# Blocks that are here already are passed over so many at a time, before other tasks of the loop run.
_PASSED_AT_ONCE = 256
# A LIST costs as much as a dozen HEADs (AWS S3's price list), and takes longer.
_LIST_FROM = 20
_PAGE_KEYS = 1000

Act = Callable[[Item], Awaitable[None]]


class WarmupRunner:
    """Carries warm-ups out, and owns none of them. Called on the engine's thread."""

    def __init__(
        self, layout: BlockLayout, versions: VersionCache, store: ControlledStore, fills: BackgroundFill,
        enumerator: Enumerator, pins: Pins, runtime: Runtime, *, blocks_at_once: int,
        view: Callable[[], View] | None = None, tenants: Tenants | None = None,
    ) -> None:  # fmt: skip
        """`view`: the cluster as this member sees it; None: the node is alone. `tenants` None: clients are not
        distinguished."""
        self.layout = layout
        self._view = view
        self._versions = versions
        self.store = store
        self._fills = fills
        self._enumerator = enumerator
        self.pins = pins
        self.spawn = runtime.spawn
        self.clock = runtime.clock
        self._sleep = runtime.sleep
        # Blocks on their way for warm-ups, all together.
        self._places = FairPlaces(blocks_at_once, tenants)
        self._tenants = tenants
        self._hinted: dict[ObjectRef, None] = {}
        self._hints = asyncio.Semaphore(_OBJECTS_AT_ONCE)
        # All pauses for an origin that is away were in vain, and nothing came since: the next objects have none.
        # Otherwise the warm-up of ten thousand objects would take half a day to fail.
        self._is_unreachable = False

    # -- for the owners of warm-ups -----------------------------------------------------------------------------------

    def begin(self, warmup: Warmup, *, expand: bool = True) -> None:
        """`expand` False: its objects are known already."""
        warmup.progress.state, warmup.progress.listing = State.RUNNING, expand
        warmup.task = self.spawn(self._run(warmup, expand), f"warm {warmup.name}")
        # Not a `finally` in the task: a task that is cancelled before its first step never gets there.
        warmup.task.add_done_callback(lambda task: self._stopped(warmup, task))

    def cancel(self, warmup: Warmup) -> None:
        """End a warm-up. Blocks that are on their way still come, and stay."""
        if warmup.running and warmup.task is not None:
            warmup.progress.end(self.clock(), State.CANCELLED)
            warmup.task.cancel()

    def counted(self, warmup: Warmup, *, at_once: bool = False) -> Warmup:
        """The warm-up, its progress counted again. `at_once`: also if that was done a moment ago."""
        warmup.recount(self.store.has, self.layout, self.store.removals, self.clock, at_once=at_once)
        return warmup

    def hint(self, ref: ObjectRef) -> None:
        """Fetch this object, some time soon."""
        if ref not in self._hinted and len(self._hinted) < _HINTS_MAX:
            self._hinted[ref] = None
            task = self.spawn(self._fetch_hinted(ref), f"warm {ref}")
            task.add_done_callback(lambda _: self._hinted.pop(ref, None))

    async def _fetch_hinted(self, ref: ObjectRef) -> None:
        async with self._hints:
            warmup = Warmup("", "", str(ref), b"", 0.0, ObjectList((ref,), ()), lambda _: True, self.clock(), 0.0)
            # In a cluster an object may be larger than this node's cache: others own most of its blocks.
            warmup.room_bytes = await self.store.most_bytes() if self._view is None else sys.maxsize
            try:
                await self._fetch(warmup, Item(ref))
            except (Signal, S3Error) as error:
                log.info("not warmed", extra={"object": str(ref), "error": reason_of(error)})

    async def expand(self, warmup: Warmup) -> None:
        """Find the objects that its list names. Prefixes that cannot be listed are failures."""
        refs = warmup.wanted.refs
        for start in range(0, len(refs), _PAGE_KEYS):
            warmup.add((ref, -1) for ref in refs[start : start + _PAGE_KEYS])
            await asyncio.sleep(0)
        for prefix in warmup.wanted.prefixes:
            try:
                await self._list(warmup, prefix)
            except (Signal, S3Error) as error:
                warmup.progress.fail(str(prefix), reason_of(error), is_passing=is_passing(error))
        warmup.progress.listing = False

    async def _list(self, warmup: Warmup, prefix: ObjectRef) -> None:
        count = 0
        async with aclosing(self._enumerator.pages(prefix.bucket, prefix.key, A_CLIENT)) as pages:
            async for page in pages:
                for listed in page:
                    ref = ObjectRef(prefix.bucket, listed.key)
                    if len(warmup.items) >= OBJECTS_MAX:
                        warmup.progress.fail(str(prefix), f"more than {OBJECTS_MAX} objects: the rest was left out")
                        return
                    if not listed.key.startswith(prefix.key) or not warmup.may(ref):
                        warmup.progress.fail(str(ref), "AccessDenied: no grant of this client key covers it")
                        continue
                    count += 1
                    warmup.add([(ref, listed.size)])
                    warmup.items[ref].is_named(listed.identity)
        if not count:
            warmup.progress.fail(str(prefix), "there is no object whose key begins so")

    async def size_by_list(self, warmup: Warmup) -> None:
        """Look up sizes and ETags by a few LISTs where these show many. Those that they do not show stay unknown."""
        unsized: defaultdict[str, dict[str, Item]] = defaultdict(dict)
        for item in warmup.items.values():
            if item.size < 0:
                unsized[item.ref.bucket][item.ref.key] = item
        for bucket, items in unsized.items():
            if len(items) < _LIST_FROM:
                continue
            first, last = min(items), max(items)
            same = takewhile(lambda two: two[0] == two[1], zip(first, last, strict=False))
            prefix = "".join(char for char, _ in same)
            pages_left = len(items) // _PAGE_KEYS + 2
            try:
                async with aclosing(self._enumerator.pages(bucket, prefix, A_CLIENT)) as pages:
                    async for page in pages:
                        for listed in page:
                            if (found := items.get(listed.key)) is not None:
                                warmup.sized(found, listed.identity)
                        pages_left -= 1
                        if not pages_left or (page and page[-1].key >= last):
                            break
            except (Signal, S3Error) as error:
                log.info("list refused", extra={"bucket": bucket, "prefix": prefix, "error": reason_of(error)})

    async def each(self, items: Iterable[Item], at_once: int, act: Act) -> None:
        """Call `act` for all items, `at_once` of them at a time. Raises the first failure."""
        waiting = iter(items)

        async def work() -> None:
            for item in waiting:
                await act(item)

        async with TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())

    def kept_part(self) -> KeptPart | None:
        """The part of pins that this node keeps, as the ring is now; None: all."""
        return None if self._view is None else KeptPart(self._view(), self.layout)

    # -- one warm-up --------------------------------------------------------------------------------------------------

    async def _run(self, warmup: Warmup, expand: bool) -> None:
        log.info("warm-up begins", extra={"warmup": warmup.name})
        try:
            self._divide(warmup)
            await self._fetch_all(warmup, expand)
            while self._is_divided_otherwise(warmup):
                log.info("warm-up is divided anew", extra={"warmup": warmup.name})
                warmup.divide_anew(self.clock())
                self._divide(warmup)
                await self._fetch_all(warmup, expand)
        except asyncio.CancelledError:
            # Not raised to the task: the task would keep the error, the error this frame, the frame the warm-up, and
            # the warm-up the task.
            return
        except OSError as error:
            warmup.progress.fail("", f"the cache disk: {error}")
        progress = warmup.progress
        progress.end(self.clock())
        log.info("warm-up ended", extra={"warmup": warmup.name, "state": progress.state.value,
                                         "objects": progress.objects, "failed": progress.failed})  # fmt: skip

    def _divide(self, warmup: Warmup) -> None:
        if warmup.is_divided and self._view is not None:
            warmup.part = OwnPart(self._view(), self.layout, warmup.copies)

    def _is_divided_otherwise(self, warmup: Warmup) -> bool:
        """Whether blocks have other owners by now."""
        part = warmup.part if warmup.is_divided else None
        return part is not None and self._view is not None and not part.is_as(self._view())

    async def _fetch_all(self, warmup: Warmup, expand: bool) -> None:
        if expand:
            await self.expand(warmup)
        warmup.room_bytes, warmup.is_copying = await self.store.most_bytes() - self.pins.reserved_bytes, False
        # The objects whose versions this member is the authority of come first: others ask it for these.
        await self._fetch_each(warmup, lambda item: not item.counts)
        part = warmup.part
        if part is not None and part.copies != 1:
            warmup.is_copying = True
            await self._fetch_each(warmup, lambda item: part.view.turn(item.ref, 0))
        self._look_back(warmup)

    async def _fetch_each(self, warmup: Warmup, turn: Callable[[Item], int]) -> None:
        items = sorted((item for item in warmup.items.values() if not item.failed), key=turn)
        await self.each(items, _OBJECTS_AT_ONCE, lambda item: self._fetch_or_note(warmup, item))

    def _stopped(self, warmup: Warmup, task: asyncio.Task[None]) -> None:
        # It may have begun again, with another task.
        if warmup.running and warmup.task is task:
            warmup.progress.end(self.clock(), State.CANCELLED)

    def _look_back(self, warmup: Warmup) -> None:
        """The warm-up is done when all of it is here at the same time: objects that were evicted meanwhile are
        failures."""
        self.counted(warmup, at_once=True)
        for item in warmup.items.values():
            if not item.whole and not item.failed:
                why = "evicted before the warm-up ended: the cache is too small for it and what else is read"
                warmup.progress.fail(str(item.ref), why)

    async def _fetch_or_note(self, warmup: Warmup, item: Item) -> None:
        try:
            await self._fetch(warmup, item)
            if warmup.fetching is warmup.part:
                warmup.completed(item)
        except (Signal, S3Error) as error:
            item.failed = True
            warmup.progress.fail(str(item.ref), reason_of(error), is_passing=is_passing(error))

    async def _fetch(self, warmup: Warmup, item: Item) -> None:
        """Raises Signal, S3Error: why the object is not here as a whole."""
        pauses_s, outage_pauses_s = iter(_PAUSES_S), iter(_OUTAGE_PAUSES_S)
        while True:
            try:
                await self._fetch_once(warmup, item)
                self._is_unreachable = False
                return
            except (Signal, S3Error) as error:
                if isinstance(error, VersionChanged):
                    self._versions.forget(item.ref)
                if (pause_s := self._pause_after(error, pauses_s, outage_pauses_s)) is None:
                    raise
            await self._sleep(pause_s)

    def _pause_after(
        self, error: Signal | S3Error, pauses_s: Iterator[float], outage_pauses_s: Iterator[float]
    ) -> float | None:
        """How long to wait before the object is tried again; None: it has failed. The pauses are those that are
        left."""
        if is_passing(error) and not is_unreachable(error):
            return next(pauses_s, None)
        if not is_unreachable(error) or self._is_unreachable:
            return None
        pause_s = next(outage_pauses_s, None)
        self._is_unreachable = pause_s is None
        return pause_s

    async def _fetch_once(self, warmup: Warmup, item: Item) -> None:
        part = warmup.fetching
        if item.size >= 0:
            if not item.counts and not warmup.fetching_bytes(item, item.size):
                return  # all of it is for other members
            self._check_room(warmup, item, item.size)
        version = self._fills.known(item.ref)
        received = False
        if version is not None:
            version = await self._fills.landed(version)
        elif part is not None and not part.has(item.ref, 0):
            await self._place(warmup, item.ref)
            try:
                version = await self._fills.look_up(item.ref, purpose=Purpose.COMMAND)
            finally:
                self._places.give_back()
        else:
            received = not self._has_first_block(item.ref)
            # The answer has the first block: count a whole one while the size is unknown.
            first_bytes = min(item.size, self.layout.block_bytes) if item.size >= 0 else self.layout.block_bytes
            await self._place(warmup, item.ref, first_bytes)
            received_bytes = 0
            try:
                version = await self._fills.opened(item.ref, size=item.size, purpose=Purpose.COMMAND)
                received_bytes = min(version.size, self.layout.block_bytes)
            finally:
                self._places.give_back()
                for allowance in (warmup.allowance, self._fills.allowance):
                    allowance.spend(received_bytes - first_bytes)
        vid = self.layout.version_id(version)
        self._check_room(warmup, item, version.size)
        warmup.found(item, version, vid)
        if self.pins.is_pinned(item.ref):
            self.pins.block_cached(version, vid)
        await self._fetch_blocks(warmup, item, version, received)

    def _has_first_block(self, ref: ObjectRef) -> bool:
        """Whether its first block is here, as far as is known: the question for its version then costs no block."""
        version = self._versions.stale(ref)
        return version is not None and self.store.has(BlockKey(self.layout.version_id(version), 0))

    def _check_room(self, warmup: Warmup, item: Item, size: int) -> None:
        """Refuse an object for which there is no room left. Otherwise the end of a warm-up would evict its
        beginning."""
        if self.pins.is_pinned(item.ref):
            return
        need = self.pins.disk_bytes(warmup.fetching_bytes(item, size)) - item.room_bytes
        if (missing := warmup.need_bytes + need - warmup.room_bytes) > 0 and need > 0:
            where = "" if warmup.part is None or not warmup.is_copying else f" for a copy at {warmup.part.view.me.name}"
            raise NoRoomForObject(f"no room{where}: {missing} bytes are missing in the cache")
        item.room_bytes += need
        warmup.need_bytes += need

    async def _fetch_blocks(self, warmup: Warmup, item: Item, version: ObjectVersion, received: bool) -> None:
        passed = 0
        async with TaskGroup() as group:
            for key, length in warmup.fetching_blocks(item, self.layout):
                if self.store.is_verified(key) or (self.store.has(key) and warmup.trusting):
                    # The first block may have come a moment ago, with the answer to the question for the version.
                    warmup.confirm(item, length, self.clock(), fetched=received and key.index == 0)
                    passed += 1
                    if passed % _PASSED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                    continue
                await self._place(warmup, item.ref, 0 if self.store.has(key) else length)
                task = group.create_task(self._fetch_block(warmup, item, version, key, length))
                # Not a `finally` in the task: a task that is cancelled before its first step never gets there.
                task.add_done_callback(lambda _: self._places.give_back())

    async def _fetch_block(
        self, warmup: Warmup, item: Item, version: ObjectVersion, key: BlockKey, length: int
    ) -> None:
        if self.store.has(key):
            await self.store.verify(key, again=False)
        fetched = not self.store.has(key)
        if fetched:
            for flight in self._fills.fill(version, [key.index], purpose=Purpose.COMMAND):
                if not await flight.ended():
                    raise flight.failure or StoreUnavailable("the fill was given up")
        warmup.confirm(item, length, self.clock(), fetched=fetched)

    async def _place(self, warmup: Warmup, ref: ObjectRef, count: int = 0) -> None:
        """Take a place among the blocks at once, for `count` bytes that a warm-up has the allowance for."""
        if self._tenants is not None and warmup.client:
            self._tenants.expect(warmup.client, ref)
        if count > 0:
            # Before it takes a place: a slow warm-up must not hold up the others.
            await self._allowed(warmup.allowance, count)
        await self._places.take(warmup.client, count)
        if count > 0:
            # In the place: those of one tenant must not use up the allowance of all before others have their turns.
            try:
                await self._allowed(self._fills.allowance, count)
            except BaseException:
                self._places.give_back()
                raise

    async def _allowed(self, allowance: TokenBucket, count: int) -> None:
        while (wait_s := allowance.wait_s(self.clock())) > 0:
            await self._sleep(min(wait_s, _TOKENS_AGAIN_S))
        allowance.spend(count)
