"""The S3 behind us, over aiohttp's client: signed anew, streamed both ways, nothing buffered whole.

aiohttp's errors are translated here, and nowhere else, into `OriginBroke`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

import aiohttp
from cachetools import LRUCache
from yarl import URL

from outrider.core.canonical import encode_path, encode_query
from outrider.core.errors import OriginBroke
from outrider.core.model import Headers
from outrider.core.postform import PostForm
from outrider.core.postpolicy import signed_anew
from outrider.core.sigv4 import Credentials, SigningKeys, sign_headers
from outrider.metrics import Metrics, method_label
from outrider.ports import Buffer, Chunks, Clock, OriginRequest
from outrider.settings import SettingsError

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_UNSIGNED = "UNSIGNED-PAYLOAD"

# A server that accepts takes milliseconds to; S3 itself answers a read within seconds.
_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
# CompleteMultipartUpload and COPY of large objects keep quiet for minutes.
_WRITE_TIMEOUT_S = 600.0
_REGION = re.compile(r"[a-z0-9]{2,15}(?:-[a-z0-9]{1,15}){0,5}", re.ASCII)
_AWS_ENDPOINT = re.compile(r"(?P<scheme>https?)://s3(?:[.-][a-z0-9-]+)?\.amazonaws\.com(?P<cn>\.cn)?", re.ASCII)
_PLACES_MAX = 10_000
# What a reply may buffer while its reader is slow (aiohttp pauses the socket at twice this). Four times as much took
# 15 MB more in a cold epoch, and no less CPU: the kernel holds the rest.
_READ_BUFFER_BYTES = 64 * 1024


class CredentialSource(Protocol):
    async def current(self) -> Credentials | None: ...


class HttpOrigin:
    """One endpoint, path style. `open` before the first request, `close` after the last."""

    def __init__(
        self, endpoint: str, region: str, credentials: CredentialSource, metrics: Metrics, clock: Clock,
        *, connections: int,
    ) -> None:  # fmt: skip
        self._home = _Place(endpoint, region)
        # Where buckets were found to live that are not of our region.
        self._places: LRUCache[str, _Place] = LRUCache(_PLACES_MAX)
        self.endpoint = endpoint
        self._credentials = credentials
        self._metrics = metrics
        self._clock = clock
        self._connections = connections
        self._keys = SigningKeys()
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections, ttl_dns_cache=30, keepalive_timeout=20, ssl=_trust()
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER_BYTES,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            max_field_size=32 * 1024,
            max_line_size=32 * 1024,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def send(self, request: OriginRequest) -> AsyncIterator[HttpReply]:
        bucket = request.bucket or ""
        place = self._places.get(bucket, self._home)
        response = await self._try(request, place)
        if (elsewhere := _hinted(request, response, place)) is not None:
            response.close()
            self._places[bucket] = elsewhere
            response = await self._try(request, elsewhere)
        try:
            yield HttpReply(response, self._metrics)
        finally:
            # A body that was read whole has given its connection back already; of any other nothing more is wanted.
            response.close()

    async def _try(self, request: OriginRequest, place: _Place) -> aiohttp.ClientResponse:
        assert self._session is not None
        path = place.path_of(request)
        body = request.body
        if request.form is None:
            headers = await self._signed(request, place, path)
        else:
            headers, body = await self._signed_form(request, request.form, place)
        query = encode_query(request.query)
        url = URL(f"{place.base}{path}{'?' if query else ''}{query}", encoded=True)
        try:
            response = await self._session.request(
                request.method, url, headers=headers, data=body, allow_redirects=False,
                timeout=_timeout(request),
            )  # fmt: skip
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._metrics.origin_requests.labels(method_label(request.method), "none").inc()
            raise OriginBroke(_words(error)) from error
        self._metrics.origin_requests.labels(method_label(request.method), str(response.status)).inc()
        return response

    async def _signed_form(
        self, request: OriginRequest, form: PostForm, place: _Place
    ) -> tuple[dict[str, str], AsyncIterator[Buffer]]:
        """Its signature stands in its fields, and one in the headers as well would be refused."""
        assert request.bucket is not None
        assert request.body is not None
        assert request.body_bytes is not None
        credentials = await self._credentials.current()
        fields = signed_anew(form, request.bucket, credentials, place.region, self._clock(), self._keys)
        head = form.head(fields)
        headers = {
            **_joined(request.headers),
            "content-type": form.content_type,
            "content-length": str(len(head) + request.body_bytes),
            "host": place.host,
        }
        return headers, _after(head, request.body)

    async def _signed(self, request: OriginRequest, place: _Place, path: str) -> dict[str, str]:
        headers = _joined(request.headers)
        headers.setdefault("accept-encoding", "identity")
        if request.body is not None and request.body_bytes is not None:
            headers["content-length"] = str(request.body_bytes)
        elif request.body is None and request.method in ("PUT", "POST"):
            headers["content-length"] = "0"
        credentials = await self._credentials.current()
        payload_hash = request.payload_hash or (_EMPTY_SHA256 if request.body is None else _UNSIGNED)
        if credentials is None:
            if payload_hash.startswith("STREAMING-"):
                headers["x-amz-content-sha256"] = payload_hash
        else:
            headers.update(
                sign_headers(
                    method=request.method, host=place.host, path=path, query=request.query, headers=headers,
                    payload_hash=payload_hash, credentials=credentials, region=place.region, now=self._clock(),
                    keys=self._keys,
                )
            )  # fmt: skip
        headers["host"] = place.host
        return headers


@dataclass(frozen=True, slots=True)
class _Place:
    """An endpoint, and the region that it is signed for."""

    endpoint: str
    region: str

    @property
    def base(self) -> str:
        return f"{urlsplit(self.endpoint).scheme}://{self.host}"

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc

    def path_of(self, request: OriginRequest) -> str:
        path = urlsplit(self.endpoint).path.rstrip("/") + "/"
        if request.bucket is not None:
            path += encode_path(request.bucket)
            if request.key or not request.bare:
                path += "/" + encode_path(request.key)
        return path


def _hinted(request: OriginRequest, response: aiohttp.ClientResponse, place: _Place) -> _Place | None:
    """Where the bucket of a read lives, when the origin says that it is not here; None: nothing of the kind.

    Only the region's name is taken from the reply, never an address: a `Location` could send our signature anywhere.
    Source: S3 user guide, "Making requests": 301 PermanentRedirect, and 400 AuthorizationHeaderMalformed.
    """
    if request.method not in ("GET", "HEAD") or response.status not in (301, 307, 400):
        return None
    region = response.headers.get("x-amz-bucket-region", "")
    if region == place.region or _REGION.fullmatch(region) is None:
        return None
    return _Place(endpoint_in(place.endpoint, region), region)


def endpoint_in(endpoint: str, region: str) -> str:
    """The endpoint of `region` where `endpoint` is AWS S3's; any other store has one for all its regions."""
    match = _AWS_ENDPOINT.fullmatch(endpoint)
    return endpoint if match is None else f"{match['scheme']}://s3.{region}.amazonaws.com{match['cn'] or ''}"


class HttpReply:
    """A reply while its context is open."""

    def __init__(self, response: aiohttp.ClientResponse, metrics: Metrics) -> None:
        self._response = response
        self._metrics = metrics
        self.status = response.status
        self.headers: Headers = tuple(
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape"))
            for name, value in response.raw_headers
        )

    @property
    def content_length(self) -> int | None:
        return self._response.content_length

    async def chunks(self) -> Chunks:
        try:
            # Not `iter_any`, which joins, and so copies, what came in several reads of the socket; nor `iter_chunks`,
            # which never ends where a second reply has no body (aiohttp 3.14: all of those share one reader).
            content = self._response.content
            while not content.at_eof():
                chunk, _ = await content.readchunk()
                if chunk:
                    self._metrics.origin_bytes.inc(len(chunk))
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise OriginBroke(_words(error)) from error


def _joined(headers: Headers) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in headers:
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


async def _after(head: bytes, body: AsyncIterator[Buffer]) -> AsyncIterator[Buffer]:
    yield head
    async for piece in body:
        yield piece


def _timeout(request: OriginRequest) -> aiohttp.ClientTimeout:
    read = _READ_TIMEOUT_S if request.method in ("GET", "HEAD") else _WRITE_TIMEOUT_S
    return aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=read)


def _trust() -> ssl.SSLContext | Literal[True]:
    """The certificates that AWS_CA_BUNDLE names, as for AWS tools; True: the system's, which aiohttp has read."""
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if not bundle:
        return True
    try:
        return ssl.create_default_context(cafile=bundle)
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(
            f"AWS_CA_BUNDLE={bundle}: {error.strerror or error}. Name a PEM file, or unset it."
        ) from error


def _words(error: BaseException) -> str:
    """What happened, without the URL: its query may carry a secret."""
    if isinstance(error, asyncio.TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {error.os_error}"
    return type(error).__name__
