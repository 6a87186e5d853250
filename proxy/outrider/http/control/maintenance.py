"""What the reserved bucket takes as orders: a list of names under warm/, pin/, evict/ or verify/ (`core.warmlists`).

    PUT     warm/<name>     bring all of it; `x-amz-meta-rate: 200MB` bounds the bytes a second
    PUT     pin/<name>      the same, and nothing of it goes again; refused when it does not fit next to the other pins
    PUT     evict/<name>    drop what is here of it
    PUT     verify/<name>   read what is here of it and compare checksums; an empty list: all
    GET     each of these   how far that is, as JSON
    DELETE  warm/<name>     cancels it; of one that has ended, forgets it. pin/<name>: unpins

A client key may name what it may read, and sees its own orders alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from outrider.core.auth.grants import may_read
from outrider.core.errors import (
    InvalidArgument,
    MethodNotAllowed,
    NoSuchKey,
    S3Error,
    ServiceUnavailable,
    StoreUnavailable,
)
from outrider.core.maintenance.object_list import BODY_BYTES_MAX, ObjectList, SavedWarmup, parse_list
from outrider.core.maintenance.progress import Progress
from outrider.core.model import ObjectRef
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.verification import Verification
from outrider.engine.maintenance.warmup import Book, May, Warmup
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.http.access import Access, Who
from outrider.http.control.objects import Answer, Asked, ControlObject, ControlObjects, etag_of, note_of, object_of
from outrider.ports import Clock
from outrider.settings import parse_bytes

log = logging.getLogger(__name__)

FOLDERS = ("warm", "pin", "evict", "verify")
_EVICTIONS_MAX = 30
_EVICTIONS_BYTES_MAX = 64 * 1024
# Of the failures of each warm-up, what the status document repeats.
_FAILURES_SHOWN = 20


class MaintenanceCommands:
    """Answers for these folders. `clock`: seconds since 1970."""

    def __init__(
        self, warmup_runner: WarmupRunner, pinning: Pinning, verification: Verification, access: Access, clock: Clock
    ) -> None:
        self._warmup_runner = warmup_runner
        self.pinning = pinning
        self._verification = verification
        self._access = access
        self._clock = clock
        self._warmups = Book()
        self._evictions = ControlObjects(_EVICTIONS_MAX, _EVICTIONS_BYTES_MAX)

    async def answer(self, asked: Asked, folder: str, name: str) -> Answer:
        """Raises S3Error."""
        method = asked.operation.method
        if method == "PUT":
            body = await asked.body(BODY_BYTES_MAX)
            await self._take(asked, folder, name, body)
            return Answer(200, (("etag", etag_of(body)),))
        if method == "DELETE":
            await self._delete(asked.owner, folder, name)
            return Answer(204)
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed
        if folder == "evict":
            return note_of(asked, self._evictions.get(asked.owner, name))
        told = self._told(asked.owner, folder, name)
        if told is None:
            raise NoSuchKey
        return object_of(asked, _json(told), self._clock())

    def entries(self, owner: str) -> Iterator[tuple[str, ControlObject]]:
        """All that `owner` sees, by key."""
        for folder, names in (
            ("warm", [one.name for one in self._warmups.of(owner)]),
            ("pin", [one.name for one in self.pinning.book.of(owner)]),
            ("verify", [one.name for one in self._verification.of(owner)]),
        ):
            for name in names:
                yield f"{folder}/{name}", ControlObject(_json(self._told(owner, folder, name)), self._clock())
        for name, note in self._evictions.of(owner):
            yield f"evict/{name}", note

    def status(self, owner: str | None = None) -> dict[str, list[dict[str, Any]]]:
        """For the status document; `owner` None: of all. A pin tells what it reserves and what of that is on disk."""
        of: Callable[[Book], list[Warmup]] = lambda book: book.all() if owner is None else book.of(owner)  # noqa: E731
        now = self._warmup_runner.clock()
        warmups = [self._warmup_runner.counted(one).told(now, _FAILURES_SHOWN) for one in of(self._warmups)]
        return {"warmups": warmups, "pins": [self.pinning.told(one, _FAILURES_SHOWN) for one in of(self.pinning.book)]}

    # -- from a stop to the next start --------------------------------------------------------------------------------

    def under_way(self) -> list[SavedWarmup]:
        """The warm-ups that have not ended."""
        return [
            SavedWarmup(one.owner, one.name, one.body.decode("utf-8", "surrogateescape"), one.at,
                        one.allowance.bytes_per_s)
            for one in self._warmups.all() if one.running
        ]  # fmt: skip

    async def resume(self, saved: Iterable[SavedWarmup]) -> None:
        """Once it is known what lies in the directory: go on with them, for those who still may."""
        for one in saved:
            who = self._access.owner(one.owner)
            if who is None or self._warmups.get(one.owner, one.name) is not None:
                continue  # a key that is gone, or asked for again by now
            body, now = one.body.encode("utf-8", "surrogateescape"), self._warmup_runner.clock()
            client = who.client.name if who.client else ""
            try:
                wanted = await self._readable(body, who)
                self._warm(Warmup(one.owner, client, one.name, body, one.at, wanted, _may(who), Progress(now),
                                  TokenBucket(one.bytes_per_s, now)))  # fmt: skip
            except S3Error as error:
                log.info("warm-up not resumed", extra={"warmup": one.name, "error": error.text})

    # -- PUT ----------------------------------------------------------------------------------------------------------

    async def _take(self, asked: Asked, folder: str, name: str, body: bytes) -> None:
        if folder == "verify":
            wanted = await self._readable(body, asked.who) if body.strip() else None
            self._verification.begin(asked.owner, name, _covered(wanted, _may(asked.who)))
            return
        wanted = await self._readable(body, asked.who)
        if folder == "evict":
            await self._evict(asked, name, wanted)
        elif folder == "pin":
            await self.pinning.pin(self._warmup(asked, name, body, wanted))
        else:
            self._warm(self._warmup(asked, name, body, wanted))

    async def _readable(self, body: bytes, who: Who) -> ObjectList:
        def readable() -> ObjectList:
            wanted = parse_list(body)
            self._access.check_reads(who, wanted.refs)
            # As for a LIST: with a grant on the prefix, every key under it is covered.
            self._access.check_reads(who, wanted.prefixes)
            return wanted

        # A long one takes a while, and the hits of others are not to wait for it.
        return await asyncio.to_thread(readable)

    def _warmup(self, asked: Asked, name: str, body: bytes, wanted: ObjectList) -> Warmup:
        now = self._warmup_runner.clock()
        client = asked.who.client.name if asked.who.client else ""
        return Warmup(asked.owner, client, name, body, self._clock(), wanted, _may(asked.who), Progress(now),
                      TokenBucket(_rate(dict(asked.headers)), now))  # fmt: skip

    def _warm(self, warmup: Warmup) -> None:
        before = self._warmups.get(warmup.owner, warmup.name)
        if before is not None and before.running:
            if before.body == warmup.body and before.allowance.bytes_per_s == warmup.allowance.bytes_per_s:
                return  # it is what is being done
            self._warmup_runner.cancel(before)
        self._warmups.put(warmup)
        self._warmup_runner.begin(warmup)

    async def _evict(self, asked: Asked, name: str, wanted: ObjectList) -> None:
        store = self._warmup_runner.store
        try:
            gone = await store.drop(store.blocks_of(_covered(wanted, _may(asked.who))))
        except StoreUnavailable as error:
            raise ServiceUnavailable(f"The cache disk does not let them go: {error}.") from error
        told = {"name": name, "blocks": gone.blocks, "bytes": gone.bytes, "in_use_blocks": gone.later,
                "pinned_blocks": gone.pinned}  # fmt: skip
        self._evictions.put(asked.owner, name, ControlObject(_json(told), self._clock()))

    # -- GET, DELETE --------------------------------------------------------------------------------------------------

    def _told(self, owner: str, folder: str, name: str) -> dict[str, Any] | None:
        if folder == "verify":
            check = self._verification.get(owner, name)
            return None if check is None else check.told()
        if folder == "pin":
            pin = self.pinning.book.get(owner, name)
            return None if pin is None else self.pinning.told(pin)
        warmup = self._warmups.get(owner, name)
        return None if warmup is None else self._warmup_runner.counted(warmup).told(self._warmup_runner.clock())

    async def _delete(self, owner: str, folder: str, name: str) -> None:
        if folder == "pin":
            await self.pinning.unpin(owner, name)
        elif folder == "verify":
            self._verification.cancel(owner, name)
        elif folder == "evict":
            self._evictions.pop(owner, name)
        elif (warmup := self._warmups.get(owner, name)) is not None:
            if warmup.running:
                self._warmup_runner.cancel(warmup)
            else:
                self._warmups.pop(owner, name)


def _may(who: Who) -> May:
    client = who.client
    return (lambda ref: True) if client is None else (lambda ref: may_read(client, ref))


def _covered(wanted: ObjectList | None, may: May) -> Callable[[ObjectRef], bool]:
    """`wanted` None: all."""
    if wanted is None:
        return may
    refs, prefixes = frozenset(wanted.refs), wanted.prefixes

    def covered(ref: ObjectRef) -> bool:
        named = ref in refs or any(one.bucket == ref.bucket and ref.key.startswith(one.key) for one in prefixes)
        return named and may(ref)

    return covered


def _rate(headers: Mapping[str, str]) -> float:
    told = headers.get("x-amz-meta-rate")
    try:
        return 0.0 if told is None else float(parse_bytes(told))
    except ValueError as error:
        raise InvalidArgument(f"x-amz-meta-rate is a number of bytes a second, like 200MB: {error}") from error


def _json(told: object) -> bytes:
    return json.dumps(told, indent=2).encode() + b"\n"
