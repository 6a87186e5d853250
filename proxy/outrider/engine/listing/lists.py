"""A client's LIST: answered from the LIST cache, else sent to the origin and kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing, closing
from dataclasses import replace
from typing import Protocol

from outrider.core.cluster import messages
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import ListedPage
from outrider.core.errors import S3Error, Signal
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.list_amendment import ListedFacts
from outrider.core.s3.operation import Operation, OperationKind, Query
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import A_CLIENT
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.listing.kept_pages import KeptPage, ListingKey
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.read.object_read import CacheStatus
from outrider.engine.read.version_answers import CHECKSUMS
from outrider.engine.tasks.runtime import Runtime, within
from outrider.engine.tasks.task_group import TaskGroup
from outrider.engine.write.passthrough import ForwardAnswer, ForwardBody, Passthrough
from outrider.engine.write.upload import Upload
from outrider.ports import Buffer, OriginRequest

# A client waits no longer for a page that another one requested, which may take its bytes slowly.
_FLIGHT_S = 5.0
# A member, which gives this node up after four seconds, and has the bucket.
_FLIGHT_FOR_MEMBER_S = 3.0

# In base64, and with its headers, it fits into one message.
_PACKED_BYTES_MAX = messages.BODY_BYTES_MAX // 2


class MemberPages(Protocol):
    """The pages of LISTs that other members of the cluster have. A Protocol, as `engine.cluster` implements it."""

    def owner(self, key: ListingKey) -> Member | None:
        """None: it is this node, or it cannot be requested."""
        ...

    async def page(self, owner: Member, key: ListingKey) -> ListedPage | None:
        """None: the owner gives none."""
        ...


class Lists:
    """Puts the LIST cache in front of the passthrough. One of several clients that want a page requests it."""

    def __init__(
        self, cache: ListCache, passthrough: Passthrough, origin_reader: OriginReader, runtime: Runtime,
        members: MemberPages | None = None,
    ) -> None:  # fmt: skip
        """`members` None: the node is alone."""
        self._cache = cache
        self._members = members
        self._passthrough = passthrough
        self._origin_reader = origin_reader
        self._runtime = runtime
        # The pages that are requested, each by one client; and whether of a member: no request of a member waits for
        # these, since two members may each take the other one for the owner.
        self._flights: dict[tuple[ListingKey, bool], asyncio.Future[None]] = {}

    @property
    def under_way(self) -> int:
        """How many pages are being requested."""
        return len(self._flights)

    async def for_member(self, bucket: str, query: Query) -> ListedPage:
        """The page for another member, which takes this node for the owner of the LIST. No third member is asked."""
        operation = Operation(OperationKind.FORWARD, "GET", bucket, "", query)
        key = self._cache.key_of(operation, ())
        if key is None:
            return ListedPage()
        page = self._cache.get(key)
        if page is None and self._cache.has_room():
            try:
                answer = await self.answer(operation, (), Upload(), by_member=True)
                assert answer is not None
                async with aclosing(answer.body) as body:
                    async for _ in body:
                        pass
            except (Signal, S3Error):
                # The member asks the bucket itself, and learns there what is wrong.
                return ListedPage()
            page = self._cache.get(key)
        if page is None or len(page.packed) > _PACKED_BYTES_MAX:
            return ListedPage()
        return ListedPage(self._cache.age_s(page), page.headers, page.packed)

    async def answer(
        self, operation: Operation, headers: Headers, upload: Upload, *, by_member: bool = False
    ) -> ForwardAnswer | None:
        """The answer to a LIST. None: the request is no LIST that a rule lets the cache keep, and nothing was sent.
        `by_member`: another member of the cluster wants it.

        Raises:
            S3Error: as `Passthrough.send` does.
        """
        key = self._cache.key_of(operation, headers)
        if key is None:
            return None
        page = self._cache.get(key)
        owner = self._owner(key, by_member=by_member) if page is None else None
        if page is None and (flight := self._flights.get((key, owner is not None))) is not None:
            wait_s = _FLIGHT_FOR_MEMBER_S if by_member else _FLIGHT_S
            await within(asyncio.shield(flight), wait_s, self._runtime)
            # A page that was not kept is requested by each of its clients.
            page = self._cache.get(key)
            # It may have failed the first of them.
            owner = self._owner(key, by_member=by_member)
        status = CacheStatus.HIT
        with ExitStack() as stack:
            if page is None:
                stack.callback(self._begun((key, owner is not None)))
                if (names := self._cache.changed(key)) is not None:
                    page = await self._amended(key, names)
                if page is None and self._members is not None and owner is not None:
                    mark, listed = self._cache.mark(), await self._members.page(owner, key)
                    page, status = None if listed is None else self._cache.take(key, mark, listed), CacheStatus.PEER
            # A page that finds no room in memory comes from the origin in small pieces.
            if page is not None and (body := self._cache.sent(page)) is not None:
                return ForwardAnswer(200, page.headers, page.body_bytes, body, status)
            mark = self._cache.mark()
            answer = await self._passthrough.send(operation, headers, upload)
            if answer.status != 200:
                return answer
            chunks = self._cache.keeping(key, mark, answer.headers, answer.body)
            return replace(answer, body=_KeptBody(chunks, answer.body, stack.pop_all()))

    def _owner(self, key: ListingKey, *, by_member: bool) -> Member | None:
        return None if self._members is None or by_member else self._members.owner(key)

    def _begun(self, key: tuple[ListingKey, bool]) -> Callable[[], None]:
        """A flight for the page begins. Returns the call that ends it."""
        flight = self._flights[key] = asyncio.get_running_loop().create_future()

        def end() -> None:
            flight.set_result(None)
            # A client that waited too long has begun another one.
            if self._flights.get(key) is flight:
                del self._flights[key]

        return end

    async def _amended(self, key: ListingKey, names: Sequence[str]) -> KeptPage | None:
        """The page, once a HEAD has described each of these objects; None: it has to be requested."""
        mark = self._cache.mark()
        try:
            async with TaskGroup() as group:
                lookups = {name: group.create_task(self._facts(ObjectRef(key[0], name))) for name in names}
        except Signal:
            return None
        return self._cache.amend(key, mark, {name: facts.result() for name, facts in lookups.items()})

    async def _facts(self, ref: ObjectRef) -> ListedFacts | None:
        """None: there is no such object. Raises Signal: the origin does not state them."""
        request = OriginRequest("HEAD", *ref, headers=CHECKSUMS)
        with closing(await self._origin_reader.reply(request, waiters=A_CLIENT)) as reply:
            if reply.status == 404:
                return None
            facts = ListedFacts.of(reply.headers, reply.content_length) if reply.status == 200 else None
            if facts is None:
                raise OriginRefused(reply.status, reply.headers, b"")
            return facts


class _KeptBody:
    """A body that passes through a generator. The end of one that never ran would not end the body."""

    def __init__(self, chunks: AsyncGenerator[Buffer, None], body: ForwardBody, stack: ExitStack) -> None:
        """`stack` is closed at the end."""
        self._chunks = chunks
        self._body = body
        self._stack = stack

    def __aiter__(self) -> AsyncIterator[Buffer]:
        return self

    async def __anext__(self) -> Buffer:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        with self._stack:
            await self._chunks.aclose()
            await self._body.aclose()
