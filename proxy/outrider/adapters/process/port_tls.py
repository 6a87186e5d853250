"""The certificate of the S3 port, which is read again when it changes."""

from __future__ import annotations

import ssl
from pathlib import Path

from outrider.settings import SettingsError


class PortTls:
    """`context` is the port's for ever: at each handshake it gives way to one with the files' last right content.

    Raises:
        SettingsError: a file is not there, or they do not go together.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._content = b"", b""
        self.read()
        self.context = self._made()
        self.context.sni_callback = self._give_way

    def _give_way(self, connection: ssl.SSLObject, name: str | None, entrance: ssl.SSLContext) -> None:
        connection.context = self._current

    def read(self) -> bool:
        """Whether anything has changed. Raises SettingsError."""
        try:
            content = self._cert.read_bytes(), self._key.read_bytes()
            if content == self._content:
                return False
            current = self._made()
        except OSError as error:  # `ssl.SSLError` is one
            raise SettingsError(f"--tls-cert {self._cert}, --tls-key {self._key}: {error}") from error
        self._current, self._content = current, content
        return True

    def _made(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._cert, self._key)
        return context
