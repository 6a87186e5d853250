"""The dashboard's page: static, the same for all, and without a word about this proxy; what it shows, it asks of
`/status`."""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

_FILES = {
    "/": ("index.html", "text/html"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
}
PATHS = frozenset(_FILES)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(router: web.UrlDispatcher) -> None:
    folder = files("outrider.http") / "dashboard"
    bodies = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    async def show(request: web.Request) -> web.Response:
        body, kind = bodies[request.path]
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    for path in _FILES:
        router.add_get(path, show)
