"""A TLS certificate for a server on loopback, and the private authority that signs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: `chain` and `key` are the server's, `authority` is the one that its clients are told to trust."""

    authority: Path
    chain: Path
    key: Path


def certify(directory: Path, name: str = "127.0.0.1") -> Certificate:
    """A new authority, and a certificate signed by it for `name`; their files stay in `directory`.

    A single self-signed certificate would not do: rustls accepts no authority as a server's certificate.
    """
    made = Certificate(*(directory / name for name in ("authority.pem", "chain.pem", "key.pem")))
    authority = trustme.CA()
    server = authority.issue_cert(name)
    authority.cert_pem.write_to_path(made.authority)
    server.private_key_pem.write_to_path(made.key)
    for number, certificate in enumerate(server.cert_chain_pems):
        certificate.write_to_path(made.chain, append=number > 0)
    return made
