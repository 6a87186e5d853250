"""The admin port: health, readiness, metrics, status and the dashboard. It is on loopback, or behind a token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping

from aiohttp.web_exceptions import HTTPForbidden, HTTPMethodNotAllowed, HTTPNotFound, HTTPUnauthorized
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse, json_response
from aiohttp.web_server import Server

from outrider.core.auth import browser_guard
from outrider.core.errors import AccessDenied, S3Error, Signal
from outrider.core.model import ObjectRef
from outrider.http.admin import dashboard
from outrider.http.admin.connection import AdminConnection
from outrider.metrics import Metrics

Status = dict[str, object]
Owners = Callable[[ObjectRef], Awaitable[Status]]
"""The owners of the blocks of an object. Raises S3Error, Signal."""

Datasets = Callable[[], Awaitable[Status]]
"""The shares of datasets that one or all members hold."""

_OWNERS_PATH, _DATASETS_PATH, _HELD_PATH = "/cluster/who", "/cluster/datasets", "/datasets"
# The question is understood, and there is no answer; the text says why.
_NO_ANSWER = 422
_OPEN_TO_ALL = frozenset(("/healthz", "/readyz"))
_METHODS = ("GET", "HEAD")
# Far more than the usual clients need. Beyond the limit the oldest connection is cut, so that the kubelet, whose probe
# is the newest, is not shut out.
_CONNECTIONS_MAX = 256


class AdminServer(Server):
    """The protocol factory of the admin port."""

    def __init__(
        self, metrics: Metrics, ready: Callable[[], bool], status: Callable[[], Status], token: str | None,
        client_timeout_s: float, held: Datasets, owners: Owners | None = None, datasets: Datasets | None = None,
    ) -> None:  # fmt: skip
        """`token` None: no token is needed. `client_timeout_s`: how long a connection may last in all. `held`: what
        this node has. `owners`, `datasets`: what all members have; None: the node is alone."""
        super().__init__(self._handle)
        self._owners = owners
        self._shares = {_HELD_PATH: held} if datasets is None else {_HELD_PATH: held, _DATASETS_PATH: datasets}
        self._token = token
        self._client_timeout_s = client_timeout_s

        def healthz() -> Response:
            return Response(text="ok\n")

        def readyz() -> Response:
            return Response(text="ready\n") if ready() else Response(status=503, text="not ready\n")

        def show_metrics() -> Response:
            headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            return Response(body=metrics.text(), headers=headers)

        def show_status() -> Response:
            return json_response(status(), headers={"Cache-Control": "no-store"})

        self.replies: Mapping[str, Callable[[], Response]] = {
            "/healthz": healthz, "/readyz": readyz, "/metrics": show_metrics, "/status": show_status,
            **dashboard.replies(),
        }  # fmt: skip

    def __call__(self) -> AdminConnection:
        open_ones = [
            connection for connection in self.connections
            if isinstance(connection, AdminConnection) and not connection.is_cut
        ]  # fmt: skip
        if len(open_ones) >= _CONNECTIONS_MAX:
            open_ones[0].cut()
        return AdminConnection(self, self._client_timeout_s)

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        self._guard(request)
        owners = self._owners if request.path == _OWNERS_PATH else None
        shares = self._shares.get(request.path)
        reply = self.replies.get(request.path)
        if reply is None and owners is None and shares is None:
            raise HTTPNotFound
        if request.method not in _METHODS:
            raise HTTPMethodNotAllowed(request.method, _METHODS)
        if owners is not None:
            return await _owners_of(request.query.get("object", ""), owners)
        if shares is not None:
            return json_response(await shares(), headers={"Cache-Control": "no-store"})
        assert reply is not None
        return reply()

    def _guard(self, request: BaseRequest) -> None:
        """`/healthz` and `/readyz` need no token, because the kubelet has none. Nor do the files of the dashboard: its
        page asks the person for the token."""
        if request.path in _OPEN_TO_ALL or (self._token is not None and request.path in dashboard.PATHS):
            return
        if self._token is None:
            # The port is on loopback then, and web pages in a browser on this machine must not read it.
            try:
                browser_guard.check_host(request.host)
                browser_guard.check_page(tuple((name.lower(), value) for name, value in request.headers.items()))
            except AccessDenied as error:
                raise HTTPForbidden(text=f"{error.text}\n") from error
        else:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode()):
                raise HTTPUnauthorized(text="set the header Authorization: Bearer TOKEN\n")


async def _owners_of(url: str, owners: Owners) -> Response:
    bucket, slash, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not slash or not bucket or not key:
        return Response(status=_NO_ANSWER, text=f"{url!r} names no object: write s3://BUCKET/KEY.\n")
    try:
        answer = await owners(ObjectRef(bucket, key))
    except (S3Error, Signal) as error:
        return Response(status=_NO_ANSWER, text=f"{url}: {error}\n")
    return json_response(answer, headers={"Cache-Control": "no-store"})
