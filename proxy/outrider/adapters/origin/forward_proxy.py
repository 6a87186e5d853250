"""Finds the HTTP proxy that the environment names for requests to the origin (HTTPS_PROXY, HTTP_PROXY, NO_PROXY).

aiohttp's `trust_env` is not used: it would also take passwords from ~/.netrc and send them to the origin.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from yarl import URL

from outrider.settings import SettingsError


@dataclass(frozen=True, slots=True)
class ForwardProxy:
    """`url` None: the connection is direct."""

    url: URL | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers for the requests themselves, which the proxy sees if they are plain HTTP."""
    connect_headers: Mapping[str, str] | None = None
    """Headers for the CONNECT that opens a tunnel to an HTTPS origin."""


def forward_proxy_to(endpoint: str) -> ForwardProxy:
    """The proxy for requests to `endpoint`, as AWS tools read the environment; loopback is always direct, as in Go.

    Raises:
        SettingsError: the variable holds no URL of an HTTP proxy.
    """
    origin = urlsplit(endpoint)
    proxies = getproxies_environment()
    named = proxies.get(origin.scheme) or proxies.get("all")
    if not named or _is_loopback(origin.hostname or "") or proxy_bypass(origin.netloc):
        return ForwardProxy()
    try:
        url = URL(named if "://" in named else f"http://{named}")
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError
    except ValueError as error:
        # The value is not shown: it may hold a password.
        raise SettingsError(f"{origin.scheme.upper()}_PROXY: not a URL like http://HOST:PORT.") from error
    if url.raw_user is None:
        return ForwardProxy(url)
    words = f"{unquote(url.raw_user)}:{unquote(url.raw_password or '')}".encode()
    authorization = {"proxy-authorization": f"Basic {b64encode(words).decode()}"}
    bare = url.with_user(None)
    if origin.scheme == "https":
        return ForwardProxy(bare, connect_headers=authorization)
    return ForwardProxy(bare, authorization)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
