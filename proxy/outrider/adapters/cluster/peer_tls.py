"""Mutual TLS between members: both sides show a certificate that the cluster's own authority has signed.

Names in the certificates are not compared. Members are reached at addresses that change, and every certificate of this
authority is a member's; the signature of each request says more than a name would. So the authority must sign nothing
else.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from outrider.adapters.origin.receivers import ReceiverTrust
from outrider.adapters.process.file_reload import Sleep, follow
from outrider.settings import Settings, SettingsError


class PeerTls:
    """The contexts of both sides, from the files' last right content. `follow` reads them again when they change;
    connections that were made before go on.

    Raises:
        SettingsError: a file is not there, or they do not go together.
    """

    @classmethod
    def of(cls, settings: Settings) -> PeerTls | None:
        """None: members talk without TLS. Raises SettingsError."""
        cert, key, authority = settings.peer_tls_cert, settings.peer_tls_key, settings.peer_tls_ca
        return None if cert is None or key is None or authority is None else cls(cert, key, authority)

    def __init__(self, cert: Path, key: Path, authority: Path) -> None:
        self._cert, self._key, self._authority = (path.expanduser() for path in (cert, key, authority))
        self.trust = ReceiverTrust()
        self._read()
        # A server keeps the context with which it began: at each handshake this one gives way to that of now.
        self._entrance = self._context(ssl.PROTOCOL_TLS_SERVER)
        self._entrance.sni_callback = self._give_way

    @property
    def server(self) -> ssl.SSLContext:
        """The context of the peer port, the same one for ever."""
        return self._entrance

    @property
    def client(self) -> ssl.SSLContext:
        """The context of a new connection to a peer."""
        return self._outgoing

    async def follow(self, sleep: Sleep = asyncio.sleep) -> None:
        """Never ends."""
        await follow("peer_tls_cert", self._read, sleep)

    def _give_way(self, connection: ssl.SSLObject, name: str | None, entrance: ssl.SSLContext) -> None:
        connection.context = self._incoming

    def _read(self) -> bool:
        paths = (self._authority, self._cert, self._key)
        where = f"--peer-tls-cert {self._cert}, --peer-tls-key {self._key}, --peer-tls-ca {self._authority}"
        try:
            trust = ReceiverTrust(*(path.read_bytes() for path in paths))
            if trust == self.trust:
                return False
            outgoing, incoming = self._context(ssl.PROTOCOL_TLS_CLIENT), self._context(ssl.PROTOCOL_TLS_SERVER)
        except OSError as error:  # `ssl.SSLError` is one
            raise SettingsError(f"{where}: {error}") from error
        # Both at once: requests begin on another thread than this.
        self._outgoing, self._incoming, self.trust = outgoing, incoming, trust
        return True

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._cert, self._key)
        context.load_verify_locations(self._authority)
        return context
