"""The admin port: health, readiness, metrics, status and the dashboard. Loopback, or behind a token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from outrider.core import browsers
from outrider.core.errors import AccessDenied
from outrider.http import page
from outrider.metrics import Metrics

Status = dict[str, object]

_OPEN_TO_ALL = frozenset(("/healthz", "/readyz"))


def admin_app(
    metrics: Metrics, ready: Callable[[], bool], status: Callable[[], Status], token: str | None
) -> web.Application:
    """`token` None: nothing is asked for. `/healthz` and `/readyz` never ask: the kubelet has no token; nor does the
    dashboard's page, which asks its reader for it."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if ready() else web.Response(status=503, text="not ready\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def show_status(_: web.Request) -> web.Response:
        return web.json_response(status(), headers={"Cache-Control": "no-store"})

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path in _OPEN_TO_ALL or (token is not None and request.path in page.PATHS):
            return await handler(request)
        if token is None:
            # It is loopback then, and what a browser on this machine shows must not read along.
            try:
                browsers.check_host(request.host)
                browsers.check_page(tuple((name.lower(), value) for name, value in request.headers.items()))
            except AccessDenied as error:
                raise web.HTTPForbidden(text=f"{error.text}\n") from error
        else:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode()):
                raise web.HTTPUnauthorized(text="set the header Authorization: Bearer TOKEN\n")
        return await handler(request)

    app = web.Application(middlewares=[guard])
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/status", show_status)
    page.add_page(app.router)
    return app
