"""The version lookup: which version of an object the origin has now. All clients that want to know share one question,
and the question about an unknown object brings its first block along."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from cachetools import LRUCache, TTLCache

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import FIRST_BLOCKS, BlockRun, fill_start
from outrider.core.cluster.peer_messages import Confirmed
from outrider.core.errors import OriginBroke, S3Error, ServiceUnavailable, Signal, unanswered, without_traceback
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion
from outrider.core.origin.backoff import RETRYABLE_STATUSES
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.fill import BULK_BYTES
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_body import OriginBody
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import NOBODY, Waiters
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.fill.reply_proof import Brought, Unproved
from outrider.engine.read.version_answers import CHECKSUMS, Answer, NotCacheable, VersionAnswers, kinds_of
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_from_peers import PeerVersions, VersionFromPeers
from outrider.engine.read.version_rows import Mark
from outrider.engine.tasks.runtime import Runtime
from outrider.futures import heard
from outrider.ports import OriginReply, OriginRequest

log = logging.getLogger(__name__)

# An origin that ignores Range sends all blocks of an object at once. More than these are not kept.
_IGNORED_BLOCKS_MAX = 1024
# A HEAD that was sent for checksums alone is waited for no longer than this once the bytes are here.
_CHECKSUMS_WAIT_S = 1.0
# A read of a version that is known waits for no longer than this for the head of a GET that brings its block.
_BROUGHT_WAIT_S = 1.0
# After a HEAD for checksums that failed or took longer, none is sent for this folder for so long: each read of a whole
# object in it would wait as long in vain.
_CHECKSUMS_REST_S = 60.0
# As many as for replies that contradict themselves, since most faults pass.
_REFUSAL_TRIES = 5
_FOLDERS_MAX = 4096


@dataclass(slots=True)
class _Question:
    """A question to the origin about one name, under way for all clients that want to know."""

    mark: Mark
    by_head: bool
    by_peers: bool
    """Other members are asked first, and may ask the origin themselves."""
    by_disks: bool
    """The member that was the authority is asked first, and asks nobody."""
    is_ahead: bool
    """No reader waits, as far as is known when it begins."""
    whole_headers: bool
    small: bool
    """The object most likely fits into one block."""
    index: int = -1
    """The block that is brought; -1: none."""
    settled: bool = True
    """No reply told of a version that may be overwritten without a change of its date."""
    waiters: Waiters = field(default_factory=Waiters)
    """Those for whom it is asked again while the origin is away."""
    answer: asyncio.Future[ObjectVersion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    boarded: asyncio.Event = field(default_factory=asyncio.Event)
    """The block that is brought has its flight, or will have none."""

    def settle(self, version: ObjectVersion) -> None:
        if not self.answer.done():
            self.answer.set_result(version)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            heard(self.answer)


class VersionLookup:
    """Owns the questions under way. Their answers go into the version cache; the block that a question brings, into a
    flight."""

    def __init__(
        self, layout: BlockLayout, origin_reader: OriginReader, versions: VersionCache, flights: FlightTable,
        runtime: Runtime, *, stale_if_error: bool = False, peers: PeerVersions | None = None,
    ) -> None:  # fmt: skip
        """`peers` None: the node is alone."""
        self._layout = layout
        self._origin_reader = origin_reader
        self._versions = versions
        self._flights = flights
        self._runtime = runtime
        self._stale_if_error = stale_if_error
        self._from_peers = None if peers is None else VersionFromPeers(layout, peers, versions, flights)
        self._answers = VersionAnswers(origin_reader, versions, runtime.clock)
        self._questions: dict[ObjectRef, _Question] = {}
        # The question under way about each name that is a GET: no other GET is to bring its block.
        self._gets: dict[ObjectRef, _Question] = {}
        # Folders whose checksums the origin does not tell now.
        self._no_checksums: TTLCache[tuple[str, str], None] = TTLCache(_FOLDERS_MAX, _CHECKSUMS_REST_S, runtime.clock)
        # The size last seen of each kind of object: one shard, or sample, is much like the next.
        self._sizes: LRUCache[tuple[str, str], int] = LRUCache(_FOLDERS_MAX)

    def uncached(self, error: NotCacheable) -> None:
        """A read is forwarded for this reason."""
        if isinstance(error.why, Oddity):
            self._answers.oddities.note(error.why, error.ref, uncached=True)
        else:
            self._answers.oddities.uncached(error.why)

    def unproved(self, ref: ObjectRef, error: Unproved) -> NotCacheable:
        """The blocks of an object cannot be filled, since no reply proves which bytes it brings."""
        return self._answers.refuse(ref, error.why)

    def cut(self, version: ObjectVersion) -> None:
        """The body of a reply ended early, because the origin no longer has `version`."""
        self._answers.cut(version)
        self._runtime.spawn(self._look_again(version.ref), f"look again {version.ref}")

    async def _look_again(self, ref: ObjectRef) -> None:
        """Ask whether the object was overwritten, or the origin sends another ETag with each reply: the next read is
        then relayed."""
        with suppress(Signal, S3Error):
            await self._answers.head(ref)

    def is_asking(self, ref: ObjectRef) -> bool:
        """Whether the version cache is about to be told of `ref`."""
        return ref in self._questions

    async def ask(
        self, ref: ObjectRef, first_byte: int | None, *, whole_headers: bool = False, if_small: bool = False,
        size: int = -1, by_get: bool = False, patient: bool = True,
    ) -> ObjectVersion:  # fmt: skip
        """The version that the origin has now.

        `first_byte`: the question is a GET that brings the block of that byte, so that an unknown object costs one
        round trip; None: the question is a HEAD. `whole_headers`: the checksums of the whole object are wanted, too,
        which stores leave out of a reply to a Range. `if_small`: they are wanted where they cost nothing, which is
        where one block holds the object. `size`: as a LIST told it; -1: unknown. `by_get`: the answer to the last
        question proved wrong, and a HEAD would only repeat it. `patient`: somebody waits for the answer, so that an
        origin that is away is asked for as long as clients wait. Where a stale version may stand in, it does so after a
        few tries.

        Raises:
            OriginRefused, NotCacheable, ServiceUnavailable: see `ObjectReads.get`.
        """
        self._answers.check(ref)
        if whole_headers and first_byte is not None and (get := self._get_under_way(ref)) and not get.whole_headers:
            return await self._with_checksums(ref, first_byte, patient=patient)
        patient = patient and not (self._stale_if_error and self._versions.stale(ref) is not None)
        question = self._asked(ref, first_byte, whole_headers, if_small, size, by_get, is_ahead=not patient)
        waiters, answers = question.waiters if patient else Waiters(), [question.answer]
        # No name for the question or its answer: an error knows the frames that it came through, and would close a
        # circle.
        del question
        try:
            with waiters:
                return await asyncio.shield(answers.pop())
        except (OriginBroke, OriginRefused) as error:
            down = isinstance(error, OriginBroke) or error.status in RETRYABLE_STATUSES
            if down and self._stale_if_error and (stale := self._versions.stale(ref)) is not None:
                log.warning("origin down, served stale", extra={"object": str(ref)})
                return stale
            if isinstance(error, OriginRefused):
                raise
            raise unanswered(error) from error

    async def confirm(
        self, ref: ObjectRef, first_byte: int | None, *, whole_headers: bool, is_ahead: bool
    ) -> Confirmed:
        """The version that the origin has now, for another member: no peer is asked. Raises what `ask` raises,
        and OriginBroke."""
        self._answers.check(ref)
        question = self._asked(ref, first_byte, whole_headers, False, -1, from_origin=True, is_ahead=is_ahead)
        waiters, mark, answers = question.waiters, question.mark, [question.answer]
        del question  # see `ask`
        with waiters:
            version = await asyncio.shield(answers.pop())
        told = self._versions.confirmed(ref)
        if told is not None and told.version == version:
            return told
        return Confirmed(version, self._runtime.clock() - mark.at)

    async def ask_checksums(self, ref: ObjectRef) -> None:
        """Ask for the checksums of an object whose version is fresh. The version cache has them afterwards, unless the
        origin does not tell them in time: a checksum is no reason to hold back, or refuse, bytes that are here."""
        if ref.folder not in self._no_checksums:
            await self._answer_beside(
                ref, self._ask_beside(ref, self.ask(ref, None, whole_headers=True, patient=False))
            )

    async def with_checksums(self, ref: ObjectRef) -> ObjectVersion:
        """The version with its checksums, for nobody that waits. If another member is the authority of the object, that
        one asks for all members. Raises what `ask` raises."""
        known = self._versions.confirmed(ref)
        if known is not None and known.version.whole_headers:
            return known.version
        return await self.ask(ref, None, whole_headers=True, patient=False)

    async def brought(self, version: ObjectVersion, byte: int | None, *, from_origin: bool = False) -> None:
        """Wait for the flight of the block that holds `byte`, if a question under way brings it, and it is not here.
        The version may be known before, by a HEAD that was answered earlier; a fill of the block would then bring it
        twice. `byte` None: whichever block is brought. `from_origin`: a question to other members is not waited for."""
        get = self._gets.get(version.ref)
        if get is None or (from_origin and get.by_peers):
            return
        if byte is not None and get.index != self._layout.index_of(byte):
            return
        if not self._flights.wanted(self._layout.key(version, get.index)):
            return
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(get.boarded.wait()),
            asyncio.ensure_future(self._runtime.sleep(_BROUGHT_WAIT_S)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _with_checksums(self, ref: ObjectRef, first_byte: int, *, patient: bool) -> ObjectVersion:
        """The answer of the GET under way, which tells no checksums, with those of a HEAD beside it."""
        if ref.folder in self._no_checksums:
            return await self.ask(ref, first_byte, patient=patient)
        beside = self._ask_beside(ref, self.ask(ref, None, whole_headers=True, patient=False))
        version = await self.ask(ref, first_byte, patient=patient)
        return _same(await self._answer_beside(ref, beside), version)

    # -- one question for all ---------------------------------------------------------------------------------------

    def _asked(
        self,
        ref: ObjectRef,
        first_byte: int | None,
        whole_headers: bool,
        if_small: bool,
        size: int,
        by_get: bool = False,
        *,
        is_ahead: bool = False,
        from_origin: bool = False,
    ) -> _Question:
        """A question under way whose answer will do, or one that begins now."""
        stale = self._versions.likely(ref)
        if stale is not None and first_byte is not None and not by_get and self._is_here(stale, first_byte):
            # The version is most likely the same still, so its block is not brought again. Not by If-None-Match: a 304
            # leaves out the headers, which may have changed while the bytes, and so the ETag, did not.
            first_byte = None
        # A question that began before a write may be answered with the older version. In a mode in which each read must
        # ask, the same holds for any question that began before this read.
        get = self._gets.get(ref)
        if get is not None and first_byte is not None and not (from_origin and get.by_peers):
            if self._get_under_way(ref) is not None:
                return get
            if not by_get and self._versions.believes(ref, get.mark):
                first_byte = None
        question = self._questions.get(ref)
        if question is not None and not self._versions.will_be_fresh(ref, question.mark):
            question = None
        if question is not None and from_origin and question.by_peers:
            # Two members that each take the other for the authority would wait for each other.
            question = None
        by_head = first_byte is None
        # The refusal of a HEAD has no body to answer a GET with.
        if question is None or (question.by_head and not by_head) or (whole_headers and not question.whole_headers):
            small = self._is_small(ref, size)
            # After an answer that proved wrong, the origin itself is asked.
            by_peers = not from_origin and not by_get and self.is_told_by_peers(ref)
            by_disks = not by_get and not by_peers and self._from_peers is not None and self._from_peers.told(ref)
            whole_headers = whole_headers or (not (by_peers or by_disks) and (by_head or (if_small and small)))
            question = _Question(self._versions.mark(), by_head, by_peers, by_disks, is_ahead, whole_headers, small)
            self._begin(ref, question, first_byte)
        return question

    def _begin(self, ref: ObjectRef, question: _Question, first_byte: int | None) -> None:
        self._questions[ref] = question
        if first_byte is not None:
            question.index = self._layout.index_of(first_byte)
            self._gets[ref] = question
        task = self._runtime.spawn(self._put(ref, question, first_byte), f"open {ref}")
        # Not a `finally` in the task: a task that is cancelled before its first step never gets there.
        task.add_done_callback(lambda _: self._ended(ref, question))

    async def _put(self, ref: ObjectRef, question: _Question, first_byte: int | None) -> None:
        try:
            if question.by_peers or question.by_disks:
                is_told = await self._ask_peers(ref, question, first_byte)
                if is_told or (is_told is None and await self._is_confirmed(ref, question)):
                    return
            if first_byte is None:
                version = await self._head(ref, question, question.waiters)
                if not version.whole_headers:
                    # A HEAD tells nothing, so it tells no checksums either.
                    self._no_checksums[ref.folder] = None
                self._learn(ref, question, version)
            else:
                await self._get(ref, question, first_byte)
        except Signal as error:
            question.fail(without_traceback(error))
        except Exception as error:  # noqa: BLE001 - top of a task: our bug becomes the waiters' 500
            question.fail(error)

    async def _is_confirmed(self, ref: ObjectRef, question: _Question) -> bool:
        """Ask the origin about the version alone. False: it refuses, and has to be asked with a GET."""
        try:
            self._learn(ref, question, await self._head(ref, question, question.waiters))
        except OriginRefused:
            return False
        return True

    def is_told_by_peers(self, ref: ObjectRef) -> bool:
        """Whether a question about the object goes to a peer first."""
        return self._from_peers is not None and self._from_peers.tells(ref)

    async def _ask_peers(self, ref: ObjectRef, question: _Question, first_byte: int | None) -> bool | None:
        """Ask the object's authority; see `VersionFromPeers.ask`."""
        assert self._from_peers is not None

        def learn(version: ObjectVersion, mark: Mark, settled: bool) -> None:
            question.settled = settled
            self._learn(ref, question, version, mark)

        return await self._from_peers.ask(
            ref, question.mark.at, first_byte, learn,
            whole_headers=question.whole_headers, is_ahead=question.is_ahead,
            only_if_here=question.by_disks,
        )  # fmt: skip

    def _ended(self, ref: ObjectRef, question: _Question) -> None:
        question.fail(ServiceUnavailable("The proxy is stopping."))
        self._over(ref, question)

    def _over(self, ref: ObjectRef, question: _Question) -> None:
        """The question is answered, or failed; its task goes on only to fill a block."""
        question.boarded.set()
        for questions in (self._questions, self._gets):
            if questions.get(ref) is question:
                del questions[ref]

    def _get_under_way(self, ref: ObjectRef) -> _Question | None:
        """A GET about `ref` whose answer will do for a read that comes now."""
        get = self._gets.get(ref)
        return get if get is not None and self._versions.will_be_fresh(ref, get.mark) else None

    def _is_here(self, version: ObjectVersion, byte: int) -> bool:
        return not self._flights.wanted(self._layout.key(version, self._layout.index_of(byte)))

    def _is_small(self, ref: ObjectRef, size: int) -> bool:
        """Whether one block most likely holds the object. `size` -1: unknown."""
        seen = size if size >= 0 else self._seen_bytes(ref)
        return seen is not None and seen <= self._layout.block_bytes

    def _seen_bytes(self, ref: ObjectRef) -> int | None:
        """The size last seen of an object like this one; None: there was none."""
        for kind in kinds_of(ref):
            if (size := self._sizes.get(kind)) is not None:
                return size
        return None

    # -- asked by HEAD, or by a GET that brings a block -------------------------------------------------------------

    async def _head(
        self, ref: ObjectRef, question: _Question, waiters: Waiters, *, empty: bool = False, alone: bool = False
    ) -> ObjectVersion:  # fmt: skip
        """`waiters`, `empty`, `alone`: see `VersionAnswers.head`."""
        answer = await self._answers.head(ref, waiters, empty=empty, alone=alone)
        question.settled &= answer.settled
        return answer.version

    async def _get(self, ref: ObjectRef, question: _Question, first_byte: int) -> None:
        index, inside = divmod(first_byte, self._layout.block_bytes)
        # Checksums come with a GET of the whole object, or by a HEAD beside a GET of one block. The former is for small
        # objects: of a large one too much would be under way when we stop it.
        whole = question.whole_headers and question.small
        asks = question.whole_headers and not whole and ref.folder not in self._no_checksums
        beside = self._ask_beside(ref, self._head(ref, question, NOBODY, alone=True)) if asks else None
        headers: Headers = ()
        asked = None
        if not whole:
            start = first_byte - inside + fill_start(inside, self._layout.block_bytes)
            asked = Extent(start, (index + 1) * self._layout.block_bytes)
            headers = (("range", f"bytes={asked.start}-{asked.stop - 1}"),)
        likely = self._seen_bytes(ref)
        request = OriginRequest(
            "GET", ref.bucket, ref.key, headers=headers, likely_bytes=likely, bulk=(likely or 0) >= BULK_BYTES
        )
        reply, asked_at, answer = await self._proved_reply(request, asked, question.waiters)
        with closing(reply):
            if answer is not None:
                version, body, settled = answer
                question.settled &= settled
                if beside is not None:
                    version = _same(await self._answer_beside(ref, beside), version)
                flights = self._board(version, index, asked, body)
                self._learn(ref, question, version)
                if flights and _brings(reply, body, flights):
                    await self._flights.fill_from(flights, self._begun(reply, flights), asked_at)
                    return
                if flights:
                    # The origin took another Range. An ordinary fill checks that, and asks again.
                    self._flights.fill(flights)
                # Without flights, the block is here, or another fill brings it.
                reply.give_up("question")
                return
        # Nothing lies at that offset: the object is shorter, or empty. Only a HEAD tells how long it is.
        by_head = None if beside is None else await self._answer_beside(ref, beside)
        self._learn(ref, question, by_head or await self._head(ref, question, question.waiters, empty=first_byte == 0))

    def _begun(self, reply: OriginReply, flights: Sequence[Flight]) -> OriginBody:
        """The bytes of the flights, of which the reply brings the first."""
        lead = flights[0]
        extent = Extent(lead.begins_at, flights[-1].meta.extent.stop)
        body = OriginBody(self._origin_reader, lead.meta.version, extent, waiters=lead.waiters)
        body.begin(reply)
        return body

    async def _proved_reply(
        self, request: OriginRequest, asked: Extent | None, waiters: Waiters
    ) -> tuple[OriginReply, float, Answer | None]:
        """The reply to the question, which the caller closes, when it was asked for, and the version that it tells;
        None: nothing lies at that offset."""
        assert request.bucket is not None
        ref = ObjectRef(request.bucket, request.key)
        for tries in count(1):
            asked_at = self._runtime.clock()
            reply = await self._origin_reader.reply(request, CHECKSUMS, hedged=True, waiters=waiters)
            try:
                answer = None if reply.status == 416 else await self._answers.of_get(ref, reply, asked)
            except Unproved as error:
                reply.close()
                if not error.may_pass(tries, otherwise=1):
                    raise self._answers.refuse(ref, error.why) from error
            except OriginBroke:
                reply.close()
                if reply.status in (200, 206) or tries >= _REFUSAL_TRIES:
                    raise
                # The document of a refusal broke off, without which a client does not see what it says.
            except BaseException:
                reply.close()
                raise
            else:
                return reply, asked_at, answer
        raise AssertionError("unreachable")

    def _board(self, version: ObjectVersion, index: int, asked: Extent | None, body: Brought) -> list[Flight]:
        """Flights for the blocks that the reply brings; none if one of them is here or on its way. `index`: the block
        that a reader waits for."""
        blocks = self._layout.count(version.size)
        first, count, wanted_byte = index, 1, 0 if asked is None else asked.start
        if body.odd is Oddity.RANGE_IGNORED and blocks <= _IGNORED_BLOCKS_MAX:
            first, count, wanted_byte = 0, blocks, 0
        elif asked is None and index == 0 and blocks <= FIRST_BLOCKS:
            # An object that is larger than it was taken for: its next blocks are kept, too, where they are few.
            count = blocks
        indexes = range(first, first + count)
        if index >= blocks or not all(self._flights.wanted(self._layout.key(version, i)) for i in indexes):
            return []
        return self._flights.board(version, BlockRun(first, count), wanted_byte)

    def _learn(
        self, ref: ObjectRef, question: _Question, version: ObjectVersion, mark: Mark | None = None
    ) -> None:  # fmt: skip
        """`mark` None: that of the question."""
        self._versions.learn(version, mark or question.mark, settled=question.settled)
        for kind in kinds_of(ref):
            self._sizes[kind] = version.size
        self._over(ref, question)
        question.settle(version)

    # -- checksums, asked for beside something else -----------------------------------------------------------------

    def _ask_beside(
        self, ref: ObjectRef, question: Coroutine[Any, Any, ObjectVersion]
    ) -> asyncio.Future[ObjectVersion | None]:
        """The answer to `question`, which is asked in a task of its own; None: there was no answer."""
        answer: asyncio.Future[ObjectVersion | None] = asyncio.get_running_loop().create_future()

        def settle(version: ObjectVersion | None) -> None:
            if not answer.done():
                answer.set_result(version)

        async def ask() -> None:
            try:
                settle(await question)
            except (Signal, S3Error) as error:
                # An object that is gone says nothing about the others of its folder.
                if not isinstance(error, OriginRefused) or error.status != 404:
                    self._no_checksums[ref.folder] = None

        task = self._runtime.spawn(ask(), f"head {ref}")
        task.add_done_callback(lambda _: settle(None))
        return answer

    async def _answer_beside(
        self, ref: ObjectRef, beside: asyncio.Future[ObjectVersion | None]
    ) -> ObjectVersion | None:
        """The answer of `_ask_beside`, once the rest is done; None: there is none, or it takes much longer."""
        bound: asyncio.Future[Any] = asyncio.ensure_future(self._runtime.sleep(_CHECKSUMS_WAIT_S))
        try:
            await asyncio.wait([beside, bound], return_when=asyncio.FIRST_COMPLETED)
        finally:
            bound.cancel()
        if not beside.done():
            self._no_checksums[ref.folder] = None
            return None
        return beside.result()


def _same(by_head: ObjectVersion | None, version: ObjectVersion) -> ObjectVersion:
    """The version as the HEAD told it, if it is the same; else `version`."""
    if by_head is not None and by_head.identity == version.identity:
        return by_head
    return version


def _brings(reply: OriginReply, body: Brought, flights: Sequence[Flight]) -> bool:
    """Whether the body begins with the first byte of the flights, and has no byte that the reply does not name."""
    if body.start != flights[0].begins_at:
        return False
    # Chunks may go on beyond the bytes that the reply names.
    bounded = reply.content_length is not None or body.length is None
    return bounded or (body.length is not None and body.start + body.length >= flights[-1].meta.extent.stop)
