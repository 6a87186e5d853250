"""Keeps the certificates of the webhook: in a Secret, in the webhook's configuration, and at this process's port.

Each operator does so, leader or not. They meet in the Secret, whose writes fail if it was changed since it was read.
The chart renders neither the certificates nor the bundle. So an upgrade of the release leaves them alone; a bundle that
something else has removed is put back at the next round.

To be rid of an authority before its time: stop all operators, delete the Secret, and start them. While one runs, a
Secret that was deleted or damaged is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from outrider.core.operator.certificates import (
    AUTHORITY_S,
    BACKDATED_S,
    SERVER_S,
    Issued,
    Kept,
    SeenTrust,
    Validity,
    bundle_patch,
    due,
    secret_of,
    signer,
    trusts,
    with_authority,
)
from outrider.operator_ports import Kube, Manifest
from outrider.ports import Clock

log = logging.getLogger(__name__)

KEEP_S = 10.0
_CONFIGURATION, _SECRET = "MutatingWebhookConfiguration", "Secret"


class Certifier(Protocol):
    """A Protocol, as an adapter implements it."""

    def authority(self, validity: Validity) -> Issued: ...

    def server(self, names: frozenset[str], by: Issued, validity: Validity) -> Issued:
        """`by`: the authority that signs."""
        ...

    def read(self, data: Mapping[str, Any]) -> Kept | None:
        """The `data` of a Secret; None: it is damaged."""
        ...


class CertificateKeeper:
    """`name`: the webhook configuration, and the Service at which it is called; the Secret is NAME-ca. `show`: takes
    the server's certificate for all new connections. `wall_clock`: seconds since 1970."""

    def __init__(
        self, kube: Kube, certifier: Certifier, show: Callable[[Issued], None], *, name: str, monotonic: Clock,
        wall_clock: Clock,
    ) -> None:  # fmt: skip
        self._kube = kube
        self._certifier = certifier
        self._show = show
        self._name, self._secret = name, f"{name}-ca"
        self._names = frozenset({f"{name}.{kube.namespace}.svc"})
        self._monotonic, self._wall_clock = monotonic, wall_clock
        self._kept: Kept | None = None
        self._trust = SeenTrust()
        self._read: tuple[Mapping[str, Any], Kept | None] = {}, None
        self._is_missing = False

    @property
    def is_ready(self) -> bool:
        """The API server can call: it was given the authority of the certificate that is shown."""
        return self._kept is not None and self._kept.server.issuer in self._trust

    async def step(self) -> None:
        """One round. Raises KubeError; a ConflictError says that another operator was first."""
        # Before the Secret: the patch fails if another operator has since put the bundle of a newer Secret there.
        configuration = await self._kube.get(_CONFIGURATION, self._name)
        secret = await self._kube.get(_SECRET, self._secret)
        found = None if secret is None else self._parsed(secret.get("data") or {})
        kept = self._renewed(found or self._kept)
        if kept is not found:
            await self._write(kept, secret)
        if self._kept is None or self._kept.server != kept.server:
            self._show(kept.server)
        self._kept = kept
        await self._make_trusted(configuration, kept)

    def _parsed(self, data: Mapping[str, Any]) -> Kept | None:
        if data != self._read[0]:
            self._read = data, self._certifier.read(data)
            if self._read[1] is None:
                log.warning("secret of the webhook is damaged and is written again", extra={"secret": self._secret})
        return self._read[1]

    def _renewed(self, kept: Kept | None) -> Kept:
        """The same, if nothing is due."""
        now = self._wall_clock()
        work = due(kept, self._names, now)
        authorities = () if kept is None else kept.authorities
        if work.authority:
            new = self._certifier.authority(Validity(now - BACKDATED_S, now + AUTHORITY_S))
            authorities = with_authority(authorities, new, now)
            log.info("authority of the webhook was made", extra={"ends": _date(new.validity.ends)})
        if kept is None or work.server:
            by = signer(authorities, self._trust.settled(self._monotonic()), now)
            server = self._certifier.server(self._names, by, Validity(now - BACKDATED_S, now + SERVER_S))
            log.info("certificate of the webhook was made", extra={"ends": _date(server.validity.ends)})
            return Kept(authorities, server)
        return Kept(authorities, kept.server) if work.authority else kept

    async def _write(self, kept: Kept, secret: Manifest | None) -> None:
        manifest = secret_of(self._secret, kept, secret)
        if secret is None:
            await self._kube.create(_SECRET, manifest)
        else:
            await self._kube.update(_SECRET, manifest)

    async def _make_trusted(self, configuration: Manifest | None, kept: Kept) -> None:
        if (configuration is None) != self._is_missing:
            self._is_missing = configuration is None
            log.warning("webhook configuration is missing" if self._is_missing else "webhook configuration is back")
        bundle = kept.bundle(self._wall_clock())
        authorities = [authority.certificate for authority in kept.authorities if authority.certificate in bundle]
        now = self._monotonic()
        trusted = [] if configuration is None else [each for each in authorities if trusts(configuration, each)]
        self._trust.seen(trusted, now)
        if configuration is None:
            return
        patch = bundle_patch(configuration, bundle)
        if patch:
            await self._kube.patch(_CONFIGURATION, self._name, patch)
            log.info("authority of the webhook is given to the API server", extra={"authorities": len(authorities)})
        self._trust.seen(authorities, now)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
