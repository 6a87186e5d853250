"""The two ports of the operator: https for the API server; http for Prometheus and the kubelet."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from outrider.core.operator.certificates import Issued
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.http.operator.admission import Admission, ReviewError
from outrider.http.wire.acceptor import HANDSHAKE_TIMEOUT_S, Listener
from outrider.http.wire.bounded_head import BoundedHeads

# The API server takes objects of 3 MiB at most, and sends one in a review.
_REVIEW_BYTES_MAX = 8 * 2**20
_STOP_S = 5.0
# An API server keeps a few connections for all of its reviews, and a cluster has a few API servers.
_CONNECTIONS_MAX = 256
_HEAD_BYTES_MAX = 64 * 1024


class ServerCertificate:
    """The certificate of the https port. `context` serves as long as the process; `show` changes the certificate of new
    connections. Those that are there go on. Until the first one every handshake fails."""

    def __init__(self) -> None:
        # A server keeps the context with which it began: at each handshake this one gives way to that of now.
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.sni_callback = self._give_way
        # 1.3 alone would shut out API servers whose FIPS 140 module ends at 1.2.
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._shown: ssl.SSLContext | None = None

    def show(self, server: Issued) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # The library reads files only. This one is in memory, and needs no directory that can be written.
        descriptor = os.memfd_create("webhook-certificate")
        try:
            os.write(descriptor, (server.key + server.certificate).encode())
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        self._shown = context

    def _give_way(self, connection: ssl.SSLObject, _name: str | None, _entrance: ssl.SSLContext) -> int | None:
        if self._shown is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._shown
        return None


@asynccontextmanager
async def listening(
    admission: Admission, metrics: OperatorMetrics, certificate: ServerCertificate, *, webhook: socket.socket,
    plain: socket.socket, is_ready: Callable[[], bool], connections_max: int = _CONNECTIONS_MAX,
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> AsyncIterator[tuple[int, int]]:  # fmt: skip
    """Yields the two ports. `webhook`, `plain`: bound sockets. `connections_max`: of each port."""

    async def mutate(request: web.Request) -> web.Response:
        try:
            return web.json_response(await admission.answer(await request.read()))
        except ReviewError as error:
            return web.Response(status=400, text=f"{error}\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if is_ready() else web.Response(status=503, text="not ready\n")

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def prometheus(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    hooks = web.Application(client_max_size=_REVIEW_BYTES_MAX)
    hooks.router.add_post("/mutate", mutate)
    pages = web.Application()
    pages.router.add_get("/healthz", health)
    pages.router.add_get("/readyz", ready)
    pages.router.add_get("/metrics", prometheus)
    async with AsyncExitStack() as stack:
        ports = []
        for app, listening_at, name, tls in (
            (hooks, webhook, "webhook", certificate.context), (pages, plain, "operator", None)
        ):  # fmt: skip
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            server = runner.server
            assert server is not None
            listener = Listener(
                [listening_at], partial(BoundedHeads, server, _HEAD_BYTES_MAX, access_log=None),
                metrics.refused_connections, port=name, connections_max=connections_max,
                connected=partial(_connected, server), tls=tls, handshake_timeout_s=handshake_timeout_s,
            )  # fmt: skip
            stack.callback(listener.abort)
            stack.callback(listener.close)
            ports.append(listener.number)
        yield ports[0], ports[1]


def _connected(server: web.Server) -> int:
    return len(server.connections)
