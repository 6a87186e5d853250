"""The files of the dashboard. They are static and hold nothing about this proxy; the page asks `/status` for all that
it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files

from aiohttp.web_response import Response

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


def replies() -> dict[str, Callable[[], Response]]:
    """The reply to each path."""
    folder = files("outrider.http.admin") / "page"
    bodies = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    def show(path: str) -> Response:
        body, kind = bodies[path]
        return Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    return {path: partial(show, path) for path in _FILES}
