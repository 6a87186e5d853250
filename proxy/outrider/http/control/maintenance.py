"""The maintenance commands of the control bucket: a list of names under warm/, pin/, evict/ or verify/ (see
`core.maintenance.object_list`).

    PUT     warm/<name>     fetch all of it; `x-amz-meta-rate: 200MB` bounds the bytes a second, and in a cluster
                            `x-amz-meta-copies: all` puts a copy at each member, and a number at so many
    PUT     pin/<name>      the same, and never evict it; refused when it does not fit next to the other pins
    PUT     evict/<name>    drop the cached blocks of it
    PUT     verify/<name>   read the cached blocks of it and compare checksums; an empty list: all blocks
    GET     each of these   the progress, as JSON
    DELETE  warm/<name>     cancels it; a warm-up that has ended is forgotten. pin/<name>: unpins

In a cluster each member carries a command out for the blocks that it has or owns, and the progress is the sum. A pin is
`failed` while a part of it does not fit at another member.

A client key may name the objects that it may read, and sees its own commands alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from outrider.core.auth.grants import may_read
from outrider.core.cluster.messages import Command, CommandAnswer
from outrider.core.errors import (
    AccessDenied,
    InvalidArgument,
    MethodNotAllowed,
    NoSuchKey,
    S3Error,
    ServiceUnavailable,
    StoreUnavailable,
)
from outrider.core.maintenance.copies import parse_copies
from outrider.core.maintenance.object_list import BODY_BYTES_MAX, ObjectList, SavedWarmup, parse_list
from outrider.core.maintenance.progress import State
from outrider.core.maintenance.progress_sum import PART_NAMES_MAX, eviction_sum, verification_sum
from outrider.core.model import ObjectRef
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.verification import Verification
from outrider.engine.maintenance.warmup import Book, May, Warmup
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.http.access import Access, Principal
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

if TYPE_CHECKING:
    from outrider.engine.maintenance.commands_across_members import Together

log = logging.getLogger(__name__)

FOLDERS = ("warm", "pin", "evict", "verify")
_EVICTIONS_MAX = 30
_EVICTIONS_BYTES_MAX = 64 * 1024


class MaintenanceCommands:
    """Answers the requests to these folders."""

    def __init__(
        self, warmups: Book, warmup_runner: WarmupRunner, pinning: Pinning, verification: Verification, access: Access,
        clock: Clock, together: Together | None = None,
    ) -> None:  # fmt: skip
        """`warmups`: filled here. `clock`: seconds since 1970. `together` None: the node is alone."""
        self._warmups = warmups
        self._warmup_runner = warmup_runner
        self.pinning = pinning
        self._verification = verification
        self._access = access
        self._clock = clock
        self._together = together
        self._evictions = ControlObjects(_EVICTIONS_MAX, _EVICTIONS_BYTES_MAX)

    async def answer(self, request: ControlRequest, folder: str, name: str) -> ControlAnswer:
        """Raises S3Error."""
        method = request.operation.method
        if method == "PUT":
            body = await request.body(BODY_BYTES_MAX)
            await self._take(request, folder, name, body)
            return ControlAnswer(200, (("etag", etag_of(body)),))
        if method == "DELETE":
            await self._delete_at_all(request.owner, folder, name)
            return ControlAnswer(204)
        if not request.reads:
            raise MethodNotAllowed
        if folder == "evict":
            return answer_with(request, self._evictions.get(request.owner, name))
        progress = await self._progress_of_all(request.owner, folder, name)
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
                        warmup.allowance.bytes_per_s, warmup.copies)
            for warmup in self._warmups.all() if (warmup.running and not warmup.is_passed_on) or warmup.is_led
        ]  # fmt: skip

    async def resume(self, saved: Iterable[SavedWarmup]) -> None:
        """Go on with the warm-ups of owners that may still read their objects. To be called once the cache directory is
        indexed."""
        for warmup in saved:
            who = self._access.owner(warmup.owner)
            if who is None or self._warmups.get(warmup.owner, warmup.name) is not None:
                continue  # the client key was removed, or it has requested this warm-up again by now
            body = warmup.body.encode("utf-8", "surrogateescape")
            try:
                wanted = await self._readable(body, who)
                self._warm(self._warmup(
                    who, warmup.owner, warmup.name, body, wanted, warmup.bytes_per_s, warmup.copies, at=warmup.at
                ))  # fmt: skip
            except S3Error as error:
                log.info("warm-up not resumed", extra={"warmup": warmup.name, "error": error.text})

    # -- from other members -------------------------------------------------------------------------------------------

    async def command(self, command: Command) -> CommandAnswer:
        """Do this member's part of a command that another one passes on."""
        try:
            return CommandAnswer(await self._do(command))
        except S3Error as error:
            return CommandAnswer(error=error.text, code=error.code)

    async def _do(self, command: Command) -> dict[str, Any] | None:
        owner, folder, name = command.owner, command.folder, command.name
        if folder == "pin":
            return None if self._together is None else await self._together.pins.command(command)
        if command.verb == "put":
            who = self._access.owner(owner)
            if who is None:
                raise AccessDenied("the member does not know the client key")
            if folder == "verify":
                await self._verify(owner, name, command.body, who)
                return self._part(owner, folder, name)
            wanted = await self._readable(command.body, who)
            if folder == "evict":
                return await self._evicted(name, wanted, who)
            copies = 1 if command.copies is None else command.copies
            warmup = self._warmup(who, owner, name, command.body, wanted, command.bytes_per_s, copies)
            warmup.is_divided = warmup.is_passed_on = True
            self._warm(warmup)
        elif command.verb == "cancel" and folder == "warm":
            self._cancel(owner, name)
        elif command.verb == "delete":
            await self._delete(owner, folder, name)
        return self._part(owner, folder, name)

    def _part(self, owner: str, folder: str, name: str) -> dict[str, Any] | None:
        """This member's part of the progress."""
        if folder == "verify":
            check = self._verification.get(owner, name)
            return None if check is None else check.report(PART_NAMES_MAX)
        warmup = self._warmups.get(owner, name) if folder == "warm" else None
        if warmup is None:
            return None
        return self._warmup_runner.counted(warmup).own_report(self._warmup_runner.clock(), PART_NAMES_MAX)

    # -- PUT ----------------------------------------------------------------------------------------------------------

    async def _take(self, request: ControlRequest, folder: str, name: str, body: bytes) -> None:
        if folder == "verify":
            await self._verify(request.owner, name, body, request.who)
            return
        wanted = await self._readable(body, request.who)
        if folder == "evict":
            await self._evict(request, name, body, wanted)
        elif folder == "pin":
            pins = self.pinning if self._together is None else self._together.pins
            await pins.pin(self._wanted(request, folder, name, body, wanted))
        else:
            self._warm(self._wanted(request, folder, name, body, wanted))

    async def _verify(self, owner: str, name: str, body: bytes, who: Principal) -> None:
        wanted = await self._readable(body, who) if body.strip() else None
        self._verification.begin(owner, name, _covered(wanted, _may(who)), body)

    async def _readable(self, body: bytes, who: Principal) -> ObjectList:
        def readable() -> ObjectList:
            wanted = parse_list(body)
            self._access.check_reads(who, wanted.refs)
            # As for a LIST: with a grant on the prefix, every key under it is covered.
            self._access.check_reads(who, wanted.prefixes)
            return wanted

        # In a thread: a long list takes a while, and the hits of others must not wait for it.
        return await asyncio.to_thread(readable)

    def _wanted(self, request: ControlRequest, folder: str, name: str, body: bytes, wanted: ObjectList) -> Warmup:
        headers = dict(request.headers)
        rate, copies = _rate(headers), _copies(headers, folder)
        if self._together is not None and folder == "warm":
            rate = self._together.share_of(rate)
        return self._warmup(request.who, request.owner, name, body, wanted, rate, copies)

    def _warmup(
        self, who: Principal, owner: str, name: str, body: bytes, wanted: ObjectList, bytes_per_s: float, copies: int,
        at: float | None = None,
    ) -> Warmup:  # fmt: skip
        """`at` None: now."""
        client, now = who.client.name if who.client else "", self._warmup_runner.clock()
        at = self._clock() if at is None else at
        return Warmup(owner, client, name, body, at, wanted, _may(who), now, bytes_per_s, copies=copies)

    def _warm(self, warmup: Warmup) -> None:
        together = None if warmup.is_passed_on else self._together
        if together is not None:
            warmup.is_divided = True
        before = self._warmups.get(warmup.owner, warmup.name)
        if before is not None and before.running:
            if _request_of(before) == _request_of(warmup):
                return  # this very warm-up is under way
            self._warmup_runner.cancel(before)
        self._warmups.put(warmup)
        self._warmup_runner.begin(warmup)
        if together is not None:
            together.lead(warmup)

    async def _evict(self, request: ControlRequest, name: str, body: bytes, wanted: ObjectList) -> None:
        result = await self._evicted(name, wanted, request.who)
        if self._together is not None:
            others = await self._together.pass_on("put", "evict", request.owner, name, body)
            result = eviction_sum([result, *others])
        self._evictions.put(request.owner, name, ControlObject(json_body(result), self._clock()))

    async def _evicted(self, name: str, wanted: ObjectList, who: Principal) -> dict[str, Any]:
        store = self._warmup_runner.store
        try:
            gone = await store.drop(store.blocks_of(_covered(wanted, _may(who))))
        except StoreUnavailable as error:
            raise ServiceUnavailable(f"The cache disk does not let them go: {error}.") from error
        return {"name": name, "blocks": gone.blocks, "bytes": gone.bytes, "in_use_blocks": gone.later,
                "pinned_blocks": gone.pinned}  # fmt: skip

    # -- GET, DELETE --------------------------------------------------------------------------------------------------

    async def _progress_of_all(self, owner: str, folder: str, name: str) -> dict[str, Any] | None:
        """The progress, with the parts of the other members as they are now."""
        if self._together is not None and folder == "warm" and (warmup := self._warmups.get(owner, name)) is not None:
            await self._together.look(warmup)
        pin = self.pinning.book.get(owner, name) if folder == "pin" else None
        if self._together is not None and pin is not None:
            return await self._together.pins.report(pin)
        report = self._progress(owner, folder, name)
        if self._together is None or folder != "verify" or report is None:
            return report
        check = self._verification.get(owner, name)
        put = Command("", "put", folder, owner, name, b"" if check is None else check.body)
        return verification_sum([report, *await self._together.parts(put, repeats=True)])

    def _progress(self, owner: str, folder: str, name: str) -> dict[str, Any] | None:
        if folder == "verify":
            check = self._verification.get(owner, name)
            return None if check is None else check.report()
        if folder == "pin":
            pin = self.pinning.book.get(owner, name)
            return None if pin is None else self.pinning.report(pin)
        warmup = self._warmups.get(owner, name)
        return None if warmup is None else self._warmup_runner.counted(warmup).report(self._warmup_runner.clock())

    async def _delete(self, owner: str, folder: str, name: str) -> None:
        if folder == "pin":
            await self.pinning.unpin(owner, name)
        elif folder == "verify":
            self._verification.cancel(owner, name)
        elif folder == "evict":
            self._evictions.pop(owner, name)
        elif (warmup := self._warmups.get(owner, name)) is not None:
            if warmup.running or warmup.is_led:
                self._cancel(owner, name)
            else:
                self._warmups.pop(owner, name)

    async def _delete_at_all(self, owner: str, folder: str, name: str) -> None:
        if self._together is None or folder == "evict":
            await self._delete(owner, folder, name)
            return
        if folder == "pin":
            await self._together.pins.unpin(owner, name, self._clock())
            return
        report = await self._progress_of_all(owner, folder, name)
        if folder == "warm" and report is not None and report["state"] == State.RUNNING.value:
            self._cancel(owner, name)
            await self._together.pass_on("cancel", folder, owner, name)
        else:
            await self._delete(owner, folder, name)
            await self._together.pass_on("delete", folder, owner, name)

    def _cancel(self, owner: str, name: str) -> None:
        """End a warm-up. A part that has ended is cancelled, too: others may run still."""
        if (warmup := self._warmups.get(owner, name)) is not None:
            self._warmup_runner.cancel(warmup)
            warmup.progress.state = State.CANCELLED


def _request_of(warmup: Warmup) -> tuple[bytes, float, int]:
    return warmup.body, warmup.allowance.bytes_per_s, warmup.copies


def _may(who: Principal) -> May:
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
    given = headers.get("x-amz-meta-rate")
    try:
        return 0.0 if given is None else float(parse_bytes(given))
    except ValueError as error:
        raise InvalidArgument(f"x-amz-meta-rate is a number of bytes a second, like 200MB: {error}") from error


def _copies(headers: Mapping[str, str], folder: str) -> int:
    given = headers.get("x-amz-meta-copies")
    if given is None:
        return 1
    if folder == "pin":
        # Room for a pin is reserved where its blocks are owned. A copy elsewhere is what goes first.
        raise InvalidArgument("x-amz-meta-copies is for warm/ alone: a pin keeps each block where it is owned.")
    try:
        return parse_copies(given)
    except ValueError as error:
        raise InvalidArgument(f"x-amz-meta-copies: {error}") from error
