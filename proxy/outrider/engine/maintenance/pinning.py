"""Pins: objects that are fetched and then never evicted. Room is reserved for all objects of a pin before the first one
is fetched."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from outrider.core.cache.pins import SavedPin, Share
from outrider.core.errors import AccessDenied, InvalidRequest, NoRoom, NoSuchKey, ServiceUnavailable
from outrider.core.maintenance.object_list import parse_list
from outrider.core.maintenance.progress import FAILURES_REPORTED_MAX, State
from outrider.core.model import ObjectRef, ObjectVersion, quoted_etag
from outrider.engine.ahead.background_fill import BackgroundFill
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.maintenance.failures import reason_of
from outrider.engine.maintenance.own_part import KeptPart
from outrider.engine.maintenance.warmup import Book, Item, Warmup
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.read.version_lookup import VersionLookup

log = logging.getLogger(__name__)

_QUESTIONS_AT_ONCE = 32
# The owners of so many objects' blocks are computed before other tasks of the loop run.
_DIVIDED_AT_ONCE = 200
# How often pins are checked for lost blocks (damaged, or deleted by somebody else), to fetch these again.
_CHECK_AGAIN_S = 60.0


class Pinning:
    """Owns the pins of this node. `save` writes them to disk and returns once they would survive a crash; it raises
    OSError. In a cluster, this node reserves and fetches its own part of each pin."""

    def __init__(
        self, warmup_runner: WarmupRunner, fills: BackgroundFill, version_lookup: VersionLookup,
        save: Callable[[Sequence[SavedPin]], Awaitable[None]], is_behind: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`is_behind`: a disk works to which the newest pins were not saved."""
        self._warmup_runner = warmup_runner
        self._fills = fills
        self._version_lookup = version_lookup
        self._save, self._is_behind = save, is_behind
        self._saving = asyncio.Lock()
        self.book = Book(keeps_ended=True)
        self._refused: set[tuple[str, str]] = set()
        self._check_again_at = 0.0
        self._is_dividing = False
        self.ended: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Pins that are over, by owner and name, and when they ended: saved with the pins (see `PinsTogether`)."""
        self.is_resumed = True
        """The store knows which blocks its directory has. Nothing is fetched before."""
        if warmup_runner.kept_part() is not None:
            warmup_runner.pins.share = self._share

    async def pin(self, pin: Warmup) -> None:
        """Reserve room for all objects that the pin's list names, save the pin, and begin to fetch the objects.

        Raises:
            NoRoom: they do not fit next to the other pins; nothing has changed.
            S3Error: the origin does not have all of them, or the pin could not be saved; nothing has changed.
        """
        await self._find(pin)
        await self._keep(pin)

    async def _find(self, pin: Warmup) -> None:
        """Learn the sizes and ETags of all objects that the pin's list names. Raises S3Error, as `pin`."""
        warmup_runner = self._warmup_runner
        pin.part = warmup_runner.kept_part()
        await warmup_runner.expand(pin)
        if pin.progress.failed:
            name, why = next(iter(pin.progress.failures.items()))
            raise InvalidRequest(f"Nothing was pinned: {name}: {why}")
        await warmup_runner.size_by_list(pin)
        await warmup_runner.each(list(pin.items.values()), _QUESTIONS_AT_ONCE, lambda item: self._ask(pin, item))

    async def _keep(self, pin: Warmup) -> None:
        """Reserve room for the objects of the pin, whose sizes are known, save it in place of the one before, and begin
        to fetch them. Raises S3Error, as `pin`."""
        warmup_runner = self._warmup_runner
        room_bytes = await warmup_runner.store.most_bytes()
        shares = await self._shares(pin)
        # No await from here to the reservation: another pin may be in the making.
        before = self.book.get(pin.owner, pin.name)
        self.book.put(pin)
        try:
            self._reserve(pin, room_bytes, shares)
        except NoRoom:
            if before is not None:
                self.book.put(before)
            else:
                self.book.pop(pin.owner, pin.name)
            raise
        self._refused.discard((pin.owner, pin.name))
        try:
            await self.write()
        except OSError as error:
            self._release(pin)
            if before is not None:
                self._keep_on(before, room_bytes)
            raise ServiceUnavailable(f"The pin cannot be written to the cache directory: {error}.") from error
        if before is not None:
            warmup_runner.cancel(before)
        self._begin(pin)

    def _begin(self, pin: Warmup) -> None:
        """Fetch the objects of the pin, which are reserved."""
        if self._is_reserved(pin) and pin.task is None and self.is_resumed:
            self._warmup_runner.begin(pin, expand=False)

    async def adopt(self, pin: Warmup) -> None:
        """Keep a pin that other members keep. If its part does not fit here, it is kept without a reservation until it
        does. Raises ServiceUnavailable: it could not be saved."""
        try:
            await self._keep(pin)
        except NoRoom as error:
            if (before := self.book.get(pin.owner, pin.name)) is not None:
                self._release(before)
            self.book.put(pin)
            self._refuse(pin, error)
            await self._written()

    async def unpin(self, owner: str, name: str) -> None:
        """The pin ends. Its objects stay in the cache until room is needed."""
        pin = self.book.get(owner, name)
        if pin is None:
            return
        self._release(pin)
        await self._written()

    def report(self, pin: Warmup, failures_max: int = FAILURES_REPORTED_MAX) -> dict[str, Any]:
        now = self._warmup_runner.clock()
        return {**self._warmup_runner.counted(pin).report(now, failures_max), "reserved_bytes": pin.need_bytes}

    # -- at a start, and from time to time ----------------------------------------------------------------------------

    def restore(self, saved: Sequence[SavedPin], room_bytes: int) -> None:
        """Make the saved pins again. Called before the store learns which blocks its directory has, so that none of
        theirs is evicted."""
        self.is_resumed = False
        for entry in saved:
            if entry.has_ended:
                self.ended[entry.owner, entry.name] = entry.at
                continue
            body = entry.body.encode("utf-8", "surrogateescape")
            pin = Warmup(entry.owner, entry.client, entry.name, body, entry.at, parse_list(body), lambda ref: True,
                         self._warmup_runner.clock(), 0.0, trusting=True)  # fmt: skip
            pin.part = self._warmup_runner.kept_part()
            pin.add((ref, identity.size) for ref, identity in entry.objects)
            for ref, identity in entry.objects:
                pin.items[ref].is_named(identity)
            self._keep_on(pin, room_bytes)

    def _keep_on(self, pin: Warmup, room_bytes: int) -> None:
        """Keep a pin that was saved before. If it has no room any more, it is kept for a start with a larger cache."""
        self.book.put(pin)
        try:
            self._reserve(pin, room_bytes)
        except NoRoom as error:
            self._refuse(pin, error)

    def resume(self) -> None:
        """Fetch the blocks that are missing. Called once the store knows which blocks its directory has."""
        self.is_resumed = True
        for pin in self.book.all():
            if (pin.owner, pin.name) not in self._refused:
                pin.again(self._warmup_runner.clock())
                self._warmup_runner.begin(pin, expand=False)

    def check_again(self) -> None:
        """Fetch blocks again that were lost. Called from time to time; does its work once a minute."""
        now = self._warmup_runner.clock()
        if now < self._check_again_at:
            return
        self._check_again_at = now + _CHECK_AGAIN_S
        for pin in self.book.all():
            if pin.progress.state in (State.DONE, State.FAILED) and (pin.owner, pin.name) not in self._refused:
                self._warmup_runner.counted(pin, at_once=True)
                progress = pin.progress
                if progress.objects < progress.wanted_objects or progress.bytes < progress.wanted_bytes:
                    pin.again(now)
                    self._warmup_runner.begin(pin, expand=False)

    # -- in a cluster -------------------------------------------------------------------------------------------------

    def ring_changed(self) -> None:
        """Blocks have other owners: this node keeps another part of each pin."""
        if not self._is_dividing and self._divided_otherwise():
            self._is_dividing = True
            self._warmup_runner.spawn(self._divide_all(), "pins are divided anew")

    async def _divide_all(self) -> None:
        try:
            # The ring may change again meanwhile.
            while pins := self._divided_otherwise():
                for pin in pins:
                    await self._divide(pin)
                room_bytes = await self._warmup_runner.store.most_bytes()
                # The newest pin is the first to be given up. Then those that had no room are tried again.
                newest_first = list(reversed(self.book.all()))
                for pin in sorted(newest_first, key=self._is_refused):
                    self._fit(pin, room_bytes)
        except OSError as error:
            log.error("pins cannot be divided anew", extra={"error": repr(error)})
        finally:
            self._is_dividing = False

    def _divided_otherwise(self) -> list[Warmup]:
        """The pins of which this node keeps another part by now."""
        part = self._warmup_runner.kept_part()
        return [] if part is None else [pin for pin in self.book.all() if not part.is_that(pin.part)]

    def _share(self, ref: ObjectRef, size: int) -> Share:
        part = self._warmup_runner.kept_part()
        return Share(size) if part is None else part.share(ref, size)

    async def _divide(self, pin: Warmup) -> None:
        part = self._warmup_runner.kept_part()
        assert part is not None, "there is a ring"
        self._warmup_runner.cancel(pin)
        await pin.divide_known(part, self._warmup_runner.clock())
        if pin.task is not None:
            pin.task.cancel()  # it began again meanwhile
            pin.task = None
        async for shares in self._shares_in_steps(pin, part):
            if self._is_reserved(pin):
                self._warmup_runner.pins.divide(shares)

    def _fit(self, pin: Warmup, room_bytes: int) -> None:
        """Reserve a pin again that had no room, and give up one that has none any more; then fetch what is missing."""
        pins, key = self._warmup_runner.pins, (pin.owner, pin.name)
        if self.book.get(*key) is not pin:
            return  # it was ended meanwhile
        if key in self._refused or pins.reserved_bytes > room_bytes:
            pins.unpin(key)
            try:
                self._reserve(pin, room_bytes)
            except NoRoom as error:
                self._refuse(pin, error)
                return
            self._refused.discard(key)
        pin.need_bytes = pins.bytes_of(key)
        self._begin(pin)

    def _is_reserved(self, pin: Warmup) -> bool:
        return self.book.get(pin.owner, pin.name) is pin and not self._is_refused(pin)

    def _is_refused(self, pin: Warmup) -> bool:
        return (pin.owner, pin.name) in self._refused

    def _refuse(self, pin: Warmup, error: NoRoom) -> None:
        self._refused.add((pin.owner, pin.name))
        pin.progress.fail("", error.text)
        pin.progress.end(self._warmup_runner.clock())
        pin.need_bytes = 0
        log.error("pin does not fit any more", extra={"pin": pin.name, "error": error.text})

    async def _shares(self, pin: Warmup) -> dict[ObjectRef, Share] | None:
        """The parts of the pin's objects that this node keeps, by the ring at the end of the call; None: all."""
        while (part := self._warmup_runner.kept_part()) is not None:
            if not part.is_that(pin.part):
                await pin.divide_known(part, self._warmup_runner.clock())
            shares: dict[ObjectRef, Share] = {}
            async for some in self._shares_in_steps(pin, part):
                shares |= some
            if part.is_that(self._warmup_runner.kept_part()):
                return shares
        return None

    async def _shares_in_steps(self, pin: Warmup, part: KeptPart) -> AsyncGenerator[dict[ObjectRef, Share], None]:
        items = list(pin.items.values())
        for start in range(0, len(items), _DIVIDED_AT_ONCE):
            yield {item.ref: part.share(item.ref, item.size) for item in items[start : start + _DIVIDED_AT_ONCE]}
            await asyncio.sleep(0)

    # -- within -------------------------------------------------------------------------------------------------------

    async def _ask(self, pin: Warmup, item: Item) -> None:
        """Ask the origin for the size and ETag of `item`, unless a LIST showed them."""
        if item.size >= 0 and quoted_etag(item.etag) is not None:
            return
        try:
            version = self._fills.known(item.ref) or await self._version_lookup.ask(item.ref, None)
        except OriginRefused as refused:
            text = f"Nothing was pinned: {item.ref}: {reason_of(refused)}."
            raise {404: NoSuchKey, 403: AccessDenied}.get(refused.status, ServiceUnavailable)(text) from refused
        except NotCacheable as error:
            raise InvalidRequest(f"Nothing was pinned: {error}.") from error
        pin.found(item, version, self._warmup_runner.layout.version_id(version))

    def _reserve(
        self, pin: Warmup, room_bytes: int, shares: Mapping[ObjectRef, Share] | None = None
    ) -> None:  # fmt: skip
        versions = [_version(item) for item in pin.items.values()]
        self._warmup_runner.pins.pin((pin.owner, pin.name), versions, room_bytes, shares)
        pin.need_bytes = self._warmup_runner.pins.bytes_of((pin.owner, pin.name))
        for item, version in zip(pin.items.values(), versions, strict=True):
            item.version_id = self._warmup_runner.layout.version_id(version)

    def _release(self, pin: Warmup) -> None:
        self._warmup_runner.cancel(pin)
        self._warmup_runner.pins.unpin((pin.owner, pin.name))
        self._refused.discard((pin.owner, pin.name))
        self.book.pop(pin.owner, pin.name)

    async def _written(self) -> None:
        try:
            await self.write()
        except OSError as error:
            raise ServiceUnavailable(f"The cache directory cannot be written: {error}.") from error

    async def write(self) -> None:
        """Save all pins. Raises OSError."""
        # One save at a time, each with the pins that there are when it begins: the last one has all of them.
        async with self._saving:
            await self._write()

    async def copy(self) -> None:
        """Save all pins again if a disk lacks them. Called from time to time, and at a stop."""
        if not self._is_behind():
            return
        async with self._saving:
            # A save that was under way may have been to all of them.
            if self._is_behind():
                with suppress(OSError):
                    await self._write()

    async def _write(self) -> None:
        ended = [SavedPin(owner, "", name, "", at, (), has_ended=True) for (owner, name), at in self.ended.items()]
        await self._save([*map(_saved, self.book.all()), *ended])


def _version(item: Item) -> ObjectVersion:
    etag = quoted_etag(item.etag)
    assert etag is not None, "it was asked for"
    date = (("last-modified", item.modified),) if item.modified else ()
    return ObjectVersion(item.ref, etag, item.size, date)


def _saved(pin: Warmup) -> SavedPin:
    objects = tuple((item.ref, item.identity) for item in pin.items.values())
    return SavedPin(pin.owner, pin.client, pin.name, pin.body.decode("utf-8", "surrogateescape"), pin.at, objects)
