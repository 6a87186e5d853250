"""Asks other members: the client side of the wire (see `core/cluster/peer_wire`).

Bodies of large blocks are received in threads, as those of the origin are. Errors are translated into `PeerFailed` here
and nowhere else.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

from prometheus_client import Counter

from outrider.adapters.origin.client import HttpClient
from outrider.adapters.origin.endpoint import Endpoint
from outrider.adapters.origin.forward_proxy import ForwardProxy
from outrider.adapters.origin.http_reply import ReceivedReply
from outrider.adapters.origin.receivers import Receivers
from outrider.core.auth.peer_signature import is_proved, signed
from outrider.core.auth.sigv4 import SigningKeys
from outrider.core.cluster import messages, peer_wire
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import Answer, Command, Hello, ListRequest, Question, SharesRequest
from outrider.core.cluster.peer_messages import Confirmed, PeerChanged, PeerFailed, PeerRead
from outrider.core.cluster.peer_wire import AnswerHead, Requester
from outrider.core.cluster.wire_forms import WireError, decode, encode
from outrider.core.errors import Broke, OriginBroke
from outrider.core.model import Extent
from outrider.metrics import Metrics
from outrider.ports import Buffer, ByteSink, Clock

M = TypeVar("M")
A = TypeVar("A", bound=Answer)

_CONNECT_TIMEOUT_S = 0.45
# Idle connections to all members together. Each member of 200 keeps one for hellos.
_IDLE_MAX = 256
# A read waits as long for a connection, where as many as allowed are in use: then another source is asked.
_FREE_TIMEOUT_S = 0.25
# A hello and a forget are answered from memory.
_CONTROL_TIMEOUT_S = 2.0
# A command has a list to be read, or blocks to be dropped from a disk. A page of a LIST may come from the bucket: this
# is less than the clients that wait for one page wait for the first of them, which then gets it from the bucket.
_QUESTIONS: dict[type[Question], tuple[str, float]] = {
    SharesRequest: (messages.SHARES_PATH, _CONTROL_TIMEOUT_S),
    ListRequest: (messages.LIST_PATH, 4.0),
    Command: (messages.COMMAND_PATH, 10.0),
}
# A hop to a thread for fewer bytes would cost more than their copy.
_BULK_BYTES = 256 * 1024
# A body of so few bytes comes, and goes, with its head: a reader gets a small block as a whole, so that nothing of it
# waits.
_SMALL_BYTES = 64 * 1024
_NO_BODY = sha256(b"").hexdigest()
# The reasons of failures that an answer's status names.
_STATUS = {404: "absent", 503: "busy"}
_REFUSED = (400, 403, 421)
_WHY = {Broke.CONNECT: "connect", Broke.LATE: "late", Broke.UNREADABLE: "garbage", Broke.OTHER: "broke"}


class PeerClient:
    """Implements `ports.PeerTransport`. `open` before the first request, `close` after the last."""

    def __init__(
        self, requester: Callable[[], Requester], secrets: Callable[[], Sequence[str]], metrics: Metrics, clock: Clock,
        *, boot: int, reads_per_peer: int = 64, reads_max: int = 256, threads: int = 128, read_timeout_s: float = 30.0,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None, receivers: Receivers | None = None,
    ) -> None:  # fmt: skip
        """`requester`: this member. `secrets`: the keys of the cluster, of which the first one signs. `clock`: the wall
        clock. `boot`: see `Hello`. `reads_max`: reads under way, each on a connection of its own.
        `threads`: how many bodies they receive at once. Both are more than from one peer, so that one that hangs leaves
        some for the others. LISTs have half as many of their own. All that is neither waits for none of them.
        `read_timeout_s` bounds the wait for a head, and for the next bytes. `receivers`: see `BulkClient`."""
        self._requester = requester
        self._secrets = secrets
        self._metrics = metrics.peers
        self._clock = clock
        self._boot = boot
        self._numbers = itertools.count(1)
        self._reads_per_peer = reads_per_peer
        self._free: dict[str, asyncio.Semaphore] = {}
        self._free_of_all = asyncio.Semaphore(reads_max)
        self._lists_per_peer = (reads_per_peer + 1) // 2
        self._lists: dict[str, asyncio.Semaphore] = {}
        self._lists_of_all = asyncio.Semaphore((reads_max + 1) // 2)
        self._threads = threads
        self._read_timeout_s = read_timeout_s
        self._tls = tls
        self._receivers = receivers
        self._keys = SigningKeys()
        self._client: HttpClient | None = None

    async def open(self) -> None:
        self._client = HttpClient(
            _NotCounted(), lambda kind, name: None, threads=self._threads, connect_timeout_s=_CONNECT_TIMEOUT_S,
            small_bytes=_SMALL_BYTES, receivers=self._receivers, idle_max=_IDLE_MAX,
        )  # fmt: skip

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @asynccontextmanager
    async def read(self, member: Member, read: PeerRead) -> AsyncIterator[ReadReply]:
        label = self._metrics.label(member.name)
        begun = time.perf_counter()
        free = self._free.setdefault(member.name, asyncio.Semaphore(self._reads_per_peer))
        try:
            await _acquire(free, self._free_of_all)
        except PeerFailed as failed:
            self._metrics.requests.labels(label, failed.why).inc()
            raise
        try:
            try:
                reply, authorization = await self._answered(member, read)
                head = self._head_of(reply, member, read, authorization)
            except PeerFailed as failed:
                self._metrics.requests.labels(label, failed.why).inc()
                raise
            self._metrics.requests.labels(label, "ok").inc()
            self._metrics.first_byte_s.observe(time.perf_counter() - begun)
            try:
                yield ReadReply(reply, head, self._metrics.bytes.labels(label, "in"))
            finally:
                reply.close()
        finally:
            free.release()
            self._free_of_all.release()

    async def hello(self, address: str, mine: Hello, name: str = "") -> Hello:
        requester = replace(self._requester(), receiver=name)
        return _decoded(Hello, await self._post(address, requester, messages.HELLO_PATH, encode(mine)))

    async def send(self, member: Member, path: str, body: bytes) -> None:
        await self._post(member.address, self._requester_to(member), path, body)

    async def request(self, member: Member, question: Question, answer: type[A]) -> A:
        path, timeout_s = _QUESTIONS[type(question)]
        free: tuple[asyncio.Semaphore, ...] = ()
        if isinstance(question, ListRequest):
            lists = self._lists.setdefault(member.name, asyncio.Semaphore(self._lists_per_peer))
            free = lists, self._lists_of_all
        await _acquire(*free)
        try:
            body = await self._post(member.address, self._requester_to(member), path, encode(question), timeout_s)
        finally:
            for each in free:
                each.release()
        return _decoded(answer, body)

    def _requester_to(self, member: Member) -> Requester:
        """This member, in the newest version that both speak."""
        requester = self._requester()
        return replace(requester, wire=min(requester.wire, member.wire[1]), receiver=member.name)

    async def _answered(self, member: Member, read: PeerRead) -> tuple[ReceivedReply, str]:
        """The reply with its head, and the `authorization` of the request. Raises PeerFailed."""
        try:
            head = peer_wire.read_head(read, self._requester_to(member))
        except WireError as error:
            raise PeerFailed("garbage", str(error)) from error
        target, tls = self._target(member.address)
        headers = self._signed(head.method, target.host, head.path, head.headers, _NO_BODY)
        is_bulk = read.extent is not None and read.extent.length >= _BULK_BYTES
        assert self._client is not None
        try:
            reply = await self._client.ask(
                target, head.method, head.path, headers, self._read_timeout_s, tls=tls, bulk=is_bulk
            )
        except OriginBroke as error:
            raise _failed(error) from error
        return reply, headers["authorization"]

    def _target(self, address: str) -> tuple[Endpoint, ssl.SSLContext | None]:
        tls = self._tls()
        return Endpoint(f"{'http' if tls is None else 'https'}://{address}", "", ForwardProxy()), tls

    async def _post(
        self, address: str, requester: Requester, path: str, body: bytes, timeout_s: float = _CONTROL_TIMEOUT_S
    ) -> bytes:  # fmt: skip
        """The body of the answer, which is that of the member that `requester` names as the receiver, if it names one.
        Raises PeerFailed."""
        target, tls = self._target(address)
        headers = self._signed(
            "POST", target.host, path, peer_wire.control_headers(requester), sha256(body).hexdigest()
        )
        headers["content-length"] = str(len(body))
        assert self._client is not None
        content, is_short = bytearray(), len(body) <= _SMALL_BYTES
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._client.ask(
                    target, "POST", path, headers, timeout_s, tls=tls,
                    body=None if is_short else _once(body), content=body if is_short else b"",
                )  # fmt: skip
                with closing(reply):
                    if reply.status != 200:
                        raise _not_believed(reply.status)
                    if requester.receiver and dict(reply.headers).get(peer_wire.FROM) != requester.receiver:
                        raise PeerFailed("garbage", "another member answers")
                    while piece := await reply.some():
                        content += piece
                        if len(content) > messages.BODY_BYTES_MAX:
                            raise PeerFailed("garbage", "the body is too long")
        except TimeoutError as error:
            raise PeerFailed("late", "timed out") from error
        except OriginBroke as error:
            raise _failed(error) from error
        if not is_proved(headers["authorization"], self._secrets(), reply.status, reply.headers, bytes(content)):
            raise PeerFailed("garbage", "the answer has no proof of the key")
        return bytes(content)

    def _head_of(self, reply: ReceivedReply, member: Member, read: PeerRead, authorization: str) -> AnswerHead:
        """The head of an answer that is to be believed; of any other, the reply is closed. Raises PeerFailed."""
        try:
            return _believed(
                reply, member, read, is_proved(authorization, self._secrets(), reply.status, reply.headers)
            )
        except WireError as error:
            reply.close()
            raise PeerFailed("garbage", str(error)) from error
        except PeerFailed:
            reply.close()
            raise

    def _signed(self, method: str, host: str, path: str, headers: dict[str, str], body_hash: str) -> dict[str, str]:
        numbered = {**headers, peer_wire.SEQUENCE: f"{self._boot}.{next(self._numbers)}"}
        return signed(method, host, path, numbered, body_hash, self._secrets()[0], self._clock(), self._keys)


class ReadReply:
    """Implements `ports.PeerReply`."""

    def __init__(self, reply: ReceivedReply, head: AnswerHead, received: Counter) -> None:
        assert head.confirmed is not None
        self.confirmed: Confirmed = head.confirmed
        self.extent: Extent | None = head.extent
        self.digest = head.digest
        self.sending = head.sending
        self.in_thread = reply.in_thread
        self._reply = reply
        self._received = received

    async def some(self) -> Buffer:
        try:
            piece = await self._reply.some()
        except OriginBroke as error:
            raise _failed(error) from error
        self._received.inc(len(piece))
        return piece

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        def count_received(more: int) -> None:
            self._received.inc(more)
            received(more)

        try:
            await self._reply.receive(count, sink, count_received)
        except OriginBroke as error:
            raise _failed(error) from error


class _NotCounted:
    """Bytes of peers are counted by peer, in `ReadReply`."""

    def received(self, count: int) -> None:
        pass

    def duplicated(self, cause: str, count: int) -> None:
        pass


def _decoded(kind: type[M], body: bytes) -> M:
    """Raises PeerFailed."""
    try:
        return decode(kind, body)
    except WireError as error:
        raise PeerFailed("garbage", str(error)) from error


def _believed(reply: ReceivedReply, member: Member, read: PeerRead, is_proved: bool) -> AnswerHead:
    """Raises PeerFailed, WireError: the answer is not to be believed."""
    if reply.status in _STATUS and dict(reply.headers).get(peer_wire.FROM) != member.name:
        raise PeerFailed("garbage", "another member answers")
    if reply.status not in (200, 206, 412, *_STATUS):
        raise _not_believed(reply.status)
    if not is_proved:
        raise PeerFailed("garbage", "the answer has no proof of the key")
    if reply.status in _STATUS:
        raise _not_believed(reply.status)
    head = peer_wire.parse_answer(read, reply.status, reply.headers, reply.content_length, member.name)
    if head.confirmed is None:
        raise PeerChanged
    return head


def _not_believed(status: int) -> PeerFailed:
    return PeerFailed(_STATUS.get(status, "refused" if status in _REFUSED else "status"), f"status {status}")


def _failed(error: OriginBroke) -> PeerFailed:
    return PeerFailed(_WHY[error.cause], str(error))


async def _acquire(*semaphores: asyncio.Semaphore) -> None:
    """Raises PeerFailed: one of them did not come free."""
    if not any(each.locked() for each in semaphores):
        for each in semaphores:
            await each.acquire()
        return
    acquired = []
    try:
        async with asyncio.timeout(_FREE_TIMEOUT_S):
            for each in semaphores:
                await each.acquire()
                acquired.append(each)
    except BaseException as error:
        for each in acquired:
            each.release()
        if isinstance(error, TimeoutError):
            raise PeerFailed("busy", "no connection became free in time") from error
        raise


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
