"""Sends requests to the origin over aiohttp's client: signed by the proxy, streamed both ways, never buffered whole.

aiohttp's errors are translated into `OriginBroke` here and in `http_reply`, and nowhere else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Literal, Protocol

import aiohttp
from aiohttp.abc import AbstractResolver
from cachetools import LRUCache
from yarl import URL

from outrider.adapters.origin.aws_config import ca_bundle
from outrider.adapters.origin.blocking_exchange import Unfit
from outrider.adapters.origin.bulk_client import BulkClient
from outrider.adapters.origin.endpoint import Endpoint, moved
from outrider.adapters.origin.http_reply import HttpReply, Reply, described
from outrider.adapters.origin.reply_parser import LenientResponseHandler
from outrider.adapters.origin.sent_once import SentOnce, sent_once
from outrider.core.auth.form_policy import signed_anew
from outrider.core.auth.sigv4 import Credentials, SigningKeys, sign_headers
from outrider.core.errors import OriginBroke, OriginBusy
from outrider.core.model import Headers
from outrider.core.origin import error_causes
from outrider.core.s3.encoding import encode_url_query
from outrider.core.s3.form_fields import PostForm
from outrider.metrics import Metrics, method_label
from outrider.origin_oddities import OriginOddities
from outrider.ports import Buffer, Clock, Exchange, OriginRequest
from outrider.settings import SettingsError

log = logging.getLogger(__name__)

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_UNSIGNED = "UNSIGNED-PAYLOAD"

# A server that accepts connections does so within milliseconds.
_CONNECT_TIMEOUT_S = 5.0
# CompleteMultipartUpload and COPY of large objects are silent for minutes.
_WRITE_TIMEOUT_S = 600.0
_ENDPOINTS_MAX = 10_000
# A certificate that is not trusted, a reply that cannot be read, and a request that cannot be written.
_LASTING = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientResponseError, ValueError)
# One repair each of the region, the clock offset and the credentials.
_REPAIRS_MAX = 3
# A reply buffers this much while its reader is slow (aiohttp pauses the socket at twice this). Four times as much took
# 15 MB more memory in a cold epoch, and no less CPU: the kernel buffers the rest.
_READ_BUFFER_BYTES = 64 * 1024
# The 2 KB of user metadata that S3 allows may be some 700 headers.
_HEADERS_MAX = 1024


class CredentialSource(Protocol):
    async def current(self) -> Credentials | None: ...

    async def renew(self, refused: Credentials) -> bool:
        """Called when the origin no longer accepts `refused`. Returns whether `current` has other credentials now."""
        ...


class HttpOrigin:
    """One endpoint, path style. `open` before the first request, `close` after the last."""

    def __init__(
        self, endpoint: str, region: str, credentials: CredentialSource, metrics: Metrics, clock: Clock,
        *, connections: int, receivers: int = 64, read_timeout_s: float = 30.0,
        resolver: AbstractResolver | None = None, oddities: OriginOddities | None = None,
    ) -> None:  # fmt: skip
        """`connections` bounds the open requests, `receivers` those whose body a thread receives. `oddities` None: this
        one has a list of its own.

        `read_timeout_s` bounds the wait for a reply to a read, for its next bytes, and for a free connection.
        """
        self._home = Endpoint.at(endpoint, region)
        # The endpoints of buckets that were found to be in another region.
        self._elsewhere: LRUCache[str, Endpoint] = LRUCache(_ENDPOINTS_MAX)
        self.endpoint = endpoint
        self._credentials = credentials
        self._metrics = metrics
        self._clock = clock
        self._clock_offset_s = 0.0
        # aiohttp's own limit would not do: it waits without bound, and a slow client of a relayed reply keeps its
        # connection for as long as it likes.
        self._free = asyncio.Semaphore(connections)
        self._read_timeout_s = read_timeout_s
        self._resolver = resolver
        self._keys = SigningKeys()
        self._oddities = oddities or OriginOddities(endpoint, metrics)
        self._session: aiohttp.ClientSession | None = None
        self._receivers = receivers
        # None: with a resolver of our own, as tests have, all requests go through aiohttp.
        self._bulk: BulkClient | None = None

    @property
    def receives_in_threads(self) -> bool:
        return self._bulk is not None and self._bulk.can_reach(self._home)

    async def open(self) -> None:
        connector = aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=30, keepalive_timeout=20, ssl=_trust(), resolver=self._resolver
        )
        # aiohttp (3.14) has no public way to choose the parser.
        connector._factory = partial(  # type: ignore[assignment]  # of a subclass
            LenientResponseHandler, self._oddities.note, asyncio.get_running_loop()
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER_BYTES,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            max_field_size=32 * 1024,
            max_line_size=32 * 1024,
            max_headers=_HEADERS_MAX,
            middlewares=(sent_once,),
        )  # fmt: skip
        if self._resolver is None:
            self._bulk = BulkClient(
                self._receivers, self._metrics, connect_timeout_s=_CONNECT_TIMEOUT_S,
                read_timeout_s=self._read_timeout_s,
            )  # fmt: skip

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._bulk is not None:
            self._bulk.close()

    def send(self, request: OriginRequest) -> Exchange[Reply]:
        return Exchange(self.ask, request)

    async def ask(self, request: OriginRequest) -> Reply:
        connection = await self._connection()
        try:
            reply = await self._send_repaired(request)
        except BaseException:
            connection.give_back()
            raise

        def closed() -> None:
            # A body that was read whole has given its connection back already.
            connection.give_back()
            if reply.came_bytes and request.bucket is not None and request.key:
                self._metrics.usage.came(request.bucket, request.key, reply.came_bytes)

        reply.ended, reply.closed = connection.give_back, closed
        return reply

    async def _connection(self) -> _Connection:
        if not self._free.locked():
            await self._free.acquire()
            return _Connection(self._free)
        try:
            async with asyncio.timeout(self._read_timeout_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise OriginBusy("no connection to it became free in time") from error
        return _Connection(self._free)

    async def _send_repaired(self, request: OriginRequest) -> Reply:
        """Send `request` and return the reply, after repairing what the origin refuses of our side.

        Repairable are the region, the clock offset and the credentials. Such a refusal means that the origin did
        nothing, so sending a write again does not do it twice.
        """
        bucket = request.bucket or ""
        for _ in range(_REPAIRS_MAX):
            target = self._elsewhere.get(bucket, self._home)
            credentials = await self._signer(request)
            reply = await self._attempt(request, target, credentials)
            try:
                if (elsewhere := moved(request, reply.status, reply.headers, target)) is not None:
                    self._elsewhere[bucket] = elsewhere
                elif (why := await self._repair(request, reply, credentials)) is None:
                    return reply
                elif request.body is not None:
                    # The body was streamed and is not here any more. The client still has it, and may retry.
                    raise OriginBroke(why)
            except BaseException:
                reply.close()
                raise
            reply.close()
        credentials = await self._signer(request)
        reply = await self._attempt(request, target, credentials)
        try:
            await self._refusal_code(request, reply, credentials)
        except BaseException:
            reply.close()
            raise
        return reply

    async def _signer(self, request: OriginRequest) -> Credentials | None:
        return None if request.unsigned else await self._credentials.current()

    async def _refusal_code(self, request: OriginRequest, reply: Reply, credentials: Credentials | None) -> str | None:
        """The S3 error code of a refusal that may be about the signature; "" if its body has no code.

        None: it is no such refusal, or has no body. Afterwards the body of `reply` holds nothing about the signer.
        """
        if credentials is None or reply.status not in error_causes.STATUSES or request.method == "HEAD":
            return None
        return error_causes.code_of(await reply.refusal()) or ""

    async def _repair(self, request: OriginRequest, reply: Reply, credentials: Credentials | None) -> str | None:
        """Repair the clock offset or the credentials. Returns what was wrong; None: nothing to repair."""
        if credentials is None or reply.status not in error_causes.STATUSES:
            return None
        code = await self._refusal_code(request, reply, credentials)
        now = self._clock()
        offset_s = error_causes.clock_offset(
            reply.status, code, dict(reply.headers).get("date"), now, self._clock_offset_s
        )  # fmt: skip
        if offset_s is not None:
            log.warning("this clock is off, signing by the origin's", extra={"offset_s": round(offset_s)})
            self._clock_offset_s = offset_s
            return "the clock of this machine was off by more than the origin tolerates"
        if error_causes.blames_credentials(reply.status, code) and await self._credentials.renew(credentials):
            return "the credentials had expired, and were renewed"
        return None

    def _now(self) -> float:
        """The time by the origin's clock."""
        return self._clock() + self._clock_offset_s

    async def _attempt(self, request: OriginRequest, target: Endpoint, credentials: Credentials | None) -> Reply:
        path = target.path_of(request)
        body = request.body
        if request.form is None:
            headers = self._signed(request, target, path, credentials)
        else:
            headers, body = self._signed_form(request, request.form, target, credentials)
        headers |= target.proxy.headers
        query = encode_url_query(request.query)
        path += f"?{query}" if query else ""
        try:
            reply = await self._answered(request, target, path, headers, body)
        except OriginBroke:
            self._metrics.origin_requests.labels(method_label(request.method), "none").inc()
            raise
        self._metrics.origin_requests.labels(method_label(request.method), str(reply.status)).inc()
        if request.method in ("GET", "HEAD") and request.bucket is not None and request.key:
            self._metrics.usage.asked(request.bucket, request.key)
        return reply

    async def _answered(
        self, request: OriginRequest, target: Endpoint, path: str, headers: dict[str, str],
        body: AsyncIterator[Buffer] | None,
    ) -> Reply:  # fmt: skip
        """The reply of the one client or the other. Raises OriginBroke."""
        bulk = self._bulk
        if bulk is not None and request.body_in_thread is not None and request.form is None and bulk.can_reach(target):
            sending = bulk.send(request.method, target, path, headers, request.body_in_thread, _WRITE_TIMEOUT_S)
            if (reply := await sending) is not None:
                return reply
        if request.bulk and bulk is not None and bulk.can_reach(target):
            with suppress(Unfit):
                return await bulk.get(target, path, headers)
        assert self._session is not None
        try:
            response = await self._session.request(
                request.method, URL(f"{target.base}{path}", encoded=True), headers=headers, data=body,
                allow_redirects=False, timeout=self._timeout(read=request.method in ("GET", "HEAD")),
                proxy=target.proxy.url, proxy_headers=target.proxy.connect_headers,
            )  # fmt: skip
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise OriginBroke(described(error), lasting=isinstance(error, _LASTING)) from error
        except SentOnce as error:
            raise OriginBroke(described(error.why), lasting=isinstance(error.why, _LASTING)) from error.why
        return HttpReply(response, self._metrics)

    def _timeout(self, *, read: bool) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=self._read_timeout_s if read else _WRITE_TIMEOUT_S
        )

    def _signed_form(
        self, request: OriginRequest, form: PostForm, target: Endpoint, credentials: Credentials | None
    ) -> tuple[dict[str, str], AsyncIterator[Buffer]]:
        """The headers and body of a form. Its fields are signed; a second signature in the headers would be refused."""
        assert request.bucket is not None
        assert request.body is not None
        assert request.body_bytes is not None
        fields = signed_anew(form, request.bucket, credentials, target.region, self._now(), self._keys)
        head = form.head(fields)
        headers = {
            **_joined(request.headers),
            "content-type": form.content_type,
            "content-length": str(len(head) + request.body_bytes),
            "host": target.host,
        }
        return headers, _after(head, request.body)

    def _signed(
        self, request: OriginRequest, target: Endpoint, path: str, credentials: Credentials | None
    ) -> dict[str, str]:
        headers = _joined(request.headers)
        headers.setdefault("accept-encoding", "identity")
        if request.body is not None and request.body_bytes is not None:
            headers["content-length"] = str(request.body_bytes)
        elif request.body is None and request.method in ("PUT", "POST"):
            headers["content-length"] = "0"
        payload_hash = request.payload_hash or (_EMPTY_SHA256 if request.body is None else _UNSIGNED)
        if credentials is None:
            if payload_hash.startswith("STREAMING-"):
                headers["x-amz-content-sha256"] = payload_hash
        else:
            headers.update(
                sign_headers(
                    method=request.method, host=target.host, path=path, query=request.query, headers=headers,
                    payload_hash=payload_hash, credentials=credentials, region=target.region, now=self._now(),
                    keys=self._keys,
                )
            )  # fmt: skip
        headers["host"] = target.host
        return headers


class _Connection:
    """The right to one connection, given back once."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free: asyncio.Semaphore | None = free

    def give_back(self) -> None:
        free, self._free = self._free, None
        if free is not None:
            free.release()


def _joined(headers: Headers) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in headers:
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


async def _after(head: bytes, body: AsyncIterator[Buffer]) -> AsyncIterator[Buffer]:
    yield head
    async for piece in body:
        yield piece


def _trust() -> ssl.SSLContext | Literal[True]:
    """The certificates that AWS tools trust (see `ca_bundle`); True: those of the system, which aiohttp has read."""
    found = ca_bundle(os.environ)
    if found is None:
        return True
    name, bundle = found
    try:
        return ssl.create_default_context(cafile=bundle)
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(f"{name}={bundle}: {error.strerror or error}. Name a PEM file, or unset it.") from error
