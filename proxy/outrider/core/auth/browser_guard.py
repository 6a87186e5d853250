"""Guards a port without authentication against web pages: CSRF and DNS rebinding.

A browser on this machine sends requests to loopback for any page that it shows, so being on loopback proves nothing.
Sources: Fetch standard, "Origin header"; W3C Fetch Metadata, which browsers send to loopback over plain http too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

from outrider.core.errors import AccessDenied
from outrider.core.model import Headers

# `none`: a person typed the address. `same-origin`: a page of this port asks.
# An IPv6 address with an IPv4 address at its end has 45, and the name of an interface may follow.
_ADDRESS_CHARS_MAX = 64
_OWN_SITES = frozenset(("none", "same-origin"))


def check_host(host: str, domains: Iterable[str] = ()) -> None:
    """Refuse a Host that anybody could have pointed at this port (DNS rebinding): a page of that name would be
    same-origin. Nobody else controls an address, `localhost`, a name without a dot, or a name under `domains`.

    Raises:
        AccessDenied: the Host is none of these.
    """
    name = (host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host).strip("[]").lower()
    if "." not in name or name.endswith(".localhost") or _is_address(name):
        return
    if not any(name == domain.lower() or name.endswith("." + domain.lower()) for domain in domains):
        raise AccessDenied(
            f"The Host {host[:100]} is no name of this port. Ask 127.0.0.1 or localhost, or start with --domain."
        )


def check_page(headers: Headers) -> None:
    """Raises AccessDenied: a page of another site sent the request. `headers` have lower-case names."""
    named = dict(headers)
    origin = named.get("origin")
    if named.get("sec-fetch-site", "none") in _OWN_SITES and (
        origin is None or origin.partition("://")[2] == named.get("host")
    ):
        return
    raise AccessDenied(
        "A web page of another site asks without a signature. OUTRIDER_CROSS_SITE=true answers such requests."
    )


def _is_address(name: str) -> bool:
    return len(name) <= _ADDRESS_CHARS_MAX and _parses(name)


# All requests name the same few addresses, and to parse one takes as long as to verify a signature.
@lru_cache(maxsize=256)
def _parses(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
