"""Web pages at a port that lets everybody in: a browser on this machine reaches loopback for any page that it shows.

Sources: Fetch standard, "Origin header"; W3C Fetch Metadata, which browsers send to loopback over plain http too.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from outrider.core.errors import AccessDenied
from outrider.core.model import Headers

# Typed by a person, or asked by a page that this port served.
_OWN_SITES = frozenset(("none", "same-origin"))


def check_host(host: str, domains: Iterable[str] = ()) -> None:
    """Raises AccessDenied: a stranger could have pointed this name at us (DNS rebinding), and his page would then be of
    our own site. An address, `localhost`, a name without a dot and those under `domains` are nobody's to point."""
    name = (host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host).strip("[]").lower()
    if "." not in name or name.endswith(".localhost") or _is_address(name):
        return
    if not any(name == domain.lower() or name.endswith("." + domain.lower()) for domain in domains):
        raise AccessDenied(
            f"The Host {host[:100]} is no name of this port. Ask 127.0.0.1 or localhost, or start with --domain."
        )


def check_page(headers: Headers) -> None:
    """Raises AccessDenied: the page of another site asks. `headers` have lower-case names."""
    told = dict(headers)
    origin = told.get("origin")
    if told.get("sec-fetch-site", "none") in _OWN_SITES and (
        origin is None or origin.partition("://")[2] == told.get("host")
    ):
        return
    raise AccessDenied(
        "A web page of another site asks: loopback mode answers those with OUTRIDER_CROSS_SITE=true alone."
    )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
