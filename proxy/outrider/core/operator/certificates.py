"""The certificates of the webhook: when they are made anew, and which authority signs.

A server's certificate may be signed anew at any time, because the API server trusts its authority. A new authority is
trusted first and signs later: an API server that does not know it would refuse the connection, and a pod would be
created unpatched. Its predecessor stays trusted until it ends.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DAY_S = 24 * 3600.0
AUTHORITY_S, SERVER_S = 3650 * DAY_S, 365 * DAY_S
# The clock of an API server may be behind that of the operator.
BACKDATED_S = 3600.0
# From the write of a bundle to the last API server that has read it. They watch it: a second or less when all is well.
SETTLE_S = 600.0
_RENEWED_AT = 2 / 3


@dataclass(frozen=True, slots=True)
class Validity:
    """From `begins` until `ends`, in seconds since 1970."""

    begins: float
    ends: float

    def holds(self, now: float) -> bool:
        return self.begins <= now < self.ends

    def is_due(self, now: float) -> bool:
        """Two thirds of it are over, or it does not hold."""
        return not self.begins <= now < self.begins + (self.ends - self.begins) * _RENEWED_AT


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key, both PEM. `names`: the DNS names of a server. `issuer`: the certificate (PEM) of the
    authority that signed it; its own, for an authority."""

    certificate: str
    key: str
    validity: Validity
    names: frozenset[str]
    issuer: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of the Secret. `authorities`: one or more, the newest first. `server`: signed by one of them."""

    authorities: tuple[Issued, ...]
    server: Issued

    def bundle(self, now: float) -> str:
        """The authorities that the API server is to trust, as PEM."""
        return "".join(authority.certificate for authority in _valid(self.authorities, now))


@dataclass(frozen=True, slots=True)
class Due:
    """The work of one round. `authority`: a new one is made. `server`: it is signed anew."""

    authority: bool
    server: bool


def due(kept: Kept | None, names: frozenset[str], now: float) -> Due:
    """`kept` None: there is nothing yet. `names`: the DNS names at which the API server calls."""
    if kept is None or not _valid(kept.authorities, now):
        return Due(authority=True, server=True)
    server = kept.server
    return Due(kept.authorities[0].validity.is_due(now), server.validity.is_due(now) or not names <= server.names)


def with_authority(authorities: Sequence[Issued], new: Issued, now: float) -> tuple[Issued, ...]:
    """`authorities` and the new one, without those that have ended."""
    return (new, *_valid(authorities, now))


def signer(authorities: Sequence[Issued], trusted: frozenset[str], now: float) -> Issued:
    """The authority that signs, of these from the newest to the oldest. `trusted`: the certificates of those that every
    API server trusts, as far as this process has seen.

    It is the newest of these. A process that has just begun has seen nothing: then it is the oldest that is valid.
    """
    valid = _valid(authorities, now)
    return next((authority for authority in valid if authority.certificate in trusted), valid[-1])


def trusts(configuration: Mapping[str, Any], authority: str) -> bool:
    """Whether each webhook of the MutatingWebhookConfiguration trusts the authority with this certificate (PEM)."""
    webhooks = configuration.get("webhooks") or ()
    return all(authority in _bundle_of(webhook) for webhook in webhooks)


def bundle_patch(configuration: Mapping[str, Any], bundle: str) -> list[dict[str, Any]]:
    """A JSON Patch after which each webhook trusts exactly `bundle` (PEM). Empty: they do.

    It fails as a whole if the configuration was changed since it was read: another operator may have put a newer
    bundle there.
    """
    changes = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": _base64(bundle)}
        for index, webhook in enumerate(configuration.get("webhooks") or ())
        if _bundle_of(webhook) != bundle
    ]
    if not changes:
        return []
    version = configuration["metadata"]["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *changes]


def secret_of(name: str, kept: Kept, previous: Mapping[str, Any] | None) -> dict[str, Any]:
    """The Secret (Kubernetes core/v1). `previous`: the one that it replaces, whose other parts stay; None: it is new.

    `tls.crt` and `tls.key` are the server's, by the names that tools which watch certificates know. `ca.crt` and
    `ca.key` are those of all authorities, in the same order.
    """
    data = {
        "ca.crt": _base64("".join(authority.certificate for authority in kept.authorities)),
        "ca.key": _base64("".join(authority.key for authority in kept.authorities)),
        "tls.crt": _base64(kept.server.certificate),
        "tls.key": _base64(kept.server.key),
    }
    if previous is not None:
        return {**previous, "data": {**(previous.get("data") or {}), **data}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "outrider-operator"}},
        "type": "kubernetes.io/tls",
        "data": data,
    }


class SeenTrust:
    """Since when this process has seen that the API server was given an authority to trust. All times are seconds of
    one monotonic clock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def seen(self, authorities: Iterable[str], now: float) -> None:
        """The API server was given these to trust, and no others."""
        self._since = {authority: self._since.get(authority, now) for authority in authorities}

    def settled(self, now: float) -> frozenset[str]:
        """Those that every API server trusts."""
        return frozenset(authority for authority, since in self._since.items() if now - since >= SETTLE_S)

    def __contains__(self, authority: str) -> bool:
        return authority in self._since


def _valid(authorities: Iterable[Issued], now: float) -> tuple[Issued, ...]:
    return tuple(authority for authority in authorities if authority.validity.holds(now))


def _bundle_of(webhook: Mapping[str, Any]) -> str:
    try:
        return base64.b64decode((webhook.get("clientConfig") or {}).get("caBundle") or "").decode()
    except ValueError:
        return ""


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
