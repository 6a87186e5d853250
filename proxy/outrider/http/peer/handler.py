"""Answers the requests to the peer port that come from a member."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from outrider.core.auth.peer_signature import PROOF, NotAMember, proof_of, verify_member
from outrider.core.auth.sigv4 import SigningKeys
from outrider.core.auth.verification import SignedRequest
from outrider.core.cluster import messages, peer_wire
from outrider.core.cluster.messages import Answer, Command, Forget, Hello, ListRequest, Notice, Question, SharesRequest
from outrider.core.cluster.peer_messages import PeerRead
from outrider.core.cluster.peer_wire import AnswerHead, Requester
from outrider.core.cluster.replay_guard import ReplayGuard
from outrider.core.cluster.wire_forms import WireError, decode, encode
from outrider.core.errors import S3Error, Signal
from outrider.core.model import Headers
from outrider.engine.cluster.peer_service import PeerReadAnswer
from outrider.http.record.record import Sent
from outrider.http.wire.reply import WireReply
from outrider.http.wire.request_body import client_body
from outrider.http.wire.sender import WireSender
from outrider.metrics import OTHER, Metrics
from outrider.ports import Clock

log = logging.getLogger(__name__)

_BODY_TIMEOUT_S = 10.0


class Refused(Exception):
    """`why`: a metric's label."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Gatekeeper:
    """`name`: of this member. `secrets`: the keys of the cluster of now, any of which may have signed. `clock`: the
    wall clock."""

    def __init__(self, name: str, secrets: Callable[[], Sequence[str]], guard: ReplayGuard, clock: Clock) -> None:
        self._name = name
        self._secrets = secrets
        self._guard = guard
        self._clock = clock
        self._keys = SigningKeys()

    def admit(self, request: BaseRequest) -> tuple[Requester, dict[str, str], str]:
        """The member that sent the request, the headers by name, and the hash that the body must have.

        Raises Refused.
        """
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").strip())
            for name, value in request.raw_headers
        )
        path, _, query = request.raw_path.partition("?")
        now = self._clock()
        try:
            body_hash = verify_member(
                SignedRequest(request.method, path, query, headers), self._secrets(), now, self._keys
            )
        except NotAMember as error:
            raise Refused(403, error.why) from error
        # A header received twice is one value here, joined by a comma: none of ours then has its form.
        values: dict[str, str] = {}
        for name, value in headers:
            values[name] = f"{values[name]},{value}" if name in values else value
        try:
            requester = peer_wire.parse_requester(values)
            boot, number = peer_wire.sequence_of(values)
        except WireError as error:
            raise Refused(400, "garbage") from error
        if requester.hops != 1:
            raise Refused(400, "hops")
        # Not the Host: a member is reached by names, addresses and ports that it does not know of.
        if requester.receiver not in ("", self._name):
            raise Refused(403, "receiver")
        if not self._guard.admit(requester.name, boot, number, now):
            raise Refused(403, "replay")
        return requester, values, body_hash

    def proved(self, requested: Mapping[str, str], status: int, headers: Headers, body: bytes = b"") -> Headers:
        """The headers of an answer, with its proof. `requested`: the headers of the request, which was admitted."""
        proof = proof_of(requested.get("authorization", ""), self._secrets(), status, headers, body)
        return (*headers, (PROOF, proof))


class PeerEngine(Protocol):
    """The engine, as other members ask it. All on the engine's loop."""

    async def read(self, read: PeerRead, sender: str) -> PeerReadAnswer:
        """`sender`: the name of the member that asks."""
        ...

    async def answer(self, message: Hello | Notice | Question) -> Hello | Answer | None:
        """Heed a message. None: its answer is empty."""
        ...


class PeerHandler:
    """`this`: the name, ring and cluster of this member. `is_member`: whether another process of this name is one.
    `reads_max`: more reads at once are sent to another member."""

    def __init__(
        self, service: PeerEngine, gatekeeper: Gatekeeper, this: Callable[[], Requester],
        is_member: Callable[[str], bool], metrics: Metrics, *, reads_max: int,
    ) -> None:  # fmt: skip
        self._service = service
        self._gatekeeper = gatekeeper
        self._this = this
        self._is_member = is_member
        self._metrics = metrics.peers
        self._reads_max = reads_max
        self.in_flight = 0
        """How many reads are under way."""
        # LISTs under way, of which there may be half as many as reads.
        self._lists = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Returns once no read is under way."""
        await self._idle.wait()

    async def handle(self, request: BaseRequest, wire: WireSender, admitted: Callable[[], None]) -> StreamResponse:
        """Answer a request that aiohttp's parser accepted. `admitted`: called if a member signed it."""
        try:
            requester, headers, body_hash = self._gatekeeper.admit(request)
            admitted()
            if request.method == "POST":
                return await self._message(request, wire, requester, headers, body_hash)
            return await self._read(request, wire, requester, headers)
        except Refused as refused:
            return self.refuse(request, wire, refused)
        except ConnectionError:
            raise
        except Exception:
            log.exception("request of a member failed")
            return self._reply(wire, 500, ())

    def refuse(self, request: BaseRequest, wire: WireSender, refused: Refused) -> WireReply:
        self._metrics.refused.labels(refused.why).inc()
        log.debug("refused a request at the peer port", extra={"why": refused.why, "address": wire.address})
        # Its body is not read.
        return self._reply(wire, refused.status, (), close=request.body_exists or refused.status in (400, 403))

    # -- reads ------------------------------------------------------------------------------------------------------

    async def _read(
        self, request: BaseRequest, wire: WireSender, requester: Requester, headers: dict[str, str]
    ) -> WireReply:
        if request.body_exists or request.method not in ("GET", "HEAD"):
            raise Refused(400, "garbage")
        this = self._this()
        if requester.cluster_id != this.cluster_id:
            raise Refused(421, "cluster")
        if not peer_wire.is_spoken(requester.wire):
            raise Refused(400, "wire")
        try:
            read = peer_wire.parse_read(request.method, request.raw_path, headers)
        except WireError as error:
            raise Refused(400, "garbage") from error
        if requester.ring != this.ring and self._is_member(requester.name):
            self._metrics.ring_disagreements.inc()
        if self.in_flight >= self._reads_max:
            self._metrics.refused.labels("busy").inc()
            return self._reply(wire, 503, self._gatekeeper.proved(headers, 503, ((peer_wire.FROM, this.name),)))
        self._begin()
        try:
            answer = await self._answer(read, requester.name)
            return await self._answered(wire, read, answer, requester.name, this.name, headers)
        except BaseException:
            self._end()
            raise

    async def _answer(self, read: PeerRead, sender: str) -> PeerReadAnswer:
        try:
            return await self._service.read(read, sender)
        except (Signal, S3Error, OSError):
            # The member asks the bucket itself, and learns there what is wrong.
            return PeerReadAnswer(404)

    async def _answered(
        self,
        wire: WireSender,
        read: PeerRead,
        answer: PeerReadAnswer,
        sender: str,
        name: str,
        requested: dict[str, str],
    ) -> WireReply:
        """The reply, at whose end the read ends. `requested`: the headers of the request."""
        confirmed = answer.confirmed
        try:
            stated = confirmed if answer.status in (200, 206) else None
            head = AnswerHead(stated, answer.extent, answer.digest, answer.sending)
            headers = peer_wire.answer_headers(read, head, name)
        except WireError:
            if answer.body is not None:
                await answer.body.aclose()
            answer, headers = PeerReadAnswer(404), ((peer_wire.FROM, name),)

        def ended(_: int, sent: Sent, __: str | None) -> None:
            self._end()
            label = self._metrics.label(sender) if self._is_member(sender) else OTHER
            self._metrics.bytes.labels(label, "out").inc(sum(sent.values()))

        headers = self._gatekeeper.proved(requested, answer.status, headers)
        length = None if answer.extent is None else answer.extent.length
        return WireReply(answer.status, headers, wire=wire, body=answer.body, length=length, on_end=ended)

    def _begin(self) -> None:
        self.in_flight += 1
        self._idle.clear()

    def _end(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    # -- messages -----------------------------------------------------------------------------------------------------

    async def _message(
        self, request: BaseRequest, wire: WireSender, requester: Requester, headers: dict[str, str], body_hash: str
    ) -> WireReply:
        kind = messages.BY_PATH.get(request.raw_path)
        if kind is None:
            raise Refused(400, "garbage")
        bytes_max = messages.COMMAND_BYTES_MAX if kind is Command else messages.BODY_BYTES_MAX
        body = await self._body(request, wire, body_hash, bytes_max)
        this = self._this()
        if kind is not Hello and not peer_wire.is_spoken(requester.wire):
            raise Refused(400, "wire")
        try:
            message = decode(kind, body)
        except WireError as error:
            raise Refused(400, "garbage") from error
        # Members of other clusters are greeted: `doctor` shows which lists mix them.
        if kind is not Hello and requester.cluster_id != this.cluster_id:
            raise Refused(421, "cluster")
        if message.sender != requester.name:
            raise Refused(400, "garbage")
        # A forget needs no list: one of a member that has just joined must not be lost, and it costs questions alone. A
        # hello needs none, since a list may be late; nor does a page of a LIST, as no block does.
        if kind not in (Hello, Forget, SharesRequest, ListRequest) and not self._is_member(requester.name):
            raise Refused(403, "stranger")
        if kind is not ListRequest:
            answer = await self._service.answer(message)
        elif 2 * self._lists >= self._reads_max:
            self._metrics.refused.labels("busy").inc()
            return self._reply(wire, 503, ())
        else:
            self._lists += 1
            try:
                answer = await self._service.answer(message)
            finally:
                self._lists -= 1
        body = b"" if answer is None else encode(answer)
        return self._reply(wire, 200, self._gatekeeper.proved(headers, 200, ((peer_wire.FROM, this.name),), body), body)

    async def _body(self, request: BaseRequest, wire: WireSender, body_hash: str, bytes_max: int) -> bytes:
        """The body, which is that of the signature. Raises Refused."""
        length = request.content_length
        if length is None:
            raise Refused(400, "garbage")
        if length > bytes_max:
            raise Refused(400, "too large")
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                async for chunk in client_body(request, wire, _BODY_TIMEOUT_S):
                    body += chunk
        except (S3Error, TimeoutError) as error:
            raise Refused(400, "garbage") from error
        if hashlib.sha256(body).hexdigest() != body_hash:
            raise Refused(403, "signature")
        return bytes(body)

    def _reply(
        self, wire: WireSender, status: int, headers: Headers, body: bytes | None = None, *, close: bool = False
    ) -> WireReply:
        return WireReply(status, headers, wire=wire, body=body, close=close)
