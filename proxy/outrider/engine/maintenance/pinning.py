"""Pins: objects that are brought and then never evicted. Room is reserved for all objects of a pin before the first one
is brought."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from outrider.core.cache.pins import SavedPin
from outrider.core.errors import AccessDenied, InvalidRequest, NoRoom, NoSuchKey, ServiceUnavailable
from outrider.core.maintenance.object_list import parse_list
from outrider.core.maintenance.progress import FAILURES_TOLD_MAX, Progress, State
from outrider.core.model import ObjectVersion, quoted_etag
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.ahead.background_fill import BackgroundFill
from outrider.engine.fill.origin_reader import OriginRefused
from outrider.engine.maintenance.warmup import Book, Item, Warmup
from outrider.engine.maintenance.warmup_runner import WarmupRunner, reason_of
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.read.version_lookup import VersionLookup

log = logging.getLogger(__name__)

_QUESTIONS_AT_ONCE = 32
# How often pins are checked for lost blocks (damaged, or deleted by somebody else), to bring these again.
_CHECK_AGAIN_S = 60.0


class Pinning:
    """Owns the pins. `save` writes them to disk and returns once they would survive a crash; it raises OSError."""

    def __init__(
        self, warmup_runner: WarmupRunner, fills: BackgroundFill, version_lookup: VersionLookup,
        save: Callable[[Sequence[SavedPin]], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._warmup_runner = warmup_runner
        self._fills = fills
        self._version_lookup = version_lookup
        self._save = save
        self._saving = asyncio.Lock()
        self.book = Book(keeps_ended=True)
        self._refused: set[tuple[str, str]] = set()
        self._check_again_at = 0.0

    async def pin(self, pin: Warmup) -> None:
        """Reserve room for all objects that the pin's list names, save the pin, and begin to bring the objects.

        Raises:
            NoRoom: they do not fit next to the other pins; nothing has changed.
            S3Error: the origin does not have all of them, or the pin could not be saved.
        """
        warmup_runner = self._warmup_runner
        await warmup_runner.expand(pin)
        if pin.progress.failed:
            name, why = next(iter(pin.progress.failures.items()))
            raise InvalidRequest(f"Nothing was pinned: {name}: {why}")
        await warmup_runner.size_by_list(pin)
        await warmup_runner.each(list(pin.items.values()), _QUESTIONS_AT_ONCE, lambda item: self._ask(pin, item))
        room_bytes = await warmup_runner.store.most_bytes()
        # No await from here to the reservation: another pin may be in the making.
        before = self.book.get(pin.owner, pin.name)
        self.book.put(pin)
        try:
            self._reserve(pin, room_bytes)
        except NoRoom:
            if before is not None:
                self.book.put(before)
            else:
                self.book.pop(pin.owner, pin.name)
            raise
        if before is not None:
            warmup_runner.cancel(before)
        try:
            await self._write()
        except OSError as error:
            self._release(pin)
            raise ServiceUnavailable(f"The pin cannot be written to the cache directory: {error}.") from error
        warmup_runner.begin(pin, expand=False)

    async def unpin(self, owner: str, name: str) -> None:
        """The pin ends. Its objects stay in the cache until room is needed."""
        pin = self.book.get(owner, name)
        if pin is None:
            return
        self._release(pin)
        try:
            await self._write()
        except OSError as error:
            raise ServiceUnavailable(f"The cache directory cannot be written: {error}.") from error

    def told(self, pin: Warmup, failures_max: int = FAILURES_TOLD_MAX) -> dict[str, Any]:
        now = self._warmup_runner.clock()
        return {**self._warmup_runner.counted(pin).told(now, failures_max), "reserved_bytes": pin.need_bytes}

    # -- at a start, and from time to time ----------------------------------------------------------------------------

    def restore(self, saved: Sequence[SavedPin], room_bytes: int) -> None:
        """Make the saved pins again. Called before the store learns which blocks its directory has, so that none of
        theirs is evicted."""
        for entry in saved:
            now = self._warmup_runner.clock()
            body = entry.body.encode("utf-8", "surrogateescape")
            pin = Warmup(entry.owner, entry.client, entry.name, body, entry.at, parse_list(body), lambda ref: True,
                         Progress(now), TokenBucket(0.0, now), trusting=True)  # fmt: skip
            pin.add((ref, size) for ref, _, size in entry.objects)
            for ref, etag, _ in entry.objects:
                pin.items[ref].etag = etag
            self.book.put(pin)
            try:
                self._reserve(pin, room_bytes)
            except NoRoom as error:
                # The pin is kept, for a start with a larger cache.
                self._refused.add((entry.owner, entry.name))
                pin.progress.fail("", error.text)
                pin.progress.end(now)
                log.error("pin does not fit any more", extra={"pin": entry.name, "error": error.text})

    def resume(self) -> None:
        """Bring the blocks that are missing. Called once the store knows which blocks its directory has."""
        for pin in self.book.all():
            if (pin.owner, pin.name) not in self._refused:
                pin.again(self._warmup_runner.clock())
                self._warmup_runner.begin(pin, expand=False)

    def check_again(self) -> None:
        """Bring blocks again that were lost. Called from time to time; does its work once a minute."""
        now = self._warmup_runner.clock()
        if now < self._check_again_at:
            return
        self._check_again_at = now + _CHECK_AGAIN_S
        for pin in self.book.all():
            if pin.progress.state in (State.DONE, State.FAILED) and (pin.owner, pin.name) not in self._refused:
                self._warmup_runner.counted(pin, at_once=True)
                if pin.progress.objects < pin.progress.wanted_objects:
                    pin.again(now)
                    self._warmup_runner.begin(pin, expand=False)

    # -- within -------------------------------------------------------------------------------------------------------

    async def _ask(self, pin: Warmup, item: Item) -> None:
        """Ask the origin for the size and ETag of `item`, unless a LIST told them."""
        if item.size >= 0 and quoted_etag(item.etag) is not None:
            return
        try:
            version = self._fills.known(item.ref) or await self._version_lookup.ask(item.ref, None)
        except OriginRefused as refused:
            text = f"Nothing was pinned: {item.ref}: {reason_of(refused)}."
            raise {404: NoSuchKey, 403: AccessDenied}.get(refused.status, ServiceUnavailable)(text) from refused
        except NotCacheable as error:
            raise InvalidRequest(f"Nothing was pinned: {error}.") from error
        pin.found(item, version, self._warmup_runner.version_id(version))

    def _reserve(self, pin: Warmup, room_bytes: int) -> None:
        versions = [_version(item) for item in pin.items.values()]
        self._warmup_runner.pins.pin((pin.owner, pin.name), versions, room_bytes)
        pin.need_bytes = self._warmup_runner.pins.bytes_of((pin.owner, pin.name))
        for item, version in zip(pin.items.values(), versions, strict=True):
            item.version_id = self._warmup_runner.version_id(version)

    def _release(self, pin: Warmup) -> None:
        self._warmup_runner.cancel(pin)
        self._warmup_runner.pins.unpin((pin.owner, pin.name))
        self._refused.discard((pin.owner, pin.name))
        self.book.pop(pin.owner, pin.name)

    async def _write(self) -> None:
        # One save at a time, each with the pins that there are when it begins: the last one has all of them.
        async with self._saving:
            await self._save([_saved(pin) for pin in self.book.all()])


def _version(item: Item) -> ObjectVersion:
    etag = quoted_etag(item.etag)
    assert etag is not None, "it was asked for"
    return ObjectVersion(item.ref, etag, item.size)


def _saved(pin: Warmup) -> SavedPin:
    objects = tuple((item.ref, item.etag, item.size) for item in pin.items.values())
    return SavedPin(pin.owner, pin.client, pin.name, pin.body.decode("utf-8", "surrogateescape"), pin.at, objects)
