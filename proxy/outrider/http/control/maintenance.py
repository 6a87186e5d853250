"""The maintenance commands of the control bucket: a list of names under warm/, pin/, evict/ or verify/ (see
`core.maintenance.object_list`).

    PUT     warm/<name>     fetch all of it; `x-amz-meta-rate: 200MB` bounds the bytes a second
    PUT     pin/<name>      the same, and never evict it; refused when it does not fit next to the other pins
    PUT     evict/<name>    drop the cached blocks of it
    PUT     verify/<name>   read the cached blocks of it and compare checksums; an empty list: all blocks
    GET     each of these   the progress, as JSON
    DELETE  warm/<name>     cancels it; a warm-up that has ended is forgotten. pin/<name>: unpins

A client key may name the objects that it may read, and sees its own commands alone.
"""

from __future__ import annotations

import asyncio
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
from outrider.http.control.objects import (
    ControlAnswer,
    ControlObject,
    ControlObjects,
    ControlRequest,
    answer_with,
    etag_of,
    json_answer,
    json_body,
)
from outrider.ports import Clock
from outrider.settings import parse_bytes

log = logging.getLogger(__name__)

FOLDERS = ("warm", "pin", "evict", "verify")
_EVICTIONS_MAX = 30
_EVICTIONS_BYTES_MAX = 64 * 1024


class MaintenanceCommands:
    """Answers the requests to these folders."""

    def __init__(
        self, warmups: Book, warmup_runner: WarmupRunner, pinning: Pinning, verification: Verification, access: Access,
        clock: Clock,
    ) -> None:  # fmt: skip
        """`warmups`: filled here. `clock`: seconds since 1970."""
        self._warmups = warmups
        self._warmup_runner = warmup_runner
        self.pinning = pinning
        self._verification = verification
        self._access = access
        self._clock = clock
        self._evictions = ControlObjects(_EVICTIONS_MAX, _EVICTIONS_BYTES_MAX)

    async def answer(self, request: ControlRequest, folder: str, name: str) -> ControlAnswer:
        """Raises S3Error."""
        method = request.operation.method
        if method == "PUT":
            body = await request.body(BODY_BYTES_MAX)
            await self._take(request, folder, name, body)
            return ControlAnswer(200, (("etag", etag_of(body)),))
        if method == "DELETE":
            await self._delete(request.owner, folder, name)
            return ControlAnswer(204)
        if not request.reads:
            raise MethodNotAllowed
        if folder == "evict":
            return answer_with(request, self._evictions.get(request.owner, name))
        progress = self._progress(request.owner, folder, name)
        if progress is None:
            raise NoSuchKey
        return json_answer(request, json_body(progress), self._clock())

    def entries(self, owner: str) -> Iterator[tuple[str, ControlObject]]:
        """The keys and objects that `owner` sees."""
        for folder, names in (
            ("warm", [warmup.name for warmup in self._warmups.of(owner)]),
            ("pin", [pin.name for pin in self.pinning.book.of(owner)]),
            ("verify", [check.name for check in self._verification.of(owner)]),
        ):
            for name in names:
                yield f"{folder}/{name}", ControlObject(json_body(self._progress(owner, folder, name)), self._clock())
        for name, entry in self._evictions.of(owner):
            yield f"evict/{name}", entry

    # -- from a stop to the next start --------------------------------------------------------------------------------

    def under_way(self) -> list[SavedWarmup]:
        """The warm-ups that have not ended."""
        return [
            SavedWarmup(warmup.owner, warmup.name, warmup.body.decode("utf-8", "surrogateescape"), warmup.at,
                        warmup.allowance.bytes_per_s)
            for warmup in self._warmups.all() if warmup.running
        ]  # fmt: skip

    async def resume(self, saved: Iterable[SavedWarmup]) -> None:
        """Go on with the warm-ups of owners that may still read their objects. To be called once the cache directory is
        indexed."""
        for warmup in saved:
            who = self._access.owner(warmup.owner)
            if who is None or self._warmups.get(warmup.owner, warmup.name) is not None:
                continue  # the client key was removed, or it has asked for this warm-up again by now
            body, now = warmup.body.encode("utf-8", "surrogateescape"), self._warmup_runner.clock()
            client = who.client.name if who.client else ""
            try:
                wanted = await self._readable(body, who)
                self._warm(Warmup(warmup.owner, client, warmup.name, body, warmup.at, wanted, _may(who), Progress(now),
                                  TokenBucket(warmup.bytes_per_s, now)))  # fmt: skip
            except S3Error as error:
                log.info("warm-up not resumed", extra={"warmup": warmup.name, "error": error.text})

    # -- PUT ----------------------------------------------------------------------------------------------------------

    async def _take(self, request: ControlRequest, folder: str, name: str, body: bytes) -> None:
        if folder == "verify":
            wanted = await self._readable(body, request.who) if body.strip() else None
            self._verification.begin(request.owner, name, _covered(wanted, _may(request.who)))
            return
        wanted = await self._readable(body, request.who)
        if folder == "evict":
            await self._evict(request, name, wanted)
        elif folder == "pin":
            await self.pinning.pin(self._warmup(request, name, body, wanted))
        else:
            self._warm(self._warmup(request, name, body, wanted))

    async def _readable(self, body: bytes, who: Who) -> ObjectList:
        def readable() -> ObjectList:
            wanted = parse_list(body)
            self._access.check_reads(who, wanted.refs)
            # As for a LIST: with a grant on the prefix, every key under it is covered.
            self._access.check_reads(who, wanted.prefixes)
            return wanted

        # In a thread: a long list takes a while, and the hits of others must not wait for it.
        return await asyncio.to_thread(readable)

    def _warmup(self, request: ControlRequest, name: str, body: bytes, wanted: ObjectList) -> Warmup:
        now, who = self._warmup_runner.clock(), request.who
        client = who.client.name if who.client else ""
        return Warmup(request.owner, client, name, body, self._clock(), wanted, _may(who), Progress(now),
                      TokenBucket(_rate(dict(request.headers)), now))  # fmt: skip

    def _warm(self, warmup: Warmup) -> None:
        before = self._warmups.get(warmup.owner, warmup.name)
        if before is not None and before.running:
            if before.body == warmup.body and before.allowance.bytes_per_s == warmup.allowance.bytes_per_s:
                return  # this very warm-up is under way
            self._warmup_runner.cancel(before)
        self._warmups.put(warmup)
        self._warmup_runner.begin(warmup)

    async def _evict(self, request: ControlRequest, name: str, wanted: ObjectList) -> None:
        store = self._warmup_runner.store
        try:
            gone = await store.drop(store.blocks_of(_covered(wanted, _may(request.who))))
        except StoreUnavailable as error:
            raise ServiceUnavailable(f"The cache disk does not let them go: {error}.") from error
        result = {"name": name, "blocks": gone.blocks, "bytes": gone.bytes, "in_use_blocks": gone.later,
                  "pinned_blocks": gone.pinned}  # fmt: skip
        self._evictions.put(request.owner, name, ControlObject(json_body(result), self._clock()))

    # -- GET, DELETE --------------------------------------------------------------------------------------------------

    def _progress(self, owner: str, folder: str, name: str) -> dict[str, Any] | None:
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
    """`wanted` None: all objects."""
    if wanted is None:
        return may
    refs, prefixes = frozenset(wanted.refs), wanted.prefixes

    def covered(ref: ObjectRef) -> bool:
        named = ref in refs or any(
            prefix.bucket == ref.bucket and ref.key.startswith(prefix.key) for prefix in prefixes
        )
        return named and may(ref)

    return covered


def _rate(headers: Mapping[str, str]) -> float:
    told = headers.get("x-amz-meta-rate")
    try:
        return 0.0 if told is None else float(parse_bytes(told))
    except ValueError as error:
        raise InvalidArgument(f"x-amz-meta-rate is a number of bytes a second, like 200MB: {error}") from error
