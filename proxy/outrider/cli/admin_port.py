"""Finds the admin port of a proxy on this machine, and makes plain HTTP calls to it."""

from __future__ import annotations

import http.client
import json
import urllib.request

from outrider.settings import Settings
from outrider.settings.members import is_everywhere

STATUS_URL = "OUTRIDER_STATUS_URL"
"""The variable by which `outrider run` tells its child where the admin port is. It is no setting."""

_TIMEOUT_S = 2.0
_STATUS_BYTES_MAX = 16 * 2**20


def direct() -> urllib.request.OpenerDirector:
    """An opener that ignores http_proxy: the server is on this machine."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def loopback_of(host: str) -> str:
    """The host to connect to, to reach a server that listens on `host`. At `[::]` it takes IPv4, too, and a machine
    without IPv6 has no other loopback."""
    return "127.0.0.1" if is_everywhere(host) else host


def running_outrider(settings: Settings) -> dict[str, object] | None:
    """The /status of the outrider at the address `admin`; None: there is none, or it has another token."""
    host, _, port = settings.admin.rpartition(":")
    if port == "0":
        return None
    request = urllib.request.Request(f"http://{loopback_of(host)}:{port}/status")
    if settings.admin_token is not None:
        request.add_header("Authorization", f"Bearer {settings.admin_token.get_secret_value()}")
    try:
        with direct().open(request, timeout=_TIMEOUT_S) as reply:
            status = json.loads(reply.read(_STATUS_BYTES_MAX))
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return status if isinstance(status, dict) and "version" in status and "listen" in status else None
