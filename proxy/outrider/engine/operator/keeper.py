"""Keeps the certificates of the webhook in a Secret, and tells the API server which authority to trust.

The Secret has the authorities from the newest to the oldest (`authorities.json`), and `tls.crt` and `tls.key` of the
server. Any replica may make it: the first write wins, and the others read it. In this order nothing is ever refused: an
authority is written into the webhook's configuration first, and signs later; see `core.operator.certificates`.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from outrider.core.operator import certificates
from outrider.core.operator.certificates import Validity
from outrider.operator_ports import ConflictError, Kube, Manifest

log = logging.getLogger(__name__)

KEEP_S = 30.0
_AUTHORITIES, _CERTIFICATE, _KEY = "authorities.json", "tls.crt", "tls.key"
_MANAGED = {"app.kubernetes.io/managed-by": "outrider-operator"}


class Signer(Protocol):
    """Certificates and keys in PEM, as pairs."""

    def authority(self, name: str, now: float, /) -> tuple[bytes, bytes]: ...

    def server(self, by: Any, names: Sequence[str], now: float, /) -> tuple[bytes, bytes]: ...

    def validity(self, pem: bytes, /) -> Validity:
        """Raises ValueError."""


class Keeper:
    """`use`: takes certificate and key of the server, each time that they are others. `clock`: seconds since the
    epoch."""

    def __init__(
        self, kube: Kube, signer: Signer, *, secret: str, webhook: str, names: Sequence[str],
        use: Callable[[bytes, bytes], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._kube = kube
        self._signer = signer
        self._secret = secret
        self._webhook = webhook
        self._names = names
        self._use = use
        self._clock = clock
        self._used: tuple[bytes, bytes] | None = None

    async def step(self, *, is_leader: bool) -> None:
        """Reads the certificates, and as the leader renews them and tells the API server. Raises KubeError."""
        found = await self._kube.get("Secret", self._secret)
        kept = _Kept.of(found)
        if is_leader:
            renewed = self._renewed(kept)
            if renewed is not None:
                try:
                    await self._write(found, renewed)
                except ConflictError:
                    return  # another replica was first
                kept = renewed
        if kept.server is not None and kept.server != self._used:
            self._used = kept.server
            self._use(*kept.server)
        if is_leader and kept.authorities:
            await self._tell(b"".join(certificate for certificate, _ in kept.authorities))

    def _renewed(self, kept: _Kept) -> _Kept | None:
        """None: nothing is due."""
        now = self._clock()
        authorities = [pair for pair in kept.authorities if (of := self._validity(pair[0])) and now < of.ends]
        newest = self._validity(authorities[0][0]) if authorities else None
        server = self._validity(kept.server[0]) if kept.server is not None else None
        due = certificates.due(newest, server, frozenset(self._names), now)
        if not (due.authority or due.server):
            return None
        if due.authority:
            authorities.insert(0, self._signer.authority(self._secret, now))
            log.info("webhook authority made", extra={"secret": self._secret})
        made = kept.server
        if due.server:
            times = [of for certificate, _ in authorities if (of := self._validity(certificate)) is not None]
            by = authorities[certificates.signs(times, now)]
            made = self._signer.server(by, self._names, now)
            log.info("webhook certificate made", extra={"secret": self._secret})
        return _Kept(authorities, made)

    def _validity(self, pem: bytes) -> Validity | None:
        try:
            return self._signer.validity(pem)
        except ValueError:
            return None

    async def _write(self, found: Manifest | None, kept: _Kept) -> None:
        if found is None:
            await self._kube.create("Secret", {
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": kept.data(),
                "metadata": {"name": self._secret, "namespace": self._kube.namespace, "labels": _MANAGED},
            })  # fmt: skip
        else:
            await self._kube.update("Secret", {**found, "data": kept.data()})

    async def _tell(self, bundle: bytes) -> None:
        configuration = await self._kube.get("MutatingWebhookConfiguration", self._webhook)
        if configuration is None:
            log.warning("there is no such webhook configuration", extra={"webhook": self._webhook})
            return
        told = base64.b64encode(bundle).decode()
        patch = []
        for index, webhook in enumerate(configuration.get("webhooks") or ()):
            if (webhook.get("clientConfig") or {}).get("caBundle") != told:
                path = f"/webhooks/{index}"
                patch += [
                    {"op": "test", "path": f"{path}/name", "value": webhook["name"]},
                    {"op": "add", "path": f"{path}/clientConfig/caBundle", "value": told},
                ]
        if patch:
            try:
                await self._kube.patch("MutatingWebhookConfiguration", self._webhook, patch)
            except ConflictError:
                return  # it was changed meanwhile; the next round tells it
            log.info("webhook authority told", extra={"webhook": self._webhook})


class _Kept:
    def __init__(self, authorities: Sequence[tuple[bytes, bytes]], server: tuple[bytes, bytes] | None) -> None:
        self.authorities = list(authorities)
        self.server = server

    @classmethod
    def of(cls, secret: Manifest | None) -> _Kept:
        """Data that cannot be read counts as missing, and is made anew."""
        data = (secret or {}).get("data") or {}
        try:
            pairs = json.loads(base64.b64decode(data.get(_AUTHORITIES, "W10=")))
            authorities = [(pair["certificate"].encode(), pair["key"].encode()) for pair in pairs]
            server = (
                (base64.b64decode(data[_CERTIFICATE]), base64.b64decode(data[_KEY]))
                if _CERTIFICATE in data and _KEY in data
                else None
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls([], None)
        return cls(authorities, server)

    def data(self) -> dict[str, str]:
        pairs = [{"certificate": cert.decode(), "key": key.decode()} for cert, key in self.authorities]
        certificate, key = self.server or (b"", b"")
        told = {_AUTHORITIES: json.dumps(pairs).encode(), _CERTIFICATE: certificate, _KEY: key}
        return {name: base64.b64encode(value).decode() for name, value in told.items()}
