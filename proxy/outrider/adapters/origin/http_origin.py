"""Sends requests to the origin: signed by the proxy, streamed both ways, never buffered whole."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from aiohttp.abc import AbstractResolver
from cachetools import LRUCache

from outrider.adapters.origin.aws_config import ca_bundle
from outrider.adapters.origin.client import HttpClient
from outrider.adapters.origin.endpoint import Endpoint, moved
from outrider.adapters.origin.http_reply import ReceivedReply
from outrider.adapters.origin.receivers import Receivers, ReceiverTrust
from outrider.core.auth.form_policy import signed_anew
from outrider.core.auth.sigv4 import Credentials, SigningKeys, sign_headers
from outrider.core.errors import OriginBroke, OriginBusy
from outrider.core.model import Headers
from outrider.core.origin import error_causes
from outrider.core.s3.encoding import encode_url_query, object_path
from outrider.core.s3.form_fields import PostForm
from outrider.metrics import Metrics, method_label
from outrider.origin_oddities import OriginOddities
from outrider.ports import Buffer, Clock, OriginRequest
from outrider.settings import SettingsError

log = logging.getLogger(__name__)

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_UNSIGNED = "UNSIGNED-PAYLOAD"

# A server that accepts connections does so within milliseconds.
_CONNECT_TIMEOUT_S = 5.0
# CompleteMultipartUpload and COPY of large objects are silent for minutes.
_WRITE_TIMEOUT_S = 600.0
_ENDPOINTS_MAX = 10_000
# One repair each of the region, the clock offset and the credentials.
_REPAIRS_MAX = 3


class CredentialSource(Protocol):
    async def current(self) -> Credentials | None: ...

    async def renew(self, refused: Credentials) -> bool:
        """Called when the origin no longer accepts `refused`. Returns whether `current` has other credentials now."""
        ...


class HttpOrigin:
    """One endpoint, path style. `open` before the first request, `close` after the last."""

    def __init__(
        self, endpoint: str, region: str, credentials: CredentialSource, metrics: Metrics, clock: Clock,
        *, connections: int, threads: int = 64, receivers: int = 0, read_timeout_s: float = 30.0,
        resolver: AbstractResolver | None = None, oddities: OriginOddities | None = None,
        refused: Callable[[Credentials, str], None] = lambda _, __: None,
    ) -> None:  # fmt: skip
        """`connections` bounds the open requests, `threads` those whose body a thread receives, and `receivers` the
        processes that speak TLS for these. `oddities` None: this one has a list of its own.

        `refused` is called with the code of each refusal of the credentials that could not be repaired.

        `read_timeout_s` bounds the wait for a reply to a read, for its next bytes, and for a free connection.
        """
        self._home = Endpoint.at(endpoint, region)
        # The endpoints of buckets that were found to be in another region.
        self._moved: LRUCache[str, Endpoint] = LRUCache(_ENDPOINTS_MAX)
        self.endpoint = endpoint
        self._credentials = credentials
        self._refused = refused
        self._metrics = metrics
        # Counters of replies by method and status: to find them among all labels takes longer than to count.
        self._counted: dict[tuple[str, str], Callable[[], None]] = {}
        self._clock = clock
        self._clock_offset_s = 0.0
        # A slow client of a relayed reply keeps its connection for as long as it likes.
        self._free = asyncio.Semaphore(connections)
        self._read_timeout_s = read_timeout_s
        self._resolver = resolver
        self._keys = SigningKeys()
        self._oddities = oddities or OriginOddities(endpoint, metrics)
        self._threads = threads
        self._receivers_max = receivers
        self._receivers: Receivers | None = None
        self.waiting = 0
        """How many requests wait for a free connection."""
        self._client: HttpClient | None = None
        self.authority: tuple[str, str] | None = None
        """See `ca_bundle`."""
        self._tls: ssl.SSLContext | None = None
        self._trust = ReceiverTrust()

    async def open(self) -> None:
        self.authority = ca_bundle(os.environ)
        if self.authority is not None:
            self.read_authority()
        if self._receivers_max:
            self._receivers = Receivers(self._receivers_max, self._metrics, lambda: self._trust)
        self._client = HttpClient(
            self._metrics, self._oddities.note, threads=self._threads, connect_timeout_s=_CONNECT_TIMEOUT_S,
            resolver=self._resolver, receivers=self._receivers,
        )  # fmt: skip

    def read_authority(self) -> bool:
        """In any thread: whether the file of certificates to trust has changed. Raises SettingsError."""
        assert self.authority is not None
        name, path = self.authority
        try:
            trust = ReceiverTrust(Path(path).read_bytes())
            if trust == self._trust:
                return False
            tls = ssl.create_default_context(cafile=path)
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(f"{name}={path}: {error.strerror or error}. Name a PEM file, or unset it.") from error
        self._tls, self._trust = tls, trust
        return True

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def receiver_pids(self) -> list[int]:
        """The processes that receive large bodies now."""
        return [] if self._receivers is None else self._receivers.pids

    async def ask(self, request: OriginRequest) -> ReceivedReply:
        if self._free.locked():
            await self._wait_for_connection()
        else:
            await self._free.acquire()
        try:
            reply = await self._send_repaired(request)
        except BaseException:
            self._free.release()
            raise
        reply.on_free = self._free.release
        return reply

    async def _wait_for_connection(self) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(self._read_timeout_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise OriginBusy("no connection to it became free in time") from error
        finally:
            self.waiting -= 1

    async def _send_repaired(self, request: OriginRequest) -> ReceivedReply:
        """Send `request` and return the reply, after repairing what the origin refuses of our side.

        Repairable are the region, the clock offset and the credentials. Such a refusal means that the origin did
        nothing, so sending a write again does not do it twice.
        """
        bucket = request.bucket or ""
        for repairs in range(_REPAIRS_MAX + 1):
            target = self._moved.get(bucket, self._home)
            credentials = None if request.unsigned else await self._credentials.current()
            signed_off_s = self._clock_offset_s
            reply = await self._attempt(request, target, credentials)
            if reply.status in (200, 206):
                return reply
            try:
                if repairs == _REPAIRS_MAX:
                    await self._refusal_code(request, reply, credentials)
                    return reply
                if (new_target := moved(request, reply.status, reply.headers, target)) is not None:
                    self._moved[bucket] = new_target
                elif (why := await self._repair(request, reply, credentials, signed_off_s)) is None:
                    return reply
                elif request.body is not None:
                    # The body was streamed and is not here any more. The client still has it, and may retry.
                    raise OriginBroke(why)
            except BaseException:
                reply.close()
                raise
            reply.close()
        raise AssertionError("unreachable")

    async def _refusal_code(
        self, request: OriginRequest, reply: ReceivedReply, credentials: Credentials | None
    ) -> str | None:
        """The S3 error code of a refusal that may be about the signature; "" if its body has no code.

        None: it is no such refusal, or has no body. Afterwards the body of `reply` holds nothing about the signer.
        """
        if credentials is None or reply.status not in error_causes.STATUSES or request.method == "HEAD":
            return None
        return error_causes.code_of(await reply.refusal()) or ""

    async def _repair(
        self, request: OriginRequest, reply: ReceivedReply, credentials: Credentials | None, signed_off_s: float
    ) -> str | None:  # fmt: skip
        """Repair the clock offset or the credentials. Returns what was wrong; None: nothing to repair.

        `signed_off_s`: the offset by which the request was signed. Another request, refused a moment before, may have
        repaired it meanwhile.
        """
        if credentials is None or reply.status not in error_causes.STATUSES:
            return None
        code = await self._refusal_code(request, reply, credentials)
        now = self._clock()
        offset_s = error_causes.clock_offset(
            reply.status, code, dict(reply.headers).get("date"), now, signed_off_s
        )  # fmt: skip
        if offset_s is not None:
            if self._clock_offset_s == signed_off_s:
                log.warning("this clock is off, signing by the origin's", extra={"offset_s": round(offset_s)})
                self._clock_offset_s = offset_s
            return "the clock of this machine was off by more than the origin tolerates"
        if error_causes.blames_credentials(reply.status, code) and await self._credentials.renew(credentials):
            return "the credentials had expired, and were renewed"
        if (named := error_causes.refusal_of_credentials(reply.status, code)) is not None:
            self._refused(credentials, named)
        return None

    def _now(self) -> float:
        """The time by the origin's clock."""
        return self._clock() + self._clock_offset_s

    async def _attempt(
        self, request: OriginRequest, target: Endpoint, credentials: Credentials | None
    ) -> ReceivedReply:
        path = object_path(request.bucket, request.key, bare=request.bare)
        body = request.body
        if request.form is None:
            headers = self._signed(request, target, path, credentials)
        else:
            headers, body = self._signed_form(request, request.form, target, credentials)
        headers |= target.proxy.headers
        if request.query:
            path += f"?{encode_url_query(request.query)}"
        is_read = request.method in ("GET", "HEAD")
        assert self._client is not None
        try:
            reply = await self._client.ask(
                target, request.method, path, headers, self._read_timeout_s if is_read else _WRITE_TIMEOUT_S,
                tls=self._tls, body=body, bulk=request.bulk,
                body_in_thread=request.body_in_thread if request.form is None else None,
            )  # fmt: skip
        except OriginBroke:
            self._count(request.method, "none")
            raise
        self._count(request.method, str(reply.status))
        if request.bucket is not None and request.key:
            reply.on_close = partial(self._closed, request.bucket, request.key, int(is_read))
        return reply

    def _count(self, method: str, status: str) -> None:
        count = self._counted.get((method, status))
        if count is None:
            label = method_label(method)
            count = self._counted[label, status] = self._metrics.origin_requests.labels(label, status).inc
        count()

    def _closed(self, bucket: str, key: str, gets: int, count: int) -> None:
        metrics = self._metrics
        metrics.uncounted.append(partial(metrics.usage.received, bucket, key, gets, count))

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


def _joined(headers: Headers) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in headers:
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


async def _after(head: bytes, body: AsyncIterator[Buffer]) -> AsyncIterator[Buffer]:
    yield head
    async for piece in body:
        yield piece
