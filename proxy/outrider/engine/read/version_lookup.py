"""The version lookup: which version of an object the origin has now. All clients that want to know share one question,
and the question about an unknown object brings its first block along."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import FIRST_BLOCKS, BlockRun, fill_start
from outrider.core.cluster.peer_messages import Confirmed
from outrider.core.errors import OriginBroke, S3Error, ServiceUnavailable, Signal, unanswered, without_traceback
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.core.origin.backoff import RETRYABLE_STATUSES
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.fill import BULK_BYTES
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_body import OriginBody
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import NOBODY, Waiters
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.fill.reply_proof import ProvedBody, begins_with
from outrider.engine.read.checksums_beside_reads import ChecksumsBesideReads, same_version, wait_at_most
from outrider.engine.read.version_answers import VersionAnswers
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_from_peers import PeerVersions, VersionFromPeers
from outrider.engine.read.version_rows import Mark
from outrider.engine.tasks.runtime import Runtime
from outrider.futures import retrieve_failure

log = logging.getLogger(__name__)

# An origin that ignores Range sends all blocks of an object at once. More than these are not kept.
_IGNORED_BLOCKS_MAX = 1024
# A read of a version that is known waits for no longer than this for the head of a GET that brings its block.
_TRANSFER_WAIT_S = 1.0


@dataclass(slots=True)
class _VersionQuestion:
    """A question to the origin about one name, under way for all clients that want to know."""

    ref: ObjectRef
    first_byte: int | None
    """It is a GET that brings the block of this byte; None: a HEAD."""
    mark: Mark
    by_peers: bool
    """Other members are asked first, and may ask the origin themselves."""
    by_disks: bool
    """The member that was the authority is asked first, and asks nobody."""
    is_ahead: bool
    """No reader waits, as far as is known when it begins."""
    whole_headers: bool
    likely_bytes: int | None
    """The size that the object most likely has; None: no object like it was seen."""
    small: bool
    """The object most likely fits into one block."""
    settled: bool = True
    """No reply had a version that may be overwritten without a change of its date."""
    waiters: Waiters = field(default_factory=Waiters)
    """Those for whom it is asked again while the origin is away."""
    answer: asyncio.Future[ObjectVersion] = field(default_factory=asyncio.Future)
    boarded: asyncio.Future[None] = field(default_factory=asyncio.Future)
    """The block that is filled has its flight, or will have none."""

    def settle(self, version: ObjectVersion) -> None:
        if not self.answer.done():
            self.answer.set_result(version)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            retrieve_failure(self.answer)


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
        self.answers = VersionAnswers(origin_reader, versions, runtime.clock)
        self._checksums = ChecksumsBesideReads(runtime)
        self._questions: dict[ObjectRef, _VersionQuestion] = {}
        # The question under way about each name that is a GET: no other GET is to bring its block.
        self._gets: dict[ObjectRef, _VersionQuestion] = {}

    def cut(self, version: ObjectVersion) -> None:
        """The body of a reply ended early, because the origin no longer has `version`."""
        self.answers.cut(version)
        self._runtime.spawn(self._look_again(version.ref), f"look again {version.ref}")

    async def _look_again(self, ref: ObjectRef) -> None:
        """Ask whether the object was overwritten, or the origin sends another ETag with each reply: the next read is
        then relayed."""
        with suppress(Signal, S3Error):
            await self.answers.head(ref)

    def is_looking_up(self, ref: ObjectRef) -> bool:
        """Whether the version cache is about to get the version of `ref`."""
        return ref in self._questions

    async def ask(
        self, ref: ObjectRef, first_byte: int | None, *, whole_headers: bool = False, if_small: bool = False,
        size: int = -1, by_get: bool = False, patient: bool = True,
    ) -> ObjectVersion:  # fmt: skip
        """The version that the origin has now.

        `first_byte`: the question is a GET that brings the block of that byte, so that an unknown object costs one
        round trip; None: the question is a HEAD. `whole_headers`: the checksums of the whole object are wanted, too,
        which stores leave out of a reply to a Range. `if_small`: they are wanted where they cost nothing, which is
        where one block holds the object. `size`: as a LIST stated it; -1: unknown. `by_get`: the answer to the last
        question proved wrong, and a HEAD would only repeat it. `patient`: somebody waits for the answer, so that an
        origin that is away is tried for as long as clients wait. Where a stale version may stand in, it does so after a
        few tries.

        Raises:
            OriginRefused, NotCacheable, ServiceUnavailable: see `ObjectReads.get`.
        """
        self.answers.check(ref)
        if whole_headers and first_byte is not None and (get := self._get_under_way(ref)) and not get.whole_headers:
            return await self._with_checksums(ref, first_byte, patient=patient)
        patient = patient and not (self._stale_if_error and self._versions.stale(ref) is not None)
        question = self._question_for(ref, first_byte, whole_headers, if_small, size, by_get, is_ahead=not patient)
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
        self.answers.check(ref)
        question = self._question_for(ref, first_byte, whole_headers, False, -1, from_origin=True, is_ahead=is_ahead)
        waiters, mark, answers = question.waiters, question.mark, [question.answer]
        del question  # see `ask`
        with waiters:
            version = await asyncio.shield(answers.pop())
        confirmed = self._versions.confirmed(ref)
        if confirmed is not None and confirmed.version == version:
            return confirmed
        return Confirmed(version, self._runtime.clock() - mark.at)

    async def ask_checksums(self, ref: ObjectRef) -> None:
        """Ask for the checksums of an object whose version is fresh. The version cache has them afterwards, unless the
        origin does not state them in time: a checksum is no reason to hold back, or refuse, bytes that are here."""
        if not self._checksums.rests(ref):
            beside = self._checksums.begin(ref, self.ask(ref, None, whole_headers=True, patient=False))
            await self._checksums.answer(ref, beside)

    async def with_checksums(self, ref: ObjectRef) -> ObjectVersion:
        """The version with its checksums, for nobody that waits. If another member is the authority of the object, that
        one asks for all members. Raises what `ask` raises."""
        known = self._versions.confirmed(ref)
        if known is not None and known.version.whole_headers:
            return known.version
        return await self.ask(ref, None, whole_headers=True, patient=False)

    async def wait_for_transfer(self, version: ObjectVersion, byte: int | None, *, from_origin: bool = False) -> None:
        """Wait for the flight of the block that holds `byte`, if a question under way brings it, and it is not here.
        The version may be known before, by a HEAD that was answered earlier; a fill of the block would then bring it
        twice. `byte` None: whichever block is filled. `from_origin`: a question to other members is not waited for."""
        get = self._gets.get(version.ref)
        if get is None or (from_origin and get.by_peers):
            return
        assert get.first_byte is not None
        index = self._layout.index_of(get.first_byte)
        if byte is not None and index != self._layout.index_of(byte):
            return
        if not self._flights.wanted(self._layout.key(version, index)):
            return
        await wait_at_most(self._runtime, get.boarded, _TRANSFER_WAIT_S)

    async def _with_checksums(self, ref: ObjectRef, first_byte: int, *, patient: bool) -> ObjectVersion:
        """The answer of the GET under way, which states no checksums, with those of a HEAD beside it."""
        if self._checksums.rests(ref):
            return await self.ask(ref, first_byte, patient=patient)
        beside = self._checksums.begin(ref, self.ask(ref, None, whole_headers=True, patient=False))
        version = await self.ask(ref, first_byte, patient=patient)
        return same_version(await self._checksums.answer(ref, beside), version)

    # -- one question for all ---------------------------------------------------------------------------------------

    def _question_for(
        self, ref: ObjectRef, first_byte: int | None, whole_headers: bool, if_small: bool, size: int,
        by_get: bool = False, *, is_ahead: bool = False, from_origin: bool = False,
    ) -> _VersionQuestion:  # fmt: skip
        """A question under way whose answer will do, or one that begins now."""
        if first_byte is not None and not by_get and (likely := self._versions.likely(ref)) is not None:
            is_cached = not self._flights.wanted(self._layout.key(likely, self._layout.index_of(first_byte)))
            # The version is most likely the same still, so its block is not brought again. Not by If-None-Match: a 304
            # leaves out the headers, which may have changed while the bytes, and so the ETag, did not.
            first_byte = None if is_cached else first_byte
        if first_byte is not None and not (by_get or from_origin) and self._from_peers is not None:
            # A GET of ours would bring it a second time.
            first_byte = None if self._from_peers.brings(ref, first_byte) else first_byte
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
        if (
            question is None
            or (question.first_byte is None and not by_head)
            or (whole_headers and not question.whole_headers)
        ):
            likely_bytes = size if size >= 0 else self.answers.seen_bytes(ref)
            small = likely_bytes is not None and likely_bytes <= self._layout.block_bytes
            # After an answer that proved wrong, the origin itself is asked.
            by_peers = not from_origin and not by_get and self.has_peer_authority(ref)
            by_disks = (
                not by_get and not by_peers and self._from_peers is not None and self._from_peers.had_authority(ref)
            )
            whole_headers = whole_headers or (not (by_peers or by_disks) and (by_head or (if_small and small)))
            question = _VersionQuestion(
                ref, first_byte, self._versions.mark(), by_peers, by_disks, is_ahead, whole_headers, likely_bytes, small
            )
            self._questions[ref] = question
            if first_byte is not None:
                self._gets[ref] = question
            task = self._runtime.spawn(self._put(question), f"open {ref}")
            # Not a `finally` in the task: a task that is cancelled before its first step never gets there.
            task.add_done_callback(lambda _: self._ended(question))
        return question

    async def _put(self, question: _VersionQuestion) -> None:
        try:
            if question.by_peers or question.by_disks:
                assert self._from_peers is not None
                is_answered = await self._from_peers.ask(
                    question.ref, question.mark.at, question.first_byte, partial(self._learn, question),
                    whole_headers=question.whole_headers, is_ahead=question.is_ahead, only_if_cached=question.by_disks,
                )  # fmt: skip
                if is_answered:
                    return
                if is_answered is None:
                    # Where a HEAD is refused, a GET has to be.
                    with suppress(OriginRefused):
                        self._learn(question, await self._head(question, question.waiters))
                        return
            if question.first_byte is None:
                version = await self._head(question, question.waiters)
                if not version.whole_headers:
                    # A HEAD states nothing, so it states no checksums either.
                    self._checksums.failed(question.ref)
                self._learn(question, version)
            elif (filling := await self._get(question, question.first_byte)) is not None:
                await filling
        except Signal as error:
            question.fail(without_traceback(error))
        except Exception as error:  # noqa: BLE001 - top of a task: our bug becomes the waiters' 500
            question.fail(error)

    def has_peer_authority(self, ref: ObjectRef) -> bool:
        """Whether a question about the object goes to a peer first."""
        return self._from_peers is not None and self._from_peers.has_authority(ref)

    def _ended(self, question: _VersionQuestion) -> None:
        if not question.answer.done():
            question.fail(ServiceUnavailable("The proxy is stopping."))
        self._over(question)

    def _over(self, question: _VersionQuestion) -> None:
        """The question is answered, or failed; its task goes on only to fill a block."""
        if not question.boarded.done():
            question.boarded.set_result(None)
        for questions in (self._questions, self._gets):
            if questions.get(question.ref) is question:
                del questions[question.ref]

    def _get_under_way(self, ref: ObjectRef) -> _VersionQuestion | None:
        """A GET about `ref` whose answer will do for a read that comes now."""
        get = self._gets.get(ref)
        return get if get is not None and self._versions.will_be_fresh(ref, get.mark) else None

    # -- asked by HEAD, or by a GET that brings a block -------------------------------------------------------------

    async def _head(
        self, question: _VersionQuestion, waiters: Waiters, *, empty: bool = False, alone: bool = False
    ) -> ObjectVersion:  # fmt: skip
        """`waiters`, `empty`, `alone`: see `VersionAnswers.head`."""
        answer = await self.answers.head(question.ref, waiters, empty=empty, alone=alone)
        question.settled &= answer.settled
        return answer.version

    async def _get(self, question: _VersionQuestion, first_byte: int) -> Coroutine[Any, Any, None] | None:
        """Ask by a GET. Returns what fills the blocks that its reply brings; None: there are none to fill by it."""
        ref = question.ref
        index, inside = divmod(first_byte, self._layout.block_bytes)
        # Checksums come with a GET of the whole object, or by a HEAD beside a GET of one block. The former is for small
        # objects: of a large one too much would be under way when we stop it.
        likely_bytes = question.likely_bytes
        whole = question.whole_headers and question.small
        wants_checksums = question.whole_headers and not whole and not self._checksums.rests(ref)
        beside = self._checksums.begin(ref, self._head(question, NOBODY, alone=True)) if wants_checksums else None
        requested = None
        if not whole:
            start = first_byte - inside + fill_start(inside, self._layout.block_bytes)
            requested = Extent(start, (index + 1) * self._layout.block_bytes)
        reply, requested_at, answer = await self.answers.get(
            ref, requested, question.waiters, likely_bytes=likely_bytes, bulk=(likely_bytes or 0) >= BULK_BYTES
        )
        filling: Coroutine[Any, Any, None] | None = None
        try:
            if answer is not None:
                version, body, settled = answer
                question.settled &= settled
                if beside is not None:
                    version = same_version(await self._checksums.answer(ref, beside), version)
                flights = self._board(version, index, requested, body)
                self._learn(question, version)
                extent = Extent(flights[0].begins_at, flights[-1].meta.extent.stop) if flights else None
                if extent is not None and begins_with(reply, body, extent):
                    # From here on the body owns the reply.
                    bytes_of = OriginBody(self._origin_reader, version, extent, waiters=flights[0].waiters, reply=reply)
                    filling = self._flights.fill_from(flights, bytes_of, requested_at)
                    return filling
                if flights:
                    # The origin took another Range. An ordinary fill checks that, and asks again.
                    self._flights.fill(flights)
                # Without flights, the block is here, or another fill brings it.
                reply.give_up("question")
                return None
        finally:
            if filling is None:
                reply.close()
        # Nothing lies at that offset: the object is shorter, or empty. Only a HEAD says how long it is.
        by_head = None if beside is None else await self._checksums.answer(ref, beside)
        self._learn(question, by_head or await self._head(question, question.waiters, empty=first_byte == 0))
        return None

    def _board(self, version: ObjectVersion, index: int, requested: Extent | None, body: ProvedBody) -> list[Flight]:
        """Flights for the blocks that the reply brings; none if one of them is here or on its way. `index`: the block
        that a reader waits for."""
        blocks = self._layout.count(version.size)
        first, count, wanted_byte = index, 1, 0 if requested is None else requested.start
        if body.odd is Oddity.RANGE_IGNORED and blocks <= _IGNORED_BLOCKS_MAX:
            first, count, wanted_byte = 0, blocks, 0
        elif requested is None and index == 0 and blocks <= FIRST_BLOCKS:
            # An object that is larger than it was taken for: its next blocks are kept, too, where they are few.
            count = blocks
        indexes = range(first, first + count)
        if index >= blocks or not all(self._flights.wanted(self._layout.key(version, i)) for i in indexes):
            return []
        return self._flights.board(version, BlockRun(first, count), wanted_byte)

    def _learn(
        self, question: _VersionQuestion, version: ObjectVersion, mark: Mark | None = None, settled: bool | None = None
    ) -> None:  # fmt: skip
        """`mark`, `settled` None: those of the question."""
        self._versions.learn(version, mark or question.mark, settled=question.settled if settled is None else settled)
        self.answers.seen(version)
        self._over(question)
        question.settle(version)
