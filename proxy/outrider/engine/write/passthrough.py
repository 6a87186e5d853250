"""Requests that the cache does not answer go to the origin: signed anew, streamed both ways.

The names that a write may change are forgotten before the write is sent, and again after its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from outrider.core.errors import OriginBroke, S3Error, unanswered
from outrider.core.model import Headers, ObjectRef
from outrider.core.origin.backoff import RETRYABLE_STATUSES
from outrider.core.s3.headers import passed_down, passed_up
from outrider.core.s3.operation import ForgetScope, Operation
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import A_CLIENT
from outrider.engine.read.object_read import CacheStatus
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.write.upload import Upload
from outrider.ports import Buffer, Name, Origin, OriginReply, OriginRequest


@dataclass(frozen=True, slots=True)
class ForwardAnswer:
    """The origin's answer. `length` None: not known. The caller must close `body`, also when it did not read it."""

    status: int
    headers: Headers
    length: int | None
    body: ForwardBody
    cache: CacheStatus = CacheStatus.BYPASS
    """HIT: the LIST cache gave the answer, and the origin was not asked; PEER: another member (see `listing.lists`)."""

    @property
    def source(self) -> str:
        """That of the bytes of its body."""
        return {CacheStatus.HIT: "disk", CacheStatus.PEER: "peer"}.get(self.cache, "origin")


class ForwardBody(Protocol):
    """The body of an answer, as it arrives. A Protocol, as LISTs come from their cache, too."""

    def __aiter__(self) -> AsyncIterator[Buffer]: ...

    def __anext__(self) -> Awaitable[Buffer]: ...

    async def aclose(self) -> None: ...


class _ReplyBody:
    """The body of the origin's answer. `aclose` frees the connection and, after a write, forgets the names once
    more."""

    def __init__(self, reply: OriginReply, stack: AsyncExitStack, outcome: _Outcome, before_last: BeforeLast) -> None:
        """`outcome`: see `_Outcome.by_head`. `before_last`: awaited before the last bytes are handed out; None: nothing
        is."""
        self._reply = reply
        self._stack = stack
        self._outcome = outcome
        self._before_last = before_last
        self._held = b""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._outcome.in_doubt = True
        while piece := bytes(await self._reply.some()):
            if self._before_last is None:
                return piece
            held, self._held = self._held, piece
            if held:
                return held
        held, self._held = self._held, b""
        if held and self._before_last is not None:
            await self._before_last()
            return held
        self._outcome.in_doubt = self._outcome.by_head
        raise StopAsyncIteration

    async def aclose(self) -> None:
        await self._stack.aclose()


BeforeLast = Callable[[], Awaitable[None]] | None


class _Outcome:
    """Whether it is in doubt that the origin carried out a write. `by_head`: the same, by the head of the reply alone.
    CompleteMultipartUpload and COPY are carried out, or fail, after it: a client that leaves before the end of the body
    does not learn which."""

    def __init__(self) -> None:
        self.in_doubt = self.by_head = True
        self.created: ObjectRef | None = None
        """The object that was made, if it was."""


class ForgetSender(Protocol):
    """The other members of the cluster. A Protocol, as `engine.cluster` stands above."""

    async def forget(self, names: Sequence[Name], *, in_doubt: bool = False) -> None:
        """Make them forget the names. Returns when they have, or after a while, and never fails. `in_doubt`: it is not
        known whether and when the origin carries the write out."""
        ...


async def _note_nothing(names: Sequence[Name]) -> None:
    pass


def _warm_nothing(ref: ObjectRef) -> None:
    pass


class Passthrough:
    """A write goes to the origin exactly once. A read without a body may be retried."""

    def __init__(
        self, origin: Origin, origin_reader: OriginReader, versions: VersionCache, forget_lists: Callable[[Name], None],
        note: Callable[[Sequence[Name]], Awaitable[None]] = _note_nothing, others: ForgetSender | None = None,
        created: Callable[[ObjectRef], None] = _warm_nothing,
    ) -> None:  # fmt: skip
        """`forget_lists` drops the cached LISTs that may show an object, or all of a bucket.

        `note` keeps the names on disk, for a start after a crash, and never fails. It is called before a write is sent,
        and again before the answer is relayed: a read in between may have seen the object before the write changed it.

        `others`: are notified of the names at the same moments; None: the node is alone.

        `created` is called with each object that the origin says it has made, after the names are forgotten for the
        last time: what is fetched from then on is not older than the write.
        """
        self._origin = origin
        self._origin_reader = origin_reader
        self._versions = versions
        self._forget_lists = forget_lists
        self._note = note
        self._others = others
        self._created = created
        self._under_way: Counter[Name] = Counter()

    @property
    def under_way(self) -> Collection[Name]:
        """The names that writes may change which have no answer yet, or not all of it."""
        return list(self._under_way)

    async def send(
        self, operation: Operation, headers: Headers, upload: Upload, deleted_keys: Sequence[str] | None = None,
        *, unsigned: bool = False,
    ) -> ForwardAnswer:  # fmt: skip
        """Send a request to the origin. `deleted_keys`: the keys of a DeleteObjects. None: they could not be read, and
        all names of the bucket are forgotten. `unsigned`: the proxy must not sign it.

        Raises:
            S3Error: the body failed its verification.
            ServiceUnavailable, SlowDown: the origin gave no reply, or no connection to it came free.
        """
        if upload.body is not None and upload.body_bytes == 0:
            # The origin commits an empty object as soon as it has the head, so the body is verified to its end before.
            async for _ in upload.body:
                pass
            upload = Upload(headers=upload.headers)
        request = _origin_request(operation, headers, upload)
        if unsigned:
            request = replace(_expecting(request, headers), unsigned=True)
        touched = _touched(operation, deleted_keys)
        await self._note(touched)
        async with AsyncExitStack() as stack:
            outcome = _Outcome()
            self._under_way.update(touched)
            stack.push_async_callback(self._ended, touched, outcome)
            self._forget(touched)
            await self._announce(touched)
            reply = await self._reply(request, upload, stack)
            self._forget(touched)
            await self._note(touched)
            await self._announce(touched)
            outcome.in_doubt = outcome.by_head = reply.status in RETRYABLE_STATUSES
            if operation.creates and 200 <= reply.status < 300:
                outcome.created = operation.ref
            is_announced = self._others is not None and operation.forgets is not ForgetScope.NOTHING
            before_last = partial(self._carried_out, touched) if is_announced else None
            body = _ReplyBody(reply, stack.pop_all(), outcome, before_last)
            return ForwardAnswer(reply.status, passed_down(reply.headers), reply.content_length, body)
        raise AssertionError("unreachable")

    async def _reply(self, request: OriginRequest, upload: Upload, stack: AsyncExitStack) -> OriginReply:
        """The reply, whose connection `stack` owns from now on."""
        try:
            retried = request.method in ("GET", "HEAD") and upload.body is None
            replying = self._origin_reader.reply(request, waiters=A_CLIENT) if retried else self._origin.ask(request)
            reply = await replying
            stack.callback(reply.close)
            return reply
        except OriginBroke as error:
            if isinstance(upload.error, S3Error):
                raise upload.error from error
            raise unanswered(error) from error
        finally:
            # Both forms of the body know the upload, to give it their error: a cycle.
            upload.body = upload.in_thread = None

    async def _announce(self, touched: Sequence[Name], *, in_doubt: bool = False) -> None:
        if self._others is not None and touched:
            await self._others.forget(touched, in_doubt=in_doubt)

    async def _carried_out(self, touched: Sequence[Name]) -> None:
        """The other members learn of it before the client: CompleteMultipartUpload and COPY carry the write out after
        the head of the reply."""
        self._forget(touched)
        await self._announce(touched)

    async def _ended(self, touched: Sequence[Name], outcome: _Outcome) -> None:
        self._under_way -= Counter(touched)
        self._forget(touched, in_doubt=outcome.in_doubt)
        if outcome.in_doubt:
            await self._announce(touched, in_doubt=True)
        elif outcome.created is not None:
            self._created(outcome.created)

    def _forget(self, touched: Sequence[Name], *, in_doubt: bool = False) -> None:
        """`in_doubt`: it is not known whether and when the origin carries the write out."""
        for name in touched:
            if in_doubt:
                self._versions.doubt(name)
            elif isinstance(name, str):
                self._versions.forget_bucket(name)
            else:
                self._versions.forget(name)
            self._forget_lists(name)


def _origin_request(operation: Operation, headers: Headers, upload: Upload) -> OriginRequest:
    # A form is sent to its bucket. The operation has its key, so that the name can be forgotten.
    key = operation.key if upload.form is None else ""
    return OriginRequest(
        operation.method, operation.bucket, key, operation.query, passed_up(headers) + upload.headers,
        upload.body, upload.body_bytes, upload.payload_hash, upload.form, operation.bare,
        body_in_thread=upload.in_thread,
    )  # fmt: skip


def _expecting(request: OriginRequest, headers: Headers) -> OriginRequest:
    """An unsigned request, with the `Expect: 100-continue` of a client that waits: the origin alone knows whether
    everybody may write this, and no body is asked of the client before the origin asks for it.

    The Expect of a signed request is not passed on. SeaweedFS stores an empty object if no body follows a head, and a
    body may fail its verification.
    """
    if request.body is None or dict(headers).get("expect", "").lower() != "100-continue":
        return request
    return replace(request, headers=(*request.headers, ("expect", "100-continue")), body_in_thread=None)


def _touched(operation: Operation, deleted_keys: Sequence[str] | None) -> list[Name]:
    """The names that a request may change."""
    if operation.forgets is ForgetScope.NOTHING:
        return []
    assert operation.bucket is not None
    names: list[Name] = [*operation.sources] if operation.renames else []
    if operation.forgets is ForgetScope.KEY:
        names.append(operation.ref)
    elif operation.forgets is ForgetScope.KEYS_IN_BODY and deleted_keys is not None:
        names += [ObjectRef(operation.bucket, key) for key in deleted_keys]
    else:
        names.append(operation.bucket)
    return names
